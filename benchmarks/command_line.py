"""What the command line costs: `kvbench --help`, and the share of `sweep smoke` outside its windows.

    python benchmarks/command_line.py [--rounds 1] [--json]

A sweep's windows are the warm-up and the measured part of every sample; the rest is process starts, imports, set-up,
numeric error, storing and the table. On a machine that has never compiled the kernels the first round compiles them
inside the warm-up windows; run it twice to see both. Bars: help ≤ 0.25 s, share ≤ 25 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import kvbench

HELP_BAR_S = 0.25
SHARE_BAR = 0.25
HELP_RUNS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="how often to run the smoke suite")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    figures = {"help_s": help_time(), "sweeps": [smoke() for _ in range(asked.rounds)]}
    print(json.dumps(figures, indent=2) if asked.json else _text(figures))


def help_time() -> float:
    """Median wall seconds of `kvbench --help` as a process."""
    times = []
    for _ in range(HELP_RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "kvbench", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return median(times)


def smoke() -> dict[str, Any]:
    """One `sweep smoke`: wall seconds, seconds inside windows, and the share outside."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "kvbench", "sweep", "smoke", "--out", folder],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wall_s = time.perf_counter() - start
        (run,) = (path for path in Path(folder).iterdir() if path.is_dir())
        cases = kvbench.open_run(run).cases
    warmup_s, measured_s = float(cases["warmup_s"].sum()), float(cases["measured_s"].sum())
    return {
        "wall_s": wall_s,
        "warmup_s": warmup_s,
        "measured_s": measured_s,
        "longest_warmup_s": float(cases["warmup_s"].max()),
        "outside_share": 1 - (warmup_s + measured_s) / wall_s,
    }


def _text(figures: dict[str, Any]) -> str:
    lines = [f"kvbench --help  {figures['help_s']:.3f} s (bar {HELP_BAR_S} s)"]
    for sweep in figures["sweeps"]:
        lines.append(
            f"sweep smoke     {sweep['wall_s']:.1f} s: warm-up {sweep['warmup_s']:.1f} s (longest "
            f"{sweep['longest_warmup_s']:.1f} s), measured {sweep['measured_s']:.1f} s, "
            f"outside {sweep['outside_share']:.1%} (bar {SHARE_BAR:.0%})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
