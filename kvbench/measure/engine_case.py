"""An `engine` case: warm up on foreign tokens, reset, serve the workload, check that a cold start was cold."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import kvbench_kernels
from kvbench.engine.engine import Engine
from kvbench.engine.model import Model
from kvbench.engine.sampling import SamplingParams
from kvbench.engine.serve import Served, serve
from kvbench.engine.telemetry import RequestRecord, StepRecord
from kvbench.errors import DataError
from kvbench.measure.job import CaseJob
from kvbench.measure.metrics import case_metrics
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import MeasureSettings, SloSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.workload.build import Workload, build_workload
from kvbench.workload.warmup import warmup_requests

MAX_WARMUP_PASSES = 3
WARMUP_OUTPUT_TOKENS = 4
OnShare = Callable[[float], None]


@dataclass(slots=True)
class Measured:
    """What one sample brought home."""

    row: dict[str, Any]
    requests: list[RequestRecord] | None = None
    steps: list[StepRecord] | None = None
    warnings: list[dict[str, Any]] = field(default_factory=list)
    status: str = "ok"
    error: str | None = None


def measure_engine_case(
    case: CaseJob, model: Model, measure: MeasureSettings, slo: SloSettings, on_share: OnShare
) -> Measured:
    """Serve the case's workload once from a cold cache and report everything that was seen.

    Raises `InternalError` when the engine's books do not add up afterwards: such numbers are not to be believed."""
    start = time.perf_counter()
    settings = EngineSettings.model_validate(case.engine)
    workload = _the_planned_workload(case)
    engine = Engine(model, settings, max_context=case.max_context)
    set_up = time.perf_counter()
    warm_up(engine, workload, measure.warmup_requests)
    engine.reset()
    gc.collect()
    warm = time.perf_counter()
    served = serve(engine, workload, sampling=_sampling(case), on_step=_share_of(workload, on_share))
    engine.check_invariants()
    metrics, warnings = case_metrics(
        served.requests,
        served.steps,
        slo=slo,
        wall_s=served.wall_s,
        block_size=settings.block_size,
        offload=settings.offload,
    )
    row = {
        **metrics,
        "attention_backend": engine.attention.name,
        "setup_s": set_up - start,
        "warmup_s": warm - set_up,
        "measured_s": served.wall_s,
    }
    found = Measured(row, served.requests, served.steps, [warning.as_dict() for warning in warnings])
    _check(found, served, case)
    return found


def warm_up(engine: Engine, workload: Workload, count: int) -> None:
    """Serve foreign requests of the workload's lengths until no new kernel variant turns up."""
    if count == 0:
        return
    for turn in range(MAX_WARMUP_PASSES):
        requests = warmup_requests(workload, count, turn=turn, max_output_tokens=WARMUP_OUTPUT_TOKENS)
        foreign = replace(workload, requests=tuple(requests))
        before = kvbench_kernels.compiled_variants()
        serve(engine, foreign)
        engine.reset()
        if kvbench_kernels.compiled_variants() == before:
            return


def _the_planned_workload(case: CaseJob) -> Workload:
    workload = build_workload(WorkloadSettings.model_validate(case.workload), max_context=case.max_context)
    if case.workload_digest is not None and workload.digest != case.workload_digest:
        raise DataError(
            "the workload is not the one that was planned: its trace changed on disk since the sweep began",
            hint="start the sweep again",
        )
    return workload


def _sampling(case: CaseJob) -> SamplingParams:
    asked = WorkloadSettings.model_validate(case.workload).sampling
    return SamplingParams(asked.temperature, asked.top_k, asked.top_p)


def _share_of(workload: Workload, on_share: OnShare) -> Callable[[StepRecord], None]:
    """Progress by output tokens, told at most four times a second."""
    total = max(1, sum(r.input_tokens + r.output_tokens for r in workload.requests))
    done = 0
    last = time.monotonic()

    def on_step(step: StepRecord) -> None:
        nonlocal done, last
        done += step.prefill_tokens + step.decode_tokens
        now = time.monotonic()
        if now - last >= 0.25:
            last = now
            on_share(min(1.0, done / total))

    return on_step


def _check(found: Measured, served: Served, case: CaseJob) -> None:
    """A sample without numbers, or a cold one with hits that its workload cannot explain, is not `ok` (M10, M20)."""
    hits = sum(step.prefix_cache_hits for step in served.steps)
    if not any(r.output_tokens for r in served.requests):
        found.status, found.error = "invalid", "no request produced a token"
    elif hits > case.explainable_hit_tokens:
        found.status = "invalid"
        found.error = (
            f"{hits} prefix-cache hit tokens from a cold start; the workload explains {case.explainable_hit_tokens}"
        )
