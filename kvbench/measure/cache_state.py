"""The declared state of the prefix cache: brought about before the window, checked after it. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvbench.engine.serve import serve
from kvbench.measure.warnings import RowWarning
from kvbench.workload.beforehand import requests_before

if TYPE_CHECKING:
    from kvbench.engine.loop import EngineLoop
    from kvbench.engine.serve import Served
    from kvbench.measure.job import CaseJob
    from kvbench.measure.measured import Decoding, Measured
    from kvbench.spec.suite import CacheState, MeasureSettings
    from kvbench.workload.build import Workload


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a case began with."""

    state: CacheState
    requests: int
    prepared_tokens: int
    cached_tokens: int
    has_cache: bool

    def columns(self) -> dict[str, Any]:
        if self.state == "cold":
            return {}
        return {"prepared_tokens": self.prepared_tokens, "cached_tokens_at_start": self.cached_tokens}

    def warnings(self) -> list[RowWarning]:
        """A declared state that is no other than cold."""
        if self.state == "cold" or not self.has_cache:
            return []
        if not self.requests:
            return [RowWarning("nothing_to_prime", {"state": self.state})]
        numbers = {"state": self.state, "prepared_tokens": self.prepared_tokens}
        return [] if self.cached_tokens else [RowWarning("state_not_held", numbers)]


def bring_about(
    engine: EngineLoop, workload: Workload, case: CaseJob, measure: MeasureSettings, decoding: Decoding
) -> Prepared:
    """Empty the cache, then serve what the state asks for. Counters, step numbers and the clock start anew."""
    engine.reset()
    before = requests_before(workload, case.cache_state, measure.steady_share)
    if before:
        first = replace(workload, requests=before)
        if case.cache_state == "primed":
            serve(engine, replace(first, clients=None))
        else:
            serve(engine, first, sampling=decoding.sampling, n=decoding.n, beams=decoding.beams)
        engine.recount()
    has_cache = engine.settings.prefix_cache != "none"
    tokens = sum(request.input_tokens for request in before)
    return Prepared(case.cache_state, len(before), tokens, engine.manager.stats().live_cached_tokens, has_cache)


def check_hits(found: Measured, served: Served, case: CaseJob) -> None:
    """A sample without numbers, or with hits that neither its workload nor its declared state explains, is not `ok`
    (M10, M20)."""
    hits = sum(step.prefix_cache_hits for step in served.steps)
    if not any(r.output_tokens for r in served.requests):
        found.status, found.error = "invalid", "no request produced a token"
    elif hits > case.explainable_hit_tokens:
        start = "cold" if case.cache_state == "cold" else f"declared {case.cache_state}"
        found.status = "invalid"
        found.error = (
            f"{hits} prefix-cache hit tokens from a {start} start; the workload explains {case.explainable_hit_tokens}"
        )
