"""What a case will do by a cost model: served on the virtual clock, with intervals from the errors that the model made
on cases that it had not seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.conformal import enough, half_width
from kvbench.costmodel.fitted import LEAST_SENSITIVITY, Configuration, FittedFile, slower
from kvbench.costmodel.terms import ATTENTION
from kvbench.errors import DataError
from kvbench.measure.virtual_case import served_case
from kvbench.measure.warnings import RowWarning
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import MeasureSettings, SloSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.costmodel.sources import CostSource
    from kvbench.engine.telemetry import StepRecord
    from kvbench.measure.job import CaseJob

METRICS = ("output_tokens_per_s", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")
"""What predictions are held to."""
LEVEL = 0.90
WIDER_SETTING = 0.5
"""Added to the factor of the width for every setting that no fitted run had."""
_WATCHED = ("prefix_cache", "allocator", "preemption", "offload", "cache_state")
"""Settings that cost time outside the terms; a batch policy, an order or an admission shows in the steps."""
_LARGEST = 20.0
"""No interval is wider than by exp of this: beyond it nothing is known."""
SLOWER = 1.05
"""How much step times are changed to see what follows from them."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted value with its 90 % interval; without an interval where nothing is known about errors.

    `sensitivity`: by how many per cent the value changes when all step times change by one; 1 unless it was looked
    for."""

    value: float
    low: float | None = None
    high: float | None = None
    sensitivity: float = 1.0

    def covers(self, measured: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= measured <= self.high


@dataclass(frozen=True, slots=True)
class Prediction:
    """One case. `row` holds every metric of the simulated case, `metrics` those of `METRICS` that it has."""

    case_id: str
    metrics: Mapping[str, Interval]
    warnings: tuple[RowWarning, ...]
    row: Mapping[str, Any]


def predict(
    jobs: Sequence[CaseJob],
    source: CostSource,
    *,
    measure: MeasureSettings | None = None,
    slo: SloSettings | None = None,
) -> list[Prediction]:
    """Serve each case on the virtual clock. Raises `CannotRunError` where a fitted model is of something else, and
    `DataError` for a case in which nothing finished."""
    measure, slo = measure or MeasureSettings(), slo or SloSettings()
    return [_one(job, source, measure, slo) for job in jobs]


def _one(job: CaseJob, source: CostSource, measure: MeasureSettings, slo: SloSettings) -> Prediction:
    found = served_case(job, source, measure, slo, lambda share: None, timeout_s=job.timeout_s)
    values = _values(found.row)
    if not values:
        raise DataError(f"case {job.case_id}: {found.error or 'nothing finished on the virtual clock'}")
    if not isinstance(source, FittedFile):
        plain = {name: Interval(value) for name, value in values.items()}
        return Prediction(job.case_id, plain, (RowWarning("modelled", {"by": source.label}),), found.row)
    settings = EngineSettings.model_validate(job.engine)
    factor, warnings = _outside(source, settings, str(job.cache_state), found.steps or [])
    warnings += list(_few(source, values))
    slow = _values(_slower_row(job, source, measure, slo))
    metrics = {}
    for name, value in values.items():
        sensitivity = _sensitivity(value, slow.get(name))
        half = half_width(source.scores.get(name, ()), LEVEL, source.cases_left_out)
        metrics[name] = _interval(value, half, sensitivity, factor)
    return Prediction(job.case_id, metrics, tuple(warnings), found.row)


def _values(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(row[name]) for name in METRICS if row.get(name) is not None}


def _slower_row(job: CaseJob, source: FittedFile, measure: MeasureSettings, slo: SloSettings) -> Mapping[str, Any]:
    """The case on a device that is slower by `SLOWER`; nothing where time itself is the only clock, for then every
    metric changes as step times do."""
    arrival, sessions = (job.workload or {}).get("arrival", {}), (job.workload or {}).get("sessions") or {}
    if arrival.get("kind") == "all-at-once" and sessions.get("turns", 1) == 1:
        return {}
    return served_case(job, slower(source, SLOWER), measure, slo, lambda share: None, timeout_s=job.timeout_s).row


def _sensitivity(value: float, when_slower: float | None) -> float:
    if not when_slower or value <= 0:
        return 1.0
    return abs(math.log(when_slower / value)) / math.log(SLOWER)


def _interval(value: float, half: float | None, sensitivity: float, factor: float) -> Interval:
    if half is None or value <= 0:
        return Interval(value, sensitivity=sensitivity)
    wide = math.exp(min(half * max(sensitivity, LEAST_SENSITIVITY) * factor, _LARGEST))
    return Interval(value, value / wide, value * wide, sensitivity)


def _few(source: FittedFile, values: Mapping[str, float]) -> Iterator[RowWarning]:
    unknown = [name for name in values if not source.scores.get(name)]
    if source.cases_left_out < enough(LEVEL):
        yield RowWarning("few_errors_known", {"cases": source.cases_left_out, "needed": enough(LEVEL)})
    elif unknown:
        yield RowWarning("no_errors_known", {"metrics": unknown})


def _outside(
    source: FittedFile, settings: EngineSettings, cache_state: str, steps: Sequence[StepRecord]
) -> tuple[float, list[RowWarning]]:
    """By what factor the case's interval is wider because no fitted run was like it, and the reasons."""
    fit = source.configuration(settings.kv_dtype, settings.kv_scales, settings.kv_layout)
    if fit is None:
        return 1.0, []
    factor, warnings = 1.0, []
    for name, share, reached in _beyond(fit, settings, steps):
        low, high = fit.domain[name]
        factor += share * abs(math.log(reached / (high if reached > high else max(low, 1.0)))) / math.log(2)
        warnings.append(
            RowWarning("outside_domain", {"what": name, "low": low, "high": high, "reached": reached, "share": share})
        )
    now = {**settings.model_dump(mode="json"), "cache_state": cache_state}
    for name in _WATCHED:
        seen = source.settings.get(name)
        if seen and str(now[name]) not in seen:
            factor += WIDER_SETTING
            warnings.append(RowWarning("unseen_setting", {"what": name, "value": str(now[name]), "seen": list(seen)}))
    return factor, warnings


def _beyond(
    fit: Configuration, settings: EngineSettings, steps: Sequence[StepRecord]
) -> Iterator[tuple[str, float, float]]:
    """(what, share of the predicted time, how far) for every range of the domain that the case leaves. Smaller counts
    than ever seen are between what was seen and nothing."""
    seconds = np.array([step.duration_s for step in steps])
    total = max(float(seconds.sum()), 1e-30)
    for name, values in _counts(steps).items():
        high = fit.domain[name][1] if name in fit.domain else math.inf
        if len(values) and values.max() > max(high, 1.0):
            yield name, float(seconds[values > high].sum()) / total, float(values.max())
    size, (low, high) = float(settings.block_size), fit.domain.get("block_size", (0.0, math.inf))
    if not low <= size <= high:
        yield "block_size", 1.0, size


def _counts(steps: Sequence[StepRecord]) -> dict[str, NDArray[np.float64]]:
    found = {name: np.array([getattr(step, name) for step in steps], float) for name in ("sampled_rows", *ATTENTION)}
    found["sequences"] = np.array([step.batch_size for step in steps], float)
    found["tokens"] = np.array([step.prefill_tokens + step.decode_tokens for step in steps], float)
    return found
