"""Unchanged code against itself on a device: process medians of decode kernels, as the series that `gate replay` reads.
`gpu_check.py` runs it.

A block is one fresh process per side, in drawn order. Processes are started ahead and wait, with everything imported,
until it is their turn: only one at a time uses the device. Both sides are this very code.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

COLUMNS = ("session", "case", "metric", "worse", "block", "side", "first", "value")
PAIRS, AHEAD = 12, 6
_WARM, _CALLS = 10, 40
SIDES = ("baseline", "candidate")


def cases(device: str) -> dict[str, tuple[Any, ...]]:
    """Work of each case: KV dtype, block size, batch, context."""
    if device == "cpu":
        return {"fp32 b16": ("fp32", 16, 2, 256, 8, 2, 64), "int8 b16": ("int8", 16, 2, 256, 8, 2, 64)}
    return {
        "bf16 b16": ("bf16", 16, 16, 2048),
        "fp8 b16": ("fp8_e4m3", 16, 16, 2048),
        "bf16 b1": ("bf16", 1, 16, 2048),
        "bf16 one long": ("bf16", 16, 1, 16384),
    }


def process(device: str) -> None:
    """One side of one block: imports, waits for a line with the order of the cases, answers with their medians."""
    import torch
    from paged import Layer, Work

    from kvbench.engine.attention.registry import attention_backend
    from kvbench.measure.timers import timer_for

    attention_backend("auto", device)
    torch.zeros(1, device=device)
    timer, works = timer_for(device, "hot"), cases(device)
    print("ready", flush=True)
    found = {}
    for name in json.loads(sys.stdin.readline()):
        layer = Layer(Work(*works[name]), device)
        times = [timer(layer.decode).device_s for _ in range(_WARM + _CALLS)]
        found[name] = median(times[_WARM:])
    print(json.dumps(found), flush=True)


def run(device: str, pairs: int = PAIRS) -> list[tuple[object, ...]]:
    """All rows; `RuntimeError` with what a process said when one fails."""
    rng = np.random.default_rng(11)
    first = rng.permutation(np.resize(np.array(SIDES), pairs))
    turns = [(block, side) for block in range(pairs) for side in sorted(SIDES, key=lambda s: s != first[block])]
    orders = [[str(case) for case in rng.permutation(list(cases(device)))] for _ in range(pairs)]
    waiting = deque[subprocess.Popen[str]]()
    rows: list[tuple[object, ...]] = []
    ahead = AHEAD if device == "cuda" else 1
    try:
        for number, (block, side) in enumerate(turns):
            while len(waiting) < min(ahead, len(turns) - number):
                waiting.append(_started(device))
            values = _answer(waiting.popleft(), orders[block])
            for case in cases(device):
                rows.append(("gpu-check", case, "decode_s", "higher", block, side, str(first[block]), values[case]))
    finally:
        for child in waiting:
            child.kill()
            child.wait()
    return rows


def save(rows: list[tuple[object, ...]], folder: Path) -> Path:
    """Parquet, or CSV where pyarrow is not installed; `gate replay` reads both."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        path = folder / "pairs.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(rows)
        return path
    path = folder / "pairs.parquet"
    parquet.write_table(pyarrow.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))), path)
    return path


def _started(device: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, device]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _answer(child: subprocess.Popen[str], order: list[str]) -> dict[str, float]:
    out, error = child.communicate(json.dumps(order) + "\n")
    if child.returncode:
        raise RuntimeError(f"a process of the pairs exited with {child.returncode}: {error.strip()[-500:]}")
    found: dict[str, float] = json.loads(out.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    process(sys.argv[1])
