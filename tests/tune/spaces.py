"""Small spaces with known times, written in the formats that are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.tune.recorded import Recording
from kvbench.tune.space import Space


def valley(seed: int = 0) -> Recording:
    """1,152 configurations with one valley, an interaction (a · b = 64 is best) and failures where c is too large."""
    space = Space.of(
        {
            "a": (1, 2, 4, 8, 16, 32),
            "b": (1, 2, 4, 8, 16, 32),
            "c": (1, 2, 3, 4),
            "d": (0, 1),
            "e": ("x", "y", "z", "w"),
        }
    )
    random = np.random.default_rng(seed)
    times = []
    for a, b, c, d, e in space.configurations:
        product, steps = np.log2(float(a) * float(b)), {"x": 0.0, "y": 0.3, "z": 0.6, "w": 0.2}[str(e)]  # type: ignore[arg-type]
        time = 1 + (product - 6) ** 2 + 0.2 * abs(float(c) - 3) + 0.5 * float(d) + steps + 0.02 * random.random()  # type: ignore[arg-type]
        times.append(np.inf if float(c) * float(a) > 64 else time)  # type: ignore[arg-type]
    return Recording("valley", space, np.array(times), "time")


def write_cache(path: Path, recording: Recording) -> Path:
    """As Kernel Tuner's cache files."""
    cache = {}
    for at, configuration in enumerate(recording.space.configurations):
        time: Any = float(recording.times[at]) if np.isfinite(recording.times[at]) else "RuntimeFailedConfig"
        cache[",".join(map(str, configuration))] = {**recording.space.as_dict(at), "time": time, "times": [time]}
    data = {"device_name": "none", "tune_params_keys": list(recording.space.names), "objective": "time", "cache": cache}
    path.write_text(json.dumps(data))
    return path


def write_t4(path: Path, recording: Recording) -> Path:
    """As results in the T4 format."""
    results = []
    for at in range(len(recording.space)):
        time = float(recording.times[at])
        is_good = bool(np.isfinite(time))
        results.append(
            {
                "configuration": recording.space.as_dict(at),
                "invalidity": "correct" if is_good else "runtime",
                "measurements": [{"name": "time", "value": time, "unit": "s"}] if is_good else [],
            }
        )
    path.write_text(json.dumps({"schema_version": "1.0.0", "results": results}))
    return path
