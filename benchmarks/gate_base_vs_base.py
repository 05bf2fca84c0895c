"""Unchanged code against itself: process medians of small numba decode cases, as the series that `gate replay` reads.

    python benchmarks/gate_base_vs_base.py OUT.csv [--sessions 3] [--blocks 20]

A block is one fresh process per side, the side that runs first drawn anew for every block; the cases of a process come
in an order that is the same for both sides. A value is the median of `CALLS` timed calls after `WARM` dropped ones.
Both sides are this very code, so every difference that a rule sees is a false one.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

WARM, CALLS = 50, 400
COLUMNS = ("session", "case", "metric", "worse", "block", "side", "first", "value")
CASES = {
    "fp32 b16": {"kv_dtype": "fp32", "batch": 4, "context": 512},
    "bf16 b16": {"kv_dtype": "bf16", "batch": 4, "context": 512},
    "int8 b16": {"kv_dtype": "int8", "batch": 4, "context": 512},
    "fp32 b4": {"kv_dtype": "fp32", "batch": 4, "context": 512, "block_size": 4},
    "fp32 b16 long": {"kv_dtype": "fp32", "batch": 1, "context": 4096},
    "fp32 b16 many": {"kv_dtype": "fp32", "batch": 32, "context": 128},
}


def process(names: list[str]) -> dict[str, float]:
    """In this process: the median seconds of one decode call of each case."""
    import torch

    import kvbench_kernels
    from kvbench.engine.attention.registry import attention_backend
    from kvbench.measure.kernel_case import build
    from kvbench.spec.suite import KernelSettings

    torch.set_num_threads(1)
    kvbench_kernels.set_threads(1)
    found = {}
    for name in names:
        kernel = KernelSettings(**CASES[name])  # type: ignore[arg-type]
        setup = build(kernel, "cpu", seed=0)
        backend = attention_backend("numba", "cpu")
        backend.prepare(setup.batches[0], setup.store)
        times = []
        for _ in range(WARM + CALLS):
            start = time.perf_counter()
            backend.attend(0, setup.queries, setup.store)
            times.append(time.perf_counter() - start)
        found[name] = median(times[WARM:])
    return found


def fresh(names: list[str]) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--process", *names]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def session(name: str, blocks: int, rng: np.random.Generator) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    first = rng.permutation(np.resize(np.array(["baseline", "candidate"]), blocks))
    for block in range(blocks):
        names = [str(case) for case in rng.permutation(list(CASES))]
        for side in sorted(("baseline", "candidate"), key=lambda side: side != first[block]):
            values = fresh(names)
            for case in CASES:
                row = (name, case, "decode_s", "higher", block, side, first[block], f"{values[case]:.6e}")
                rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--first-session", type=int, default=1)
    parser.add_argument("--process", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        print(json.dumps(process(options.process)))
        return
    with open(options.out, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for number in range(options.first_session, options.first_session + options.sessions):
            writer.writerows(session(f"session-{number}", options.blocks, np.random.default_rng(number)))
            file.flush()
    print(f"{options.out}: {options.sessions} sessions of {options.blocks} blocks")


if __name__ == "__main__":
    main()
