"""Trials as results in the T4 format, the interchange format of autotuners (as Kernel Tuner writes it)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvbench.tune.trial import Trial


def t4_document(trials: Iterable[Trial]) -> dict[str, Any]:
    """Times in milliseconds, `time` the median; `kvbench tune replay` reads it back."""
    return {"schema_version": "1.0.0", "results": [_result(trial) for trial in trials]}


def _result(trial: Trial) -> dict[str, Any]:
    measured = [] if trial.time_s is None else [{"name": "time", "value": trial.time_s * 1e3, "unit": "ms"}]
    return {
        "timestamp": trial.finished_at,
        "configuration": trial.configuration,
        "times": {
            "compilation_time": _ms(trial.compile_s),
            "framework": _ms(trial.trial_s),
            "search_algorithm": 0.0,
            "validation": _ms(trial.check_s),
            "runtimes": [time * 1e3 for time in trial.times],
        },
        "invalidity": trial.status,
        "correctness": int(trial.status == "correct"),
        "measurements": measured,
        "objectives": ["time"],
    }


def _ms(seconds: float | None) -> float:
    return 0.0 if seconds is None else seconds * 1e3
