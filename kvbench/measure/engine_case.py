"""An `engine` case: warm up on foreign tokens, bring the cache into its declared state, serve the workload, check."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

import kvbench_kernels
from kvbench.cache.types import Int64s
from kvbench.engine.calibration import calibrated, needs_scales
from kvbench.engine.engine import Engine
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.model import Model
from kvbench.engine.reblocking import ReblockRecord
from kvbench.engine.serve import Served, serve
from kvbench.engine.telemetry import StepRecord
from kvbench.measure.cache_state import Prepared, bring_about, check_hits
from kvbench.measure.core_speed import STEPS_EVERY_S, Probed
from kvbench.measure.job import CaseJob
from kvbench.measure.live import LiveCounters
from kvbench.measure.measured import (
    Measured,
    OnShare,
    decoding_of,
    measured,
    planned_workload,
    share_of,
)
from kvbench.measure.redo import LIMITS, Observer, Taken
from kvbench.measure.warnings import RowWarning
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import MeasureSettings, SloSettings
from kvbench.workload.build import Workload
from kvbench.workload.tokens import token_ids
from kvbench.workload.warmup import warmup_requests

OnStep = Callable[[StepRecord], None]
MAX_WARMUP_PASSES = 3
CALIBRATION_PROMPTS, CALIBRATION_TOKENS = 8, 4096
WARMUP_OUTPUT_TOKENS = 4


def measure_engine_case(
    case: CaseJob,
    model: Model,
    measure: MeasureSettings,
    slo: SloSettings,
    on_share: OnShare,
    observer: Observer | None = None,
    live: LiveCounters | None = None,
) -> Measured:
    """Serve the case's workload once, its cache in the declared state, and report everything that was seen. `live`
    hears every step while it is served.

    Raises `InternalError` when the engine's books do not add up afterwards: such numbers are not to be believed."""
    start = time.perf_counter()
    settings = EngineSettings.model_validate(case.engine)
    workload = planned_workload(case)
    scales = _calibrated(model, settings, workload)
    ready = time.perf_counter()
    engine = Engine(model, settings, max_context=case.max_context, tensor_scales=scales, tuned=case.tuned)
    set_up = time.perf_counter()
    try:
        warm_up(engine, workload, measure.warmup_requests)
        warm = time.perf_counter()
        taken = _taken(engine, workload, case, measure, on_share, observer or Observer(), live)
        attempt = taken.value
    finally:
        engine.close()
    served, prepared = attempt.served, attempt.prepared
    width = decoding_of(case).width
    found = measured(served, settings, slo, model.geometry, engine.sizes.max_context, attempt.reblocks, width)
    found.row |= {
        "attention_backend": engine.attention.name,
        "setup_s": set_up - start,
        "calibration_s": None if scales is None else ready - start,
        "calibration_tokens": None if scales is None else scales.tokens,
        "kv_scale_digest": None if scales is None else scales.digest,
        "warmup_s": warm - set_up,
        **prepared.columns(),
        "core_shared_share": attempt.core_shared_share,
        **taken.columns(sum(r.output_tokens for r in served.requests)),
    }
    found.extra |= taken.extra
    found.warnings += [warning.as_dict() for warning in (*prepared.warnings(), *taken.warnings)]
    found.tensor_scales = scales
    if engine.disk_error is not None:
        found.warnings.append(RowWarning("disk_tier_off", {"reason": engine.disk_error}).as_dict())
    if settings.reblock_to != "none" and not attempt.reblocks:
        found.status, found.error = "invalid", "the pool was never re-blocked: no room, or too few requests finished"
    check_hits(found, served, case)
    return found


@dataclass(slots=True)
class _Attempt:
    """The workload served once, and what it began with."""

    served: Served
    prepared: Prepared
    reblocks: list[ReblockRecord]
    core_shared_share: float | None
    """Of the window; None where nobody looked"""

    def disturbances(self) -> list[RowWarning]:
        if self.core_shared_share is None or self.core_shared_share <= LIMITS["core_shared"]:
            return []
        return [RowWarning("core_shared", {"share": self.core_shared_share, "limit": LIMITS["core_shared"]})]


def _taken(
    engine: Engine,
    workload: Workload,
    case: CaseJob,
    measure: MeasureSettings,
    on_share: OnShare,
    observer: Observer,
    live: LiveCounters | None,
) -> Taken[_Attempt]:
    """The workload served from its declared state, again when the machine disturbed it and the budget allows that."""
    decoding = decoding_of(case)

    def prepare() -> Prepared:
        found = bring_about(engine, workload, case, measure, decoding)
        gc.collect()
        return found

    def take(prepared: Prepared) -> _Attempt:
        on_step = share_of(workload, decoding.width, on_share, live)
        probed = None if observer.core is None else Probed(observer.core, STEPS_EVERY_S)
        if probed is not None:
            on_step = _probing(on_step, probed)
        if live is not None:
            live.begin()
        served = serve(
            engine, workload, sampling=decoding.sampling, n=decoding.n, beams=decoding.beams, on_step=on_step
        )
        if live is not None:
            live.flush()
        engine.settle()
        engine.check_invariants()
        return _Attempt(served, prepared, list(engine.reblocks), None if probed is None else probed.slow_share)

    return observer.take(take, prepare, _Attempt.disturbances)


def _probing(on_step: OnStep, probed: Probed) -> OnStep:
    def stepped(step: StepRecord) -> None:
        on_step(step)
        probed.after_call()

    return stepped


def _calibrated(model: Model, settings: EngineSettings, workload: Workload) -> TensorScales | None:
    """Static scales from foreign prompts of the workload's lengths, up to `CALIBRATION_TOKENS` together."""
    if not needs_scales(settings.kv_dtype, settings.kv_scales):
        return None
    prompts: list[Int64s] = []
    for request in warmup_requests(workload, CALIBRATION_PROMPTS):
        left = CALIBRATION_TOKENS - sum(map(len, prompts))
        if left > 0:
            prompts.append(token_ids(request.prompt, 0, model.geometry.vocab_size)[:left].astype(np.int64))
    return calibrated(model, settings.kv_dtype, settings.kv_scales, settings.kv_percentile, prompts or None)


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
