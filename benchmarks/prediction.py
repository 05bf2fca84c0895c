"""How well the fitted cost model predicts cases that it has not seen: fit on one sweep, predict another, compare.

    python benchmarks/prediction.py [--threads 1] [--out FOLDER] [--quick] [--json]
    python benchmarks/prediction.py --runs FOLDER [--json]

Training: blocks of 8, 32 and 128, continuous and chunked batches, two mixes of lengths, everything at once and Poisson.
Held out: blocks of 16 and 64, static batches, a smaller step budget, other lengths, rates and seeds. Every case has 300
requests, so that its p99 exists, and is measured once: what a single process does is what is predicted. Four cases
share a process, so that both what is fitted and what is held to it come from several, in turns.

The bar: median |error| of throughput at most 5 %, of p50 and p99 TTFT and TPOT at most 10 %; 85 to 95 % of the 90 %
intervals cover. Measure on an idle machine (the sweeps say when they were disturbed): about 9 minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from kvbench.costmodel.fitted import FittedFile
from kvbench.spec.load import load_suite
from kvbench.store.run import Run, open_run
from kvbench.sweep.fitting import check, comparisons, fit_and_check
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
redo_share = 0.25
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


def measured(folder: Path, threads: int, requests: int) -> Iterator[Run]:
    """The runs, in turns."""
    for number, (kind, block_size, policy, budget) in enumerate(PROCESSES):
        engine = f'block_size = {block_size}\nbatch_policy = "{policy}"\nmax_batch_tokens = {budget}'
        path = folder / f"{number}.toml"
        path.write_text(SUITE.format(engine=engine, threads=threads, requests=requests, **kind), encoding="utf-8")
        yield run_suite(load_suite(path), out=folder)


def disturbed(runs: Sequence[Run]) -> int:
    """Samples whose row says that the machine was disturbed meanwhile."""
    return sum("not_redone" in str(row.get("warnings")) for run in runs for row in run.case_rows)


def result(file: FittedFile, training: Sequence[Run], held_out: Sequence[Run]) -> dict[str, Any]:
    """The table as one object: per metric the errors of held-out cases, and of training cases left out."""
    checked = [case for run in held_out for case in check(file, run)]
    found = comparisons(checked)
    at_once = {case.case_id for case in checked if case.predicted and case.predicted[THROUGHPUT].sensitivity == 1}
    metrics = [_line(name, bar, [one for one in found if one["metric"] == name]) for name, bar in BARS.items()]
    saturated = [one for one in found if one["metric"] == THROUGHPUT and one["case_id"] in at_once]
    metrics.append(_line(f"{THROUGHPUT}, all at once", BARS[THROUGHPUT], saturated))
    for line in metrics:
        errors = file.errors.get(line["metric"], ())
        line["median_abs_error_left_out"] = median(map(abs, errors)) if errors else None
    covered = sum(one["covers"] for one in found)
    return {
        "benchmark": "prediction", "device": file.device.name, "threads": file.threads, "model": file.model,
        "training_samples": sum(len(run.case_rows) for run in training), "held_out_cases": len(checked),
        "disturbed_samples": disturbed([*training, *held_out]), "metrics": metrics,
        "intervals": len(found), "coverage": covered / len(found) if found else None, "coverage_bar": COVERAGE,
        "not_predicted": [case.error for case in checked if case.error], "checks": found,
    }  # fmt: skip


def _line(name: str, bar: float, own: list[dict[str, Any]]) -> dict[str, Any]:
    sizes = [abs(one["relative_error"]) for one in own]
    return {
        "metric": name, "cases": len(own), "bar": bar, "median_abs_error": median(sizes) if sizes else None,
        "largest_abs_error": max(sizes, default=None), "covered": sum(one["covers"] for one in own),
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    print(f"{found['model']} on {found['device']}, {found['threads']} thread(s); ", end="")
    print(f"{found['training_samples']} samples fitted, {found['held_out_cases']} cases held out, ", end="")
    print(f"{found['disturbed_samples']} samples were disturbed")
    print(f"{'metric':33} {'cases':>5} {'median |error|':>15} {'bar':>5} {'largest':>8} {'covered':>8} {'left out':>9}")
    for one in found["metrics"]:
        if one["median_abs_error"] is None:
            continue
        seen = one["median_abs_error_left_out"]
        print(
            f"{one['metric']:33} {one['cases']:5} {one['median_abs_error']:15.1%} {one['bar']:5.0%} "
            f"{one['largest_abs_error']:8.1%} {one['covered']:>4}/{one['cases']:<3} "
            + ("–" if seen is None else f"{seen:9.1%}")
        )
    low, high = found["coverage_bar"]
    print(f"coverage of the 90 % intervals: {found['coverage']:.1%} of {found['intervals']}", end="")
    print(f" (bar {low:.0%} to {high:.0%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="keep the runs here")
    parser.add_argument("--runs", type=Path, help="a folder that an earlier --out filled: measure nothing")
    parser.add_argument("--quick", action="store_true", help="60 requests a case: no p99, a fifth of the time")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        stored = [open_run(path.parent) for path in sorted(asked.runs.glob("*/plan.json"))] if asked.runs else []
        runs = stored or list(measured(folder, asked.threads, 60 if asked.quick else 300))
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
