"""Iterations of one process are not independent: recorded launches, the first half of a process against its second.

    python benchmarks/gate_iterations.py [--json] FILE…

FILE is a cache file of Kernel Tuner (JSON, plain or gzip) that holds the single `times` of every configuration. Nothing
changed between the halves, so each difference that a test calls significant is a false one.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.gate.baselines import BASELINES


def read(path: Path) -> NDArray[np.float64]:
    """[configurations, launches] of those with the most common number of launches."""
    raw = path.read_bytes()
    rows = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)["cache"].values()
    times = [row["times"] for row in rows if isinstance(row.get("times"), list)]
    sizes = [len(one) for one in times]
    size = max(set(sizes), key=sizes.count)
    values = np.array([one for one in times if len(one) == size], dtype=np.float64)
    return values[(np.isfinite(values) & (values > 0)).all(axis=1)]


def evidence(times: NDArray[np.float64]) -> dict[str, float]:
    centred = times - times.mean(axis=1, keepdims=True)
    lag_1 = (centred[:, 1:] * centred[:, :-1]).sum(axis=1) / (centred**2).sum(axis=1)
    half = times.shape[1] // 2
    first, second = times[:, :half], times[:, half : 2 * half]
    ratio = np.exp(np.abs(np.log(np.median(second, axis=1) / np.median(first, axis=1)))) - 1.0
    called = {name: float((says(first, second) | says(second, first)).mean()) for name, says in BASELINES.items()}
    return {
        "configurations": len(times),
        "launches": times.shape[1],
        "lag_1_median": float(np.median(lag_1)),
        "lag_1_p95": float(np.quantile(lag_1, 0.95)),
        "halves_differ_p95": float(np.quantile(ratio, 0.95)),
        **called,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    found = {path.name: evidence(read(path)) for path in options.files}
    if options.json:
        print(json.dumps(found))
        return
    for name, numbers in found.items():
        print(name)
        for key, value in numbers.items():
            print(f"  {key:<20}{value:>10.4g}")


if __name__ == "__main__":
    main()
