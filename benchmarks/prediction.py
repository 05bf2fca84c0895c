"""How well the fitted cost model predicts cases that it has not seen: fit on one sweep, predict another, compare.

    python benchmarks/prediction.py [--threads 1] [--rounds 3] [--out FOLDER] [--quick] [--json]
    python benchmarks/prediction.py --runs FOLDER [--json]

Training: blocks of 8, 32 and 128, continuous and chunked batches, two mixes of lengths, everything at once and Poisson.
Held out: blocks of 16 and 64, static batches, a smaller step budget, other lengths, rates and seeds. Every case has 300
requests, so that its p99 exists, and is measured once a round. Four cases share a process, and what is fitted and what
is held to it come in turns, so that a slow quarter of an hour meets both. Samples on a core that others slowed do not
count. An error is that of a case: predicted against the median of its samples. An interval is of what one process
measures, and coverage is counted over samples.

The bar: median |error| of throughput at most 5 %, of p50 and p99 TTFT and TPOT at most 10 %; 85 to 95 % of the values
inside their 90 % intervals. Measure on an idle machine: about 7 minutes a round on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median, stdev
from typing import Any

from kvbench.analysis.slowed import is_slowed
from kvbench.costmodel.fitted import FittedFile
from kvbench.spec.load import load_suite
from kvbench.store.run import Run, open_run
from kvbench.sweep.fitting import Checked, check, comparisons, fit_and_check
from kvbench.sweep.run import run_suite

THROUGHPUT = "output_tokens_per_s"
BARS = {"output_tokens_per_s": 0.05, "ttft_p50_s": 0.10, "ttft_p99_s": 0.10, "tpot_p50_s": 0.10, "tpot_p99_s": 0.10}
COVERAGE = (0.85, 0.95)

SUITE = """
name = "{name}"
[model]
name = "tiny-llama"
[engine]
kv_memory = "16MiB"
max_sequences = 16
{engine}
[workload]
requests = {requests}
arrival = {{ rate = {rate} }}
seed = {seed}
[measure]
threads = {threads}
repetitions = 1
redo_share = {redo_share}
[axes]
"workload.arrival.kind" = ["all-at-once", "poisson"]
[[zip]]
{lengths}
"""
TRAINING_LENGTHS = """
"workload.input_tokens" = [
    { kind = "lognormal", median = 60, sigma = 0.9, min = 8, max = 800 },
    { kind = "lognormal", median = 150, sigma = 0.6, min = 8, max = 600 },
]
"workload.output_tokens" = [
    { kind = "lognormal", median = 30, sigma = 0.6, min = 4, max = 128 },
    { kind = "lognormal", median = 15, sigma = 0.5, min = 3, max = 64 },
]
"""
HELD_OUT_LENGTHS = """
"workload.input_tokens" = [
    { kind = "uniform", low = 16, high = 256 },
    { kind = "lognormal", median = 90, sigma = 1.0, min = 8, max = 700 },
]
"workload.output_tokens" = [
    { kind = "uniform", low = 4, high = 40 },
    { kind = "lognormal", median = 24, sigma = 0.8, min = 3, max = 120 },
]
"""
TRAINING = {"name": "training", "lengths": TRAINING_LENGTHS, "rate": 25, "seed": 5}
HELD_OUT = {"name": "held-out", "lengths": HELD_OUT_LENGTHS, "rate": 20, "seed": 6}
PROCESSES: tuple[tuple[dict[str, Any], int, str, int], ...] = (
    (TRAINING, 8, "continuous", 512),
    (TRAINING, 128, "chunked", 512),
    (HELD_OUT, 16, "static", 512),
    (TRAINING, 32, "continuous", 512),
    (HELD_OUT, 64, "chunked", 256),
    (TRAINING, 8, "chunked", 512),
    (HELD_OUT, 64, "static", 512),
    (TRAINING, 128, "continuous", 512),
    (HELD_OUT, 16, "continuous", 512),
    (TRAINING, 32, "chunked", 512),
)
"""Kind, block size, batch policy, token budget of a step: each is a run of four cases in a process of its own."""


def measure(folder: Path, threads: int, requests: int, rounds: int, redo_share: float) -> None:
    """The runs, in turns, a sample of every case in a round; stopped and started again it goes on where it was."""
    for number in range(1, rounds + 1):
        for place, (kind, block_size, policy, budget) in enumerate(PROCESSES):
            engine = f'block_size = {block_size}\nbatch_policy = "{policy}"\nmax_batch_tokens = {budget}'
            path, own = folder / f"{place}.toml", folder / "runs" / str(place)
            about = {"engine": engine, "threads": threads, "requests": requests, "redo_share": redo_share}
            path.write_text(SUITE.format(**about, **kind), encoding="utf-8")
            begun = sorted(own.glob("*/plan.json"))
            if not begun:
                run_suite(load_suite(path), out=own, repetitions=number)
            elif len({row["sample"] for row in open_run(begun[0].parent).case_rows}) < number:
                run_suite(load_suite(path), resume=begun[0].parent, repetitions=number)


def slowed(runs: Sequence[Run]) -> int:
    """Samples on a core that others slowed: neither fitted nor held against the model."""
    return sum(is_slowed(row) for run in runs for row in run.case_rows)


def spread(checked: Sequence[Checked], metric: str) -> float | None:
    """By how much a process differs from the next one: the median over cases of the SD of ln(value)."""
    found = [[math.log(one[metric]) for one in case.samples if one.get(metric, 0.0) > 0] for case in checked]
    spreads = [stdev(values) for values in found if len(values) > 1]
    return median(spreads) if spreads else None


def result(file: FittedFile, training: Sequence[Run], held_out: Sequence[Run]) -> dict[str, Any]:
    """The table as one object: per metric the errors of held-out cases, and of training cases left out."""
    checked = [case for run in held_out for case in check(file, run)]
    found = comparisons(checked)
    at_once = {case.case_id for case in checked if case.predicted and case.predicted[THROUGHPUT].sensitivity == 1}
    metrics = [
        {**_line(name, bar, [one for one in found if one["metric"] == name]), "spread": spread(checked, name)}
        for name, bar in BARS.items()
    ]
    saturated = [one for one in found if one["metric"] == THROUGHPUT and one["case_id"] in at_once]
    metrics.append(_line(f"{THROUGHPUT}, all at once", BARS[THROUGHPUT], saturated))
    for line in metrics:
        errors = file.errors.get(line["metric"], ())
        line["median_abs_error_left_out"] = median(map(abs, errors)) if errors else None
    covered, values = (sum(one[name] for one in found) for name in ("samples_covered", "samples"))
    return {
        "benchmark": "prediction", "device": file.device.name, "threads": file.threads, "model": file.model,
        "training_samples": sum(fit.samples for fit in file.configurations), "held_out_cases": len(checked),
        "held_out_samples": sum(len(case.samples) for case in checked),
        "slowed_samples": slowed([*training, *held_out]), "metrics": metrics,
        "values": values, "coverage": covered / values if values else None, "coverage_bar": COVERAGE,
        "not_predicted": [case.error for case in checked if case.error], "checks": found,
    }  # fmt: skip


def _line(name: str, bar: float, own: list[dict[str, Any]]) -> dict[str, Any]:
    sizes = [abs(one["relative_error"]) for one in own]
    return {
        "metric": name, "cases": len(own), "bar": bar, "median_abs_error": median(sizes) if sizes else None,
        "largest_abs_error": max(sizes, default=None), "covered": sum(one["samples_covered"] for one in own),
        "values": sum(one["samples"] for one in own), "spread": None,
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    print(
        f"{found['model']} on {found['device']}, {found['threads']} thread(s): {found['training_samples']} samples ",
        end="",
    )
    print(f"fitted; {found['held_out_cases']} cases held out, {found['held_out_samples']} samples of them; ", end="")
    print(f"{found['slowed_samples']} samples on a core that others slowed do not count")
    heads = ("median |error|", "bar", "largest", "covered", "left out", "SD of a process")
    print(f"{'metric':33} {'cases':>5}" + "".join(f" {head:>15}" for head in heads))
    for one in found["metrics"]:
        if one["median_abs_error"] is None:
            continue
        shares = [one[name] for name in ("median_abs_error", "bar", "largest_abs_error")]
        covered = f"{one['covered']}/{one['values']}"
        cells = [*map(_share, shares), covered, _share(one["median_abs_error_left_out"]), _share(one["spread"])]
        print(f"{one['metric']:33} {one['cases']:5}" + "".join(f" {cell:>15}" for cell in cells))
    low, high = found["coverage_bar"]
    print(f"coverage of the 90 % intervals: {_share(found['coverage'])} of {found['values']} values ", end="")
    print(f"(bar {low:.0%} to {high:.0%})")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keep the runs here")
    parser.add_argument("--runs", type=Path, help="a folder that an earlier --out filled: measure nothing")
    parser.add_argument("--rounds", type=int, default=3, help="samples of every case, each in a process of its own")
    parser.add_argument("--redo", type=float, default=1.0, metavar="SHARE", help="of samples that may be taken again")
    parser.add_argument("--quick", action="store_true", help="60 requests a case: no p99, a fifth of the time")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if asked.runs is None:
            measure(folder, asked.threads, 60 if asked.quick else 300, asked.rounds, asked.redo)
        runs = [open_run(path.parent) for path in sorted((asked.runs or folder).glob("runs/*/*/plan.json"))]
        training = [run for run in runs if run.plan["suite"]["name"] == TRAINING["name"]]
        held_out = [run for run in runs if run.plan["suite"]["name"] == HELD_OUT["name"]]
        file, _ = fit_and_check(training, "prediction")
        found = result(file, training, held_out)
    if asked.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
