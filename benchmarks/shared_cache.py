"""How fast one core streams matrices that fit its own cache, the shared one, or neither, and how much that varies.

    python benchmarks/shared_cache.py [--seconds 60] [--every 1.5] [--json]

A matrix-vector product reads its matrix once. On a shared machine neighbours evict what lies in the shared cache: then
a model whose weights fit there is served at one speed or at another, no counter tells, and the loop of
`measure/core_speed.py`, which touches no memory, sees nothing. Run it beside nothing else, and beside a sweep, to learn
what engine cases of small models are worth on a machine.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import time

import numpy as np

MIB = 2**20
SIZES_MIB = (0.5, 8, 24)
PASSES = 4
"""The first of them loads the matrix again after the others evicted it, and does not count"""


def rates(seconds: float, every_s: float) -> dict[float, list[float]]:
    """Size in MiB → bytes per second of every look, median of its passes."""
    matrices = {size: np.ones((int(size * MIB) // 4 // 512, 512), np.float32) for size in SIZES_MIB}
    vector = np.ones(512, np.float32)
    found: dict[float, list[float]] = {size: [] for size in SIZES_MIB}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for size, matrix in matrices.items():
            took = [_took(matrix, vector) for _ in range(PASSES)][1:]
            found[size].append(matrix.nbytes / float(np.median(took)))
        time.sleep(every_s)
    return found


def _took(matrix: np.ndarray, vector: np.ndarray) -> float:
    start = time.perf_counter()
    matrix @ vector
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two looks")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = rates(asked.seconds, asked.every)
    if asked.json:
        print(json.dumps({"benchmark": "shared-cache", "bytes_per_s": found}))
        return
    print(f"{'matrix':>10} {'looks':>6} {'slowest':>9} {'10 %':>9} {'median':>9} {'90 %':>9} {'fastest':>9}   GB/s")
    for size, values in found.items():
        cells = "".join(f" {one / 1e9:>9.1f}" for one in np.quantile(values, [0, 0.1, 0.5, 0.9, 1]))
        print(f"{size:>6} MiB {len(values):>6}{cells}")


if __name__ == "__main__":
    main()
