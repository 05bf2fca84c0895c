"""Runs whose times follow planted coefficients, as if they had been measured: no tensors, and known truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from kvbench.costmodel.fitted import FittedFile, slower
from kvbench.measure.virtual_case import served_case
from kvbench.spec.load import LoadedSuite, load_suite
from kvbench.store.run import Run, open_run
from kvbench.store.run_folder import RunFolder
from kvbench.sweep.planner import make_plan
from tests.costmodel.fitted_samples import fitted_file

SUITE = """
name = "planted"
[model]
name = "tiny-llama"
[engine]
kv_memory = "1MiB"
max_context = 512
max_sequences = 6
max_batch_tokens = 128
[workload]
requests = 24
input_tokens = { kind = "lognormal", median = 40, sigma = 0.7, min = 4, max = 200 }
output_tokens = { kind = "lognormal", median = 12, sigma = 0.6, min = 3, max = 40 }
arrival = { rate = 60 }
[axes]
"engine.block_size" = [4, 16, 64]
"engine.batch_policy" = ["continuous", "chunked"]
"workload.arrival.kind" = ["all-at-once", "poisson"]
[measure]
threads = 1
"""
BLOCK_SIZES_ONLY = (
    SUITE.replace('"engine.batch_policy" = ["continuous", "chunked"]\n', "")
    .replace('"workload.arrival.kind" = ["all-at-once", "poisson"]\n', "")
    .replace("arrival = { rate = 60 }\n", "")
)
HELD_OUT = (
    SUITE.replace("[4, 16, 64]", "[8, 32]")
    .replace('["continuous", "chunked"]', '["static", "continuous"]')
    .replace("median = 40", "median = 60")
    .replace("requests = 24", "requests = 25")
)


def suite_of(folder: Path, text: str = SUITE) -> LoadedSuite:
    path = folder / "planted.toml"
    path.write_text(text)
    return load_suite(path)


def planted_run(
    folder: Path,
    text: str = SUITE,
    *,
    repetitions: int = 1,
    noise: float = 0.0,
    seed: int = 0,
    source: FittedFile | None = None,
    change: Callable[[dict[str, object]], object] | None = None,
    slowed: Mapping[int, float] | None = None,
) -> Run:
    """A run of wall-clock looks. Each sample is slower or faster as a whole by exp(noise · a normal draw); `change` is
    made to every row before it is stored. `slowed`: sample → how many times slower another tenant made it, with the
    warning that a measurement gives then."""
    source = source or fitted_file()
    plan = make_plan(suite_of(folder, text), repetitions=repetitions)
    rng = np.random.default_rng(seed)
    with RunFolder.create(folder, {**plan.to_dict(), "environment": {}}) as run:
        for digest, workload in plan.workloads.items():
            run.write_workload(digest, workload.requests)
        for sample in range(repetitions):
            for job in plan.round(sample, [case.job.case_id for case in plan.cases]):
                factor = (slowed or {}).get(sample)
                device = slower(source, math.exp(noise * rng.standard_normal()) * (factor or 1.0))
                measure, slo = plan.suite.measure, plan.suite.slo
                found = served_case(job, device, measure, slo, lambda share: None, timeout_s=60)
                found.row["attention_backend"] = "numba"
                if factor is not None:
                    found.warnings.append({"name": "core_shared", "numbers": {"share": 0.9, "limit": 0.1}})
                if change is not None:
                    change(found.row)
                run.add(found.as_sample(job, {}))
        run.seal()
        return open_run(run.path)
