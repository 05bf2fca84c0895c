"""Every candidate served on the virtual clock, and how far apart they are once the model's known errors are counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvbench.analysis.advice.candidates import Floats, Gaps, Range, gaps_of_predictions, pooled_half
from kvbench.costmodel.fitted import FittedFile, slower
from kvbench.costmodel.sources import cost_for
from kvbench.devices.host import Host
from kvbench.errors import CannotRunError
from kvbench.measure.domain import Reach, outside
from kvbench.measure.warnings import text
from kvbench.sweep.advice.evidence import THROUGHPUT
from kvbench.sweep.advice.pools import context_of
from kvbench.sweep.advice.served import Outcome, served_by
from kvbench.sweep.intervals import SLOWER, interval_of, sensitivity_of

if TYPE_CHECKING:
    from kvbench.costmodel.cost import StepCost
    from kvbench.costmodel.sources import CostSource
    from kvbench.spec.cases import Case
    from kvbench.spec.engine import EngineSettings
    from kvbench.sweep.advice.evidence import Evidence
    from kvbench.sweep.advice.requests import Plan

REACH = 1.1
"""How far beyond the counts of the runs a step may go and still count as inside, as a factor"""
DATASHEET_HALF = 0.02
"""Smallest difference that is believed where no step was measured: an assumption, for nothing says how far off a
datasheet's roofline is between two block sizes"""
WORTH_PROCESSES = 1000
"""Requests to serve in all from which on processes of their own pay"""
COLD = "cold"
"""State of the cache as every list of requests begins"""
FARTHEST = 4.0
"""Beyond this factor nothing is predicted"""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One candidate's outcomes, one for each list of requests; or why there is none."""

    outcomes: tuple[Outcome, ...] = ()
    slower: tuple[Outcome, ...] = ()
    """The same with every step `SLOWER` as long; nothing where everything changes as steps do, or no error is known"""
    step_s: float | None = None
    """A step that decodes `step_batch` sequences, as many for every candidate, at their mean length"""
    step_batch: int = 0
    factor: float = 1.0
    """By how much its intervals are wider because the runs had no steps, or no setting, like its own"""
    refusal: str | None = None
    notes: tuple[str, ...] = ()


def predict(evidence: Evidence, settings: EngineSettings, plan: Plan) -> Prediction:
    """Serve every list of requests of the plan under these settings."""
    reason = _unknown(evidence, settings)
    if reason is not None:
        return Prediction(refusal=reason)
    context = context_of(evidence, settings)
    source = evidence.source
    reach = Reach.of(source, settings) if isinstance(source, FittedFile) else None
    try:
        cost = _cost(evidence, settings, source)
        outcomes = tuple(
            served_by(evidence.geometry, settings, cost, one.requests, one.clients, context, reach)
            for one in plan.lists
        )
    except CannotRunError as error:
        return Prediction(refusal=error.message)
    if not all(outcome.output_tokens for outcome in outcomes):
        return Prediction(refusal="none of the requests fits its pool")
    if not all(outcome.wall_s > 0 for outcome in outcomes):
        return Prediction(refusal="by the model its steps take no time")
    far, told = _farthest(evidence, settings, reach)
    if far > FARTHEST:
        return Prediction(refusal=f"{told}: too far to say anything")
    factor, warnings = (
        (1.0, []) if reach is None or not isinstance(source, FittedFile) else outside(source, settings, COLD, reach)
    )
    rejected = sum(outcome.rejected for outcome in outcomes)
    notes = (told,) * (far > REACH)
    notes += tuple(text(*warning) for warning in warnings if warning.name == "unseen_setting")
    notes += (f"{rejected} of the requests served are longer than its pool and were rejected",) * (rejected > 0)
    return Prediction(outcomes, _slower(evidence, settings, plan), factor=factor, notes=notes)


def _cost(evidence: Evidence, settings: EngineSettings, source: CostSource) -> StepCost:
    return cost_for(
        source,
        evidence.geometry,
        weight_dtype=str(settings.weight_dtype),
        kv_dtype=settings.kv_dtype,
        block_size=settings.block_size,
        kv_scales=settings.kv_scales,
        kv_layout=settings.kv_layout,
    )


def _slower(evidence: Evidence, settings: EngineSettings, plan: Plan) -> tuple[Outcome, ...]:
    """The plan on a device whose steps are `SLOWER` as long, as `kvbench fit` looks for what follows from an error."""
    source = evidence.source
    if not isinstance(source, FittedFile) or all(one.follows_steps_alone for one in plan.lists):
        return ()
    cost, context = _cost(evidence, settings, slower(source, SLOWER)), context_of(evidence, settings)
    return tuple(served_by(evidence.geometry, settings, cost, one.requests, one.clients, context) for one in plan.lists)


def with_steps(
    evidence: Evidence, settings: Sequence[EngineSettings], predictions: Sequence[Prediction], mean_length: float
) -> list[Prediction]:
    """Predictions with the time of a decode step of one and the same batch: what they all served on average."""
    active = [outcome.active_mean for p in predictions if p.refusal is None for outcome in p.outcomes]
    batch = max(1, round(float(np.mean(active)))) if active else 0
    lengths = np.full(batch, round(mean_length), dtype=np.int64)
    return [
        p
        if p.refusal is not None
        else replace(
            p, step_s=float(_cost(evidence, one, evidence.source).decode_run_s(lengths, 1)[0]), step_batch=batch
        )
        for one, p in zip(settings, predictions, strict=True)
    ]


def _unknown(evidence: Evidence, settings: EngineSettings) -> str | None:
    """Why the model says nothing about these settings."""
    source = evidence.source
    if not isinstance(source, FittedFile):
        return None
    fit = source.configuration(settings.kv_dtype, settings.kv_scales, settings.kv_layout)
    if fit is None:
        return f"no run stored K and V as {settings.kv_dtype}"
    if settings.attention not in ("auto", source.attention):
        return f"the runs have {source.attention} attention, and say nothing about {settings.attention}"
    low, high = fit.domain["block_size"]
    if not low <= settings.block_size <= high:
        return f"blocks of {settings.block_size} were never measured: the runs have {low:g} to {high:g}"
    return None


def _farthest(evidence: Evidence, settings: EngineSettings, reach: Reach | None) -> tuple[float, str]:
    """The largest factor by which a count of a step exceeds the model's domain (products of two lengths as their root),
    and a sentence about it."""
    source = evidence.source
    if not isinstance(source, FittedFile) or reach is None:
        return 1.0, ""
    fit = source.configuration(settings.kv_dtype, settings.kv_scales, settings.kv_layout)
    worst, told = 1.0, ""
    for name, largest in sorted(reach.largest.items()):
        high = fit.domain.get(name, (0.0, math.inf))[1] if fit else math.inf
        factor = largest / high if high > 0 else 1.0
        factor = math.sqrt(factor) if name == "prefill_pairs" else factor
        if factor > worst:
            worst = factor
            told = f"its steps reach {largest:,.0f} {name.replace('_', ' ')}, those of the runs {high:,.0f}"
    return worst, told


def predict_all(
    evidence: Evidence, settings: Sequence[EngineSettings], plan: Plan, mean_length: float
) -> list[Prediction]:
    """Every candidate, several at once where there are cores and enough to do."""
    return with_steps(evidence, settings, _served_all(evidence, settings, plan), mean_length)


def _served_all(evidence: Evidence, settings: Sequence[EngineSettings], plan: Plan) -> list[Prediction]:
    job = partial(_predict_one, evidence, plan)
    workers = min(Host().usable_cores(), len(settings))
    if workers < 2 or len(settings) * plan.requests < WORTH_PROCESSES:
        return [job(one) for one in settings]
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        return list(pool.map(job, settings))


def of_equal_service(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Whoever turns away more of the requests than another serves only the easier ones: its numbers are no
    recommendation."""
    turned_away = [sum(outcome.rejected for outcome in p.outcomes) for p in predictions]
    fewest = min((count for count, p in zip(turned_away, predictions, strict=True) if p.refusal is None), default=0)
    return [
        replace(p, refusal=f"its pool turns away {count} of the requests served, that of others {fewest}")
        if p.refusal is None and count > fewest
        else p
        for count, p in zip(turned_away, predictions, strict=True)
    ]


def _predict_one(evidence: Evidence, plan: Plan, settings: EngineSettings) -> Prediction:
    return predict(evidence, settings, plan)


def throughput_of(prediction: Prediction) -> float:
    """Output tokens per second over all lists of requests."""
    if prediction.refusal is not None:
        return math.nan
    wall_s = sum(outcome.wall_s for outcome in prediction.outcomes)
    return sum(outcome.output_tokens for outcome in prediction.outcomes) / wall_s


def busy_share(prediction: Prediction) -> float:
    """How much of the time steps decide: what a model gets wrong about steps shows in throughput only so far."""
    shares = [outcome.busy_share for outcome in prediction.outcomes]
    return float(np.mean(shares)) if shares else 0.0


class Errors(NamedTuple):
    """What the model gets wrong about the candidates where they were measured."""

    values: Floats
    """`[groups, n]` ln(measured / predicted) throughput: a group is a workload of a run with settings that agree in
    all but the candidates' axes. NaN where a candidate was not run in it; a block size between two that were has the
    error between theirs"""
    workloads: tuple[str, ...]
    """`[groups]`: the digest of each group's requests"""


def errors_of_candidates(evidence: Evidence, cases: Sequence[Case]) -> Errors:
    """By the runs; no group where there are none."""
    known, errors = evidence.known, evidence.errors
    if known is None or not errors:
        return Errors(np.full((0, len(cases)), np.nan), ())
    names = sorted({name for case in cases for name in case.axes})
    groups: dict[str, dict[str, float]] = {}
    sizes: dict[str, dict[str, dict[int, float]]] = {}
    workloads: dict[str, str] = {}
    for stored in known.cases:
        error = errors.get((stored.run_id, stored.case_id))
        if error is None:
            continue
        rest = {k: v for k, v in stored.engine.items() if k not in names}
        group = f"{stored.run_id} {stored.workload_digest} {sorted(rest.items(), key=str)}"
        workloads[group] = stored.workload_digest
        groups.setdefault(group, {})[_place(stored.engine, names)] = error
        others = _place(stored.engine, [name for name in names if name != "block_size"])
        sizes.setdefault(group, {}).setdefault(others, {})[int(stored.engine["block_size"])] = error
    found = np.full((len(groups), len(cases)), np.nan)
    for row, group in enumerate(groups):
        for column, case in enumerate(cases):
            assert case.engine is not None
            settings = case.engine.model_dump(mode="json")
            found[row, column] = groups[group].get(_place(settings, names), math.nan)
            if math.isnan(found[row, column]):
                others = _place(settings, [name for name in names if name != "block_size"])
                found[row, column] = _between(sizes[group].get(others, {}), case.engine.block_size)
    return Errors(found, tuple(workloads.values()))


def _place(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    return repr([(name, str(settings.get(name))) for name in names])


def _between(errors: Mapping[int, float], size: int) -> float:
    """Linear in the logarithm of the block size between the nearest two; NaN outside them."""
    below = max((known for known in errors if known < size), default=None)
    above = min((known for known in errors if known > size), default=None)
    if below is None or above is None:
        return math.nan
    share = math.log(size / below) / math.log(above / below)
    return errors[below] * (1 - share) + errors[above] * share


def gaps_of(predictions: Sequence[Prediction], errors: Errors, floor: float) -> Gaps:
    """Differences of the candidates: what the model is known to get wrong about them, what the choice of requests
    decides, and wider where a candidate lies beyond the runs."""
    busy = np.array([busy_share(p) for p in predictions])
    rates = [throughput_of(p) for p in predictions]
    gaps = gaps_of_predictions(rates, errors.values * busy, floor * float(busy.max()), errors.workloads)
    by_list = np.array([[_by_list(p, at) for p in predictions] for at in range(_lists(predictions))])
    half = gaps.half
    if len(by_list) > 1:
        half = np.hypot(half, pooled_half(by_list))
        np.fill_diagonal(half, 0.0)
    factors = np.array([p.factor for p in predictions])
    return Gaps(gaps.value, half * np.maximum(factors[:, np.newaxis], factors[np.newaxis, :]))


def _lists(predictions: Sequence[Prediction]) -> int:
    return max((len(p.outcomes) for p in predictions), default=0)


def _by_list(prediction: Prediction, at: int) -> float:
    return prediction.outcomes[at].tokens_per_s if prediction.refusal is None else math.nan


def floor_of(evidence: Evidence) -> float:
    """Half-width of a difference that no two workloads speak about: that of two independent errors of the model.
    Endless where no error is known: then nothing can be told apart. Rates of a datasheet have a fixed one."""
    if evidence.is_modelled:
        return DATASHEET_HALF
    errors = list(evidence.errors.values())
    return 2.0 * math.sqrt(2.0) * float(np.std(errors, ddof=1)) if len(errors) > 1 else math.inf


def ranges_of(prediction: Prediction, evidence: Evidence, corrections: Floats) -> dict[str, Range | None]:
    """Throughput and median latencies with 90 % intervals (`sweep/intervals.py`); `corrections` are this candidate's
    errors on other workloads. Without known errors the ends are the value."""
    own = corrections[np.isfinite(corrections)]
    shift = float(own.mean()) if len(own) else 0.0  # as the differences have it, or the two would contradict
    value, busy = throughput_of(prediction), busy_share(prediction)
    found: dict[str, Range | None] = {
        THROUGHPUT: _ranged(value * math.exp(shift * busy), evidence, THROUGHPUT, prediction.factor, busy)
    }
    for name, metric in (("ttft_s", "ttft_p50_s"), ("tpot_s", "tpot_p50_s")):
        middle = _median(prediction.outcomes, name)
        if middle is None:
            found[name] = None
            continue
        change = sensitivity_of(middle, _median(prediction.slower, name))
        found[name] = _ranged(middle * math.exp(-shift * change), evidence, metric, prediction.factor, change)
    return found


def _median(outcomes: Sequence[Outcome], name: str) -> float | None:
    """Over lists of requests."""
    values = [getattr(outcome, name) for outcome in outcomes if getattr(outcome, name) is not None]
    return float(np.median(values)) if values else None


def _ranged(value: float, evidence: Evidence, metric: str, factor: float, sensitivity: float = 1.0) -> Range:
    """By the errors that are known of this metric; of runs, by those of step times, where all cases of a workload count
    as one."""
    source = evidence.source
    scores = source.scores.get(metric, ()) if isinstance(source, FittedFile) else ()
    groups = source.cases_left_out if isinstance(source, FittedFile) and scores else None
    if not scores and evidence.known is not None:
        scores = tuple(evidence.errors.values())
        groups = len({case.workload_digest for case in evidence.known.cases})
    found = interval_of(value, scores, groups=groups, sensitivity=sensitivity, factor=factor)
    return Range(value, value if found.low is None else found.low, value if found.high is None else found.high)
