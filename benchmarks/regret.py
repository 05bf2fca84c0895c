"""What following `kvbench recommend` loses: its block size against the best of an exhaustive measurement.

    python benchmarks/regret.py --measure DIR --data TRACES [--rounds 6] [--seconds 1.0]
    python benchmarks/regret.py --judge DIR [--json]

Measuring serves twelve length distributions (`regret_workloads.py`; TRACES is a folder with azure2023, mooncake, arxiv
and sharegpt8k) at block sizes 4 … 256 with tiny-llama on one CPU thread and a pool of 3 MiB, so that capacity matters.
Each distribution is an ordinary run under DIR/runs; a round takes one sample of every case of every distribution, each
distribution in a fresh process. Stopped and started again it goes on where it was.

Judging asks, for each distribution, for a block size given the runs of all others and the lengths of this one. The best
is the block size with the highest mean throughput in the first third of the rounds; it and the pick are compared in the
rounds after those, in which neither was chosen. `loses` is what the pick lost there, `counts` the same, but 0 where the
95 % interval of the paired difference holds 0. Bars: `counts` at most 2 % in 11 of 12, its median at most 0.5 %.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from regret_workloads import DISTRIBUTIONS, Distribution, write_lengths

BLOCK_SIZES = (4, 8, 16, 32, 64, 128, 256)
DEFAULT = 16
QUIET = 0.1
"""Share of a sample's time with another tenant on the core, above which it is not used"""
Rounds = dict[int, dict[int, float]]
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
redo_share = {redo_share}
[axes]
"engine.block_size" = [4, 8, 16, 32, 64, 128, 256]
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--measure", type=Path, metavar="DIR", help="measure into DIR, or go on")
    what.add_argument("--judge", type=Path, metavar="DIR", help="judge what DIR holds")
    parser.add_argument("--data", type=Path, metavar="TRACES", help="with --measure: folder of the traces")
    parser.add_argument("--rounds", type=int, default=6, help="with --measure: samples of every case")
    parser.add_argument("--seconds", type=float, default=1.0, help="with --measure: length of a sample, about")
    parser.add_argument("--redo", type=float, default=1.0, metavar="SHARE", help="of samples that may be taken again")
    parser.add_argument("--only", metavar="NAME,…", help="only these distributions")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    wanted = [d for d in DISTRIBUTIONS if options.only is None or d.name in options.only.split(",")]
    if options.judge is not None:
        return show(judge(options.judge, [of.name for of in wanted]), options.json)
    if options.data is None:
        parser.error("--measure needs --data")
    measure(options.measure, options.data, wanted, options.rounds, options.seconds, options.redo)
    means = {of.name: throughputs(options.measure, of.name) for of in wanted}
    if options.json:
        print(json.dumps(means))
        return 0
    print(f"{'output tokens/s':<16}" + "".join(f"{size:>8}" for size in BLOCK_SIZES))
    for name, found in means.items():
        print(f"{name:<16}" + "".join(f"{found[size]:>8.0f}" for size in BLOCK_SIZES))
    return 0


def measure(
    folder: Path, data: Path, distributions: Sequence[Distribution], rounds: int, seconds: float, redo_share: float
) -> None:
    """Rounds outermost, so that a slow quarter of an hour does not fall on one distribution."""
    from kvbench.spec.load import load_suite
    from kvbench.sweep.run import run_suite

    for name in ("traces", "suites", "runs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for of in distributions:
        _prepare(folder, of, data, seconds, redo_share)
    for number in range(1, rounds + 1):
        for of in distributions:
            done = run_of(folder, of.name)
            print(f"round {number} of {rounds}: {of.name}", file=sys.stderr, flush=True)
            suite = load_suite(folder / "suites" / f"{of.name}.toml")
            if done is None:
                run_suite(suite, out=folder / "runs" / of.name, repetitions=number)
            elif _samples(folder, of.name) < number:
                run_suite(suite, resume=done, repetitions=number)


def _prepare(folder: Path, of: Distribution, data: Path, seconds: float, redo_share: float) -> None:
    """The lengths and the suite of a distribution; what is there stays, or samples would not be comparable."""
    trace, suite = (folder / "traces" / f"{of.name}.csv").resolve(), folder / "suites" / f"{of.name}.toml"
    if not trace.exists():
        write_lengths(trace, of, data, seconds)
    suite.write_text(SUITE.format(name=of.name, about=of.about, trace=trace, redo_share=redo_share), encoding="utf-8")


def run_of(folder: Path, name: str) -> Path | None:
    """The run of a distribution, if it was begun."""
    found = sorted((folder / "runs" / name).glob("regret-*"))
    return found[0] if found else None


def _samples(folder: Path, name: str) -> int:
    """Complete rounds of a distribution."""
    counts = Counter(row["block_size"] for row in _rows(folder, name))
    return min(counts[size] for size in BLOCK_SIZES)


def throughputs(folder: Path, name: str) -> dict[int, float]:
    """Block size → mean output tokens per second over the quiet rounds."""
    return {size: statistics.fmean(found.values()) for size, found in rounds_of(folder, name).items() if found}


def rounds_of(folder: Path, name: str) -> dict[int, dict[int, float]]:
    """Block size → round → output tokens per second, of the samples that had their core for themselves."""
    found: dict[int, dict[int, float]] = {size: {} for size in BLOCK_SIZES}
    for row in _rows(folder, name):
        if (row["core_shared_share"] or 0.0) <= QUIET:
            found[row["block_size"]][row["sample"]] = row["output_tokens_per_s"]
    return found


def _rows(folder: Path, name: str) -> list[dict[str, Any]]:
    from kvbench.store.run import open_run

    run = run_of(folder, name)
    columns = ("block_size", "output_tokens_per_s", "core_shared_share")
    return [row for row in (open_run(run).case_values(columns) if run else []) if row["status"] == "ok"]


@dataclass(frozen=True)
class Judged:
    """One distribution: the pick and what others would have picked, each with what it loses against the best."""

    name: str
    pick: int
    verdict: str
    tied: tuple[int, ...]
    best: int
    best_tokens_per_s: float
    loses: float
    half: float | None
    """Half-width of the 95 % interval of that; None with one round"""
    thumb: int
    thumb_loses: float
    default_loses: float
    predicted_loss_of_best: float
    seconds: float
    """What the answer took"""

    @property
    def counts(self) -> float:
        is_tie = self.half is not None and abs(self.loses) <= self.half
        return 0.0 if is_tie else max(0.0, self.loses)


def judge(folder: Path, names: Sequence[str]) -> list[Judged]:
    """Every distribution that DIR has all rounds of, by the runs of all others."""
    runs = {of.name: found for of in DISTRIBUTIONS if (found := run_of(folder, of.name)) and _samples(folder, of.name)}
    return [
        _judged(folder, name, [path for other, path in runs.items() if other != name]) for name in names if name in runs
    ]


def _judged(folder: Path, name: str, others: Sequence[Path]) -> Judged:
    from kvbench.analysis.advice.sources import from_trace
    from kvbench.sweep.advice.question import Question
    from kvbench.sweep.advise import advise

    started = time.perf_counter()
    sample = from_trace(folder / "traces" / f"{name}.csv", "vidur")
    sizes = ",".join(map(str, BLOCK_SIZES))
    advice = advise(Question(sample=sample, results=tuple(others), overrides=(f"block_size={sizes}",)))
    seconds = time.perf_counter() - started
    assert advice.chosen is not None
    found = rounds_of(folder, name)
    early, late = _parted(found)
    best = max((size for size in BLOCK_SIZES if early[size]), key=lambda size: statistics.fmean(early[size].values()))
    pick, thumb = advice.chosen.settings.block_size, min(advice.thumb, BLOCK_SIZES[-1])

    def lost(size: int) -> tuple[float, float | None]:
        return _lost(late[size], late[best])

    at = {row.settings.block_size: place for place, row in enumerate(advice.rows)}
    loss = advice.decision.losses[at[best]]
    return Judged(
        name=name,
        pick=pick,
        verdict=advice.decision.verdict,
        tied=tuple(advice.rows[place].settings.block_size for place in advice.decision.tied),
        best=best,
        best_tokens_per_s=statistics.fmean((late[best] or found[best]).values()),
        loses=lost(pick)[0],
        half=lost(pick)[1],
        thumb=thumb,
        thumb_loses=lost(thumb)[0],
        default_loses=lost(DEFAULT)[0],
        predicted_loss_of_best=loss.value if loss else math.nan,
        seconds=seconds,
    )


def _parted(found: Rounds) -> tuple[Rounds, Rounds]:
    """The first third of the rounds, which chooses the best, and the rest, which confirms."""
    first = max(1, len({number for values in found.values() for number in values}) // 3)
    early = {size: {n: v for n, v in values.items() if n < first} for size, values in found.items()}
    late = {size: {n: v for n, v in values.items() if n >= first} for size, values in found.items()}
    return early, late


def _lost(picked: dict[int, float], best: dict[int, float]) -> tuple[float, float | None]:
    """Share of throughput that is lost, with the half-width of its interval: paired over the rounds that both have."""
    from scipy.stats import t

    gaps = [math.log(best[number] / picked[number]) for number in sorted(picked.keys() & best.keys())]
    if len(gaps) < 2:
        return (1 - math.exp(-gaps[0]) if gaps else 0.0), None
    half = float(t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return 1 - math.exp(-statistics.fmean(gaps)), half


def show(found: Sequence[Judged], as_json: bool) -> int:
    """The table and the summary; 1 where a bar is missed."""
    summary = {
        "distributions": len(found),
        "within_2_percent": sum(one.counts <= 0.02 for one in found),
        "within_2_percent_ties_not_counted": sum(one.loses <= 0.02 for one in found),
        "median_counts": statistics.median(one.counts for one in found),
        "median_loses": statistics.median(one.loses for one in found),
        "thumb_median_loses": statistics.median(one.thumb_loses for one in found),
        "thumb_worst": max(one.thumb_loses for one in found),
        "default_median_loses": statistics.median(one.default_loses for one in found),
        "default_worst": max(one.default_loses for one in found),
        "worst": max(one.loses for one in found),
    }
    allowed = math.ceil(len(found) * 11 / 12)
    is_met = summary["within_2_percent"] >= allowed and summary["median_counts"] <= 0.005
    if as_json:
        rows = [{**asdict(one), "counts": one.counts} for one in found]
        print(json.dumps({"summary": {**summary, "bars_met": is_met}, "distributions": rows}))
        return 0 if is_met else 1
    head = (
        "distribution",
        "pick",
        "verdict",
        "best",
        "tokens/s",
        "loses",
        "±",
        "counts",
        "thumb",
        "loses",
        "16 loses",
        "s",
    )
    print(("{:<14}" + "{:>9}" * (len(head) - 1)).format(*head))
    for one in found:
        print(
            f"{one.name:<14}{one.pick:>9}{one.verdict:>9}{one.best:>9}{one.best_tokens_per_s:>9.0f}{one.loses:>9.2%}"
            f"{'–' if one.half is None else format(one.half, '.2%'):>9}{one.counts:>9.2%}"
            f"{one.thumb:>9}{one.thumb_loses:>9.2%}{one.default_loses:>9.2%}"
            f"{one.seconds:>9.1f}"
        )
    for name, value in summary.items():
        print(
            f"{name.replace('_', ' '):<36} {value:.2%}"
            if isinstance(value, float)
            else f"{name.replace('_', ' '):<36} {value}"
        )
    print("bars met" if is_met else "a bar is missed")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
