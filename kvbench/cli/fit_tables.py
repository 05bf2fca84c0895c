"""What `kvbench fit` prints: terms with intervals, errors on cases left out, a held-out run beside its prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.conformal import half_width
from kvbench.cli.output import Table
from kvbench.costmodel.terms import unit_of
from kvbench.measure.warnings import text
from kvbench.sweep.fitting import comparisons
from kvbench.sweep.intervals import LEVEL
from kvbench.sweep.predict import METRICS
from kvbench.units import format_seconds

if TYPE_CHECKING:
    from kvbench.analysis.fit import FittedRuns
    from kvbench.costmodel.fitted import FittedFile
    from kvbench.sweep.fitting import Checked

RECORD = ("configuration", "term", "unit", "seconds", "low_s", "high_s")
_PER_S = "output_tokens_per_s"


def terms(file: FittedFile, found: FittedRuns) -> Iterator[Table]:
    """A table of coefficients for every stored form of K and V."""
    spreads = {name: np.quantile(values, [0.05, 0.5, 0.95]) for name, values in found.residuals()}
    for fit in file.configurations:
        rows = [
            [
                name,
                format_seconds(t.value),
                f"{format_seconds(t.low)} … {format_seconds(t.high)}",
                unit_of(name, fit.knots),
            ]
            for name, t in fit.terms.items()
        ]
        low, middle, high = spreads[fit.name]
        about = f"{file.model} · K and V {fit.name} · {file.device.name} · threads {file.threads} · {file.attention}"
        footer = (
            f"{fit.steps:,} steps of {fit.samples} samples; single steps are off by {low:+.0%} … {high:+.0%} (median "
            f"{middle:+.1%})"
        )
        yield Table(about, ["term", "seconds", "90 % interval", "per"], rows, frozenset({1, 2}), footer)


def errors(file: FittedFile) -> Table:
    """Errors on cases that were left out of the fit."""
    rows = []
    for metric in METRICS:
        found = file.errors.get(metric, ())
        half = half_width(file.scores.get(metric, ()), LEVEL, file.cases_left_out)
        if half is not None:
            sizes, signed = [abs(error) for error in found], f"{math.expm1(median(found)):+.1%}"
            shares = [_share(median(sizes)), signed, _share(max(sizes)), f"± {_share(half)}"]
            rows.append([metric, str(len(found)), *shares])
    heads = ["metric", "samples", "median |error|", "median error", "largest |error|", "90 % interval"]
    note = (
        "the interval is that of a metric which changes as step times do; of others it is wider or narrower with that"
    )
    empty = "no case could be predicted from others: predictions have no intervals"
    title = "each case predicted from all the others"
    return Table(title, heads, rows, frozenset({1, 2, 3, 4, 5}), note if rows else empty)


def checks(checked: Sequence[Checked]) -> Iterator[Table]:
    """Measured beside predicted, and what it comes to."""
    if not checked:
        return
    rows = [row for case in checked for row in _rows(case)]
    heads = ["case", "metric", "measured", "predicted", "90 % interval", "error", "covers"]
    yield Table("cases that were not fitted", heads, rows, frozenset({2, 3, 4, 5}), _summary(checked))
    notes = dict.fromkeys(f"{case.label}: {text(*warning)}" for case in checked for warning in case.warnings)
    notes |= dict.fromkeys(f"{case.label}: {case.error}" for case in checked if case.error)
    if notes:
        yield Table("", ["note"], [[note] for note in notes])


def records(file: FittedFile) -> list[dict[str, Any]]:
    """The coefficients as plain rows."""
    return [
        {
            "configuration": fit.name, "term": name, "unit": unit_of(name, fit.knots), "seconds": t.value,
            "low_s": t.low, "high_s": t.high,
        }
        for fit in file.configurations
        for name, t in fit.terms.items()
    ]  # fmt: skip


def document(file: FittedFile, found: FittedRuns, checked: Sequence[Checked], path: Path) -> dict[str, Any]:
    """Everything, for machines."""
    failed = [{"label": case.label, "case_id": case.case_id, "error": case.error} for case in checked if case.error]
    told = [
        {"case_id": case.case_id, "name": warning.name, "numbers": warning.numbers}
        for case in checked
        for warning in case.warnings
    ]
    return {
        "path": str(path), "label": file.label, "digest": file.digest, "device": file.device.name, "model": file.model,
        "threads": file.threads, "attention": file.attention, "weight_dtype": file.weight_dtype, "terms": records(file),
        "errors": {metric: list(values) for metric, values in file.errors.items()}, "notes": list(found.notes),
        "checks": comparisons(checked), "not_predicted": failed, "warnings": told,
    }  # fmt: skip


def _rows(case: Checked) -> Iterator[list[str]]:
    for one in comparisons([case]):
        value = _number(one["metric"])
        interval = "–" if one["low"] is None else f"{value(one['low'])} … {value(one['high'])}"
        yield [
            case.label, one["metric"], value(one["measured"]), value(one["predicted"]), interval,
            f"{one['relative_error']:+.1%}", "–" if one["low"] is None else "yes" if one["covers"] else "no",
        ]  # fmt: skip


def _summary(checked: Sequence[Checked]) -> str:
    found = comparisons(checked)
    parts = []
    for metric in METRICS:
        sizes = [abs(one["relative_error"]) for one in found if one["metric"] == metric]
        if sizes:
            parts.append(f"{metric} {median(sizes):.1%}")
    with_interval = [one for one in found if one["low"] is not None]
    covered, samples = (sum(one[name] for one in with_interval) for name in ("samples_covered", "samples"))
    share = f"; {covered} of {samples} measured values lie in their intervals" if with_interval else ""
    return f"median |error|: {', '.join(parts)}{share}" if parts else "nothing could be compared"


def _number(metric: str) -> Any:
    return (lambda value: f"{value:,.0f}") if metric == _PER_S else format_seconds


def _share(log_ratio: float) -> str:
    return f"{math.expm1(log_ratio):.1%}"
