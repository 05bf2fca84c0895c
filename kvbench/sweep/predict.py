"""What a case will do by a cost model: served on the virtual clock, with intervals from the errors that the model made
on cases that it had not seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbench.analysis.conformal import enough
from kvbench.costmodel.fitted import FittedFile, slower
from kvbench.errors import DataError
from kvbench.measure.domain import Reach, outside
from kvbench.measure.virtual_case import served_case
from kvbench.measure.warnings import RowWarning
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import MeasureSettings, SloSettings
from kvbench.sweep.intervals import LEVEL, SLOWER, Interval, follows_steps_alone, interval_of, sensitivity_of

if TYPE_CHECKING:
    from kvbench.costmodel.sources import CostSource
    from kvbench.measure.job import CaseJob

METRICS = ("output_tokens_per_s", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")
"""What predictions are held to."""


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
        raise DataError(
            f"case {job.case_id}: {found.error or 'nothing finished on the virtual clock'}",
            hint="ask for fewer or shorter requests, or for more KV memory",
        )
    if not isinstance(source, FittedFile):
        plain = {name: Interval(value) for name, value in values.items()}
        return Prediction(job.case_id, plain, (RowWarning("modelled", {"by": source.label}),), found.row)
    settings = EngineSettings.model_validate(job.engine)
    reach = Reach.of(source, settings, found.steps or [])
    factor, warnings = outside(source, settings, str(job.cache_state), reach)
    warnings += list(_few(source, values))
    slow = _values(_slower_row(job, source, measure, slo))
    metrics = {
        name: interval_of(
            value,
            source.scores.get(name, ()),
            groups=source.cases_left_out,
            sensitivity=sensitivity_of(value, slow.get(name)),
            factor=factor,
        )
        for name, value in values.items()
    }
    return Prediction(job.case_id, metrics, tuple(warnings), found.row)


def _values(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(row[name]) for name in METRICS if row.get(name) is not None}


def _slower_row(job: CaseJob, source: FittedFile, measure: MeasureSettings, slo: SloSettings) -> Mapping[str, Any]:
    """The case on a device that is slower by `SLOWER`; nothing where time itself is the only clock, for then every
    metric changes as step times do."""
    workload = job.workload or {}
    if follows_steps_alone(workload.get("arrival", {}), workload.get("sessions")):
        return {}
    return served_case(job, slower(source, SLOWER), measure, slo, lambda share: None, timeout_s=job.timeout_s).row


def _few(source: FittedFile, values: Mapping[str, float]) -> Iterator[RowWarning]:
    unknown = [name for name in values if not source.scores.get(name)]
    if source.cases_left_out < enough(LEVEL):
        yield RowWarning("few_errors_known", {"cases": source.cases_left_out, "needed": enough(LEVEL)})
    elif unknown:
        yield RowWarning("no_errors_known", {"metrics": unknown})
