"""An `engine` case: warm up on foreign tokens, reset, serve the workload, check that a cold start was cold."""

from __future__ import annotations

import gc
import time
from dataclasses import replace

import kvbench_kernels
from kvbench.engine.engine import Engine
from kvbench.engine.model import Model
from kvbench.engine.serve import serve
from kvbench.measure.job import CaseJob
from kvbench.measure.measured import (
    Measured,
    OnShare,
    check_cold,
    decoding_of,
    measured,
    planned_workload,
    share_of,
)
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import MeasureSettings, SloSettings
from kvbench.workload.build import Workload
from kvbench.workload.warmup import warmup_requests

MAX_WARMUP_PASSES = 3
WARMUP_OUTPUT_TOKENS = 4


def measure_engine_case(
    case: CaseJob, model: Model, measure: MeasureSettings, slo: SloSettings, on_share: OnShare
) -> Measured:
    """Serve the case's workload once from a cold cache and report everything that was seen.

    Raises `InternalError` when the engine's books do not add up afterwards: such numbers are not to be believed."""
    start = time.perf_counter()
    settings = EngineSettings.model_validate(case.engine)
    workload = planned_workload(case)
    engine = Engine(model, settings, max_context=case.max_context)
    set_up = time.perf_counter()
    warm_up(engine, workload, measure.warmup_requests)
    engine.reset()
    gc.collect()
    warm = time.perf_counter()
    decoding = decoding_of(case)
    on_step = share_of(workload, decoding.width, on_share)
    served = serve(engine, workload, sampling=decoding.sampling, n=decoding.n, beams=decoding.beams, on_step=on_step)
    engine.check_invariants()
    found = measured(served, settings, slo)
    found.row |= {
        "attention_backend": engine.attention.name,
        "setup_s": set_up - start,
        "warmup_s": warm - set_up,
    }
    check_cold(found, served, case)
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
