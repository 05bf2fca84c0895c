"""Every block size measured for twelve length distributions: what a recommendation is to be held against.

    python benchmarks/regret.py --measure DIR --data TRACES [--rounds 6] [--seconds 1.0]

Measuring serves twelve length distributions (`regret_workloads.py`; TRACES is a folder with azure2023, mooncake, arxiv
and sharegpt8k) at block sizes 4 … 256 with tiny-llama on one CPU thread and a pool of 3 MiB, so that capacity matters.
Each distribution is an ordinary run under DIR/runs; a round takes one sample of every case of every distribution, each
distribution in a fresh process. Stopped and started again it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from regret_workloads import DISTRIBUTIONS, Distribution, write_lengths

BLOCK_SIZES = (4, 8, 16, 32, 64, 128, 256)
SUITE = """
name = "regret-{name}"
title = "{about}"
claim = "A block size chosen from other lengths' runs is near the best one."
[model]
name = "tiny-llama"
[engine]
kv_memory = "3MiB"
max_sequences = 32
max_batch_tokens = 512
[workload]
source = "trace"
trace = "{trace}"
format = "vidur"
arrival = {{ kind = "all-at-once" }}
[measure]
threads = 1
tuned = false
warmup_requests = 2
[axes]
"engine.block_size" = [4, 8, 16, 32, 64, 128, 256]
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="DIR", required=True, help="measure into DIR, or go on")
    parser.add_argument("--data", type=Path, metavar="TRACES", required=True, help="folder of the traces")
    parser.add_argument("--rounds", type=int, default=6, help="samples of every case")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a sample, about")
    parser.add_argument("--only", metavar="NAME,…", help="only these distributions")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    wanted = [d for d in DISTRIBUTIONS if options.only is None or d.name in options.only.split(",")]
    measure(options.measure, options.data, wanted, options.rounds, options.seconds)
    means = {of.name: throughputs(options.measure, of.name) for of in wanted}
    if options.json:
        print(json.dumps(means))
        return 0
    print(f"{'output tokens/s':<16}" + "".join(f"{size:>8}" for size in BLOCK_SIZES))
    for name, found in means.items():
        print(f"{name:<16}" + "".join(f"{found[size]:>8.0f}" for size in BLOCK_SIZES))
    return 0


def measure(folder: Path, data: Path, distributions: Sequence[Distribution], rounds: int, seconds: float) -> None:
    """Rounds outermost, so that a slow quarter of an hour does not fall on one distribution."""
    from kvbench.spec.load import load_suite
    from kvbench.sweep.run import run_suite

    for name in ("traces", "suites", "runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for of in distributions:
        _prepare(folder, of, data, seconds)
    for number in range(1, rounds + 1):
        for of in distributions:
            done = run_of(folder, of.name)
            print(f"round {number} of {rounds}: {of.name}", file=sys.stderr, flush=True)
            suite = load_suite(folder / "suites" / f"{of.name}.toml")
            if done is None:
                run_suite(suite, out=folder / "runs" / of.name, repetitions=number)
            elif _samples(folder, of.name) < number:
                run_suite(suite, resume=done, repetitions=number)


def _prepare(folder: Path, of: Distribution, data: Path, seconds: float) -> None:
    """The lengths and the suite of a distribution; what is there stays, or samples would not be comparable."""
    trace, suite = (folder / "traces" / f"{of.name}.csv").resolve(), folder / "suites" / f"{of.name}.toml"
    if not trace.exists():
        write_lengths(trace, of, data, seconds)
    suite.write_text(SUITE.format(name=of.name, about=of.about, trace=trace), encoding="utf-8")


def run_of(folder: Path, name: str) -> Path | None:
    """The run of a distribution, if it was begun."""
    found = sorted((folder / "runs" / name).glob("regret-*"))
    return found[0] if found else None


def _samples(folder: Path, name: str) -> int:
    """Complete rounds of a distribution."""
    found = rounds_of(folder, name)
    return min(len(found.get(size, ())) for size in BLOCK_SIZES)


def throughputs(folder: Path, name: str) -> dict[int, float]:
    """Block size → mean output tokens per second over the rounds."""
    found = rounds_of(folder, name)
    return {size: statistics.fmean(found[size]) for size in BLOCK_SIZES if found.get(size)}


def rounds_of(folder: Path, name: str) -> dict[int, list[float]]:
    """Block size → output tokens per second of each round."""
    from kvbench.store.run import open_run

    run = run_of(folder, name)
    rows = open_run(run).case_values(("block_size", "output_tokens_per_s")) if run else []
    found: dict[int, list[float]] = {}
    for row in sorted(rows, key=lambda row: row["sample"]):
        if row["status"] == "ok":
            found.setdefault(row["block_size"], []).append(row["output_tokens_per_s"])
    return found


if __name__ == "__main__":
    sys.exit(main())
