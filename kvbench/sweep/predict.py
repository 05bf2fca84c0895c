"""What a case will do by a cost model: served on the virtual clock, with intervals from the errors that the model made
on cases that it had not seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbench.analysis.conformal import enough, half_width
from kvbench.costmodel.fitted import LEAST_SENSITIVITY, FittedFile, slower
from kvbench.errors import DataError
from kvbench.measure.domain import outside
from kvbench.measure.virtual_case import served_case
from kvbench.measure.warnings import RowWarning
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import MeasureSettings, SloSettings

if TYPE_CHECKING:
    from kvbench.costmodel.sources import CostSource
    from kvbench.measure.job import CaseJob

METRICS = ("output_tokens_per_s", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")
"""What predictions are held to."""
LEVEL = 0.90
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
    factor, warnings = outside(source, settings, str(job.cache_state), found.steps or [])
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
