"""The story of `kvbench fit`: fit stored runs, predict each case from all the others and keep the errors; hold a fitted
model to another run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from kvbench.analysis.fit import FittedRuns, fit_runs
from kvbench.analysis.slowed import at_own_speed, is_slowed
from kvbench.costmodel.fitted import FittedFile, LeftOut
from kvbench.costmodel.fitted_file import with_digest
from kvbench.errors import CannotRunError, DataError, KvbenchError, UsageError
from kvbench.measure.job import CaseJob
from kvbench.measure.virtual_case import OutOfTimeError
from kvbench.measure.warnings import RowWarning
from kvbench.paths import data_dir
from kvbench.spec.suite import MeasureSettings, SloSettings
from kvbench.store.run import Run
from kvbench.sweep.intervals import Interval
from kvbench.sweep.predict import METRICS, predict


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A case of a measured run, ready to be served again, with the medians of its metrics over its samples."""

    job: CaseJob
    label: str
    measured: dict[str, float]
    """Over the `counting` samples"""
    samples: dict[int, dict[str, float]]
    """Sample → its metrics"""
    counting: tuple[int, ...]
    """The samples that the machine did not slow; all of them where it slowed every one"""
    is_slowed: bool
    """It slowed every one"""


@dataclass(frozen=True, slots=True)
class Checked:
    """A measured case beside its prediction. `measured` are medians over `samples`, of which each is a process, as a
    prediction's interval is of one. `error` says why there is none."""

    run_id: str
    case_id: str
    label: str
    measured: dict[str, float]
    predicted: dict[str, Interval]
    warnings: tuple[RowWarning, ...] = ()
    error: str | None = None
    samples: tuple[Mapping[str, float], ...] = ()


def fit_and_check(runs: Sequence[Run], name: str) -> tuple[FittedFile, FittedRuns]:
    """The fitted model of these runs with the errors that it makes on cases it has not seen. A case that cannot be
    served on the virtual clock is fitted, has no error, and is in the notes."""
    found = fit_runs(runs, name=name)
    stored = {(run.run_id, case.job.case_id): (run, case) for run in runs for case in measured_cases(run)}
    left_out: list[LeftOut] = []
    notes = list(found.notes)
    for key, fitted in found.cases.items():
        others = found.without(key)
        try:
            left_out += [] if others is None else _left_out(others, *stored[key], fitted)
        except (CannotRunError, DataError, UsageError, OutOfTimeError) as error:
            notes.append(f"not predicted from the others: {stored[key][1].label}: {error.message}")
    file = with_digest(replace(found.file, left_out=tuple(left_out)))
    return file, replace(found, file=file, notes=tuple(notes))


def _left_out(others: FittedFile, run: Run, case: MeasuredCase, fitted: frozenset[int]) -> Iterator[LeftOut]:
    """Every sample that was fitted by itself: what is predicted is a process, and processes differ."""
    told = predict([case.job], others, **_sections(run))[0]
    for sample in sorted(fitted & case.samples.keys()):
        measured = case.samples[sample]
        known = {
            name: (measured[name], found.value, found.sensitivity)
            for name, found in told.metrics.items()
            if measured.get(name, 0.0) > 0 and found.value > 0
        }
        yield LeftOut(run.run_id, case.job.case_id, sample, case.label, known)


def check(file: FittedFile, run: Run) -> list[Checked]:
    """Every engine case of a measured run that ended ok, beside its prediction.

    Raises `UsageError` for a virtual run, for one without such cases, and for one that the model was fitted on."""
    if run.plan.get("clock") != "wall":
        raise UsageError(
            f"{run.run_id} is a virtual run: there is nothing measured to check against",
            hint="check against measured runs",
        )
    if run.run_id in file.runs:
        raise UsageError(
            f"{run.run_id} is among the runs that were fitted", hint="check against a run that the model has not seen"
        )
    cases = measured_cases(run)
    if not cases:
        raise UsageError(f"{run.run_id} has no engine case that ended ok", hint="kernel cases are not predicted")
    return [_checked(file, run, case) for case in cases]


def comparisons(checked: Sequence[Checked]) -> list[dict[str, Any]]:
    """One record for every case and metric that was both measured and predicted."""
    found = []
    for case in checked:
        for metric, told in case.predicted.items():
            measured = case.measured.get(metric)
            if measured is None or measured <= 0:
                continue
            record = {"run_id": case.run_id, "case_id": case.case_id, "label": case.label, "metric": metric}
            numbers = {"measured": measured, "predicted": told.value, "low": told.low, "high": told.high}
            error = told.value / measured - 1
            inside = [told.covers(sample[metric]) for sample in case.samples if metric in sample]
            of_samples = {"samples": len(inside), "samples_covered": sum(inside)}
            covers = {"covers": told.covers(measured), **of_samples}
            found.append({**record, **numbers, "relative_error": error, **covers})
    return found


def _checked(file: FittedFile, run: Run, case: MeasuredCase) -> Checked:
    about = (run.run_id, case.job.case_id, case.label, case.measured)
    try:
        _same_machine(file, case)
        told = predict([case.job], file, **_sections(run))[0]
    except KvbenchError as error:
        return Checked(*about, {}, error=error.message)
    slowed = (RowWarning("measured_slowed", {"samples": len(case.counting)}),) if case.is_slowed else ()
    samples = tuple(case.samples[sample] for sample in case.counting)
    return Checked(*about, dict(told.metrics), (*told.warnings, *slowed), samples=samples)


def _same_machine(file: FittedFile, case: MeasuredCase) -> None:
    columns = case.job.columns
    for name, own, other in (
        ("device", file.device.name, columns.get("device_name")),
        ("threads", file.threads, columns.get("threads")),
        ("attention backend", file.attention, columns.get("attention_backend")),
    ):
        if own != other:
            raise CannotRunError(
                f"{file.label} was fitted with {name} {own!r}, and this was measured with {other!r}",
                hint="check against a run of the same device, threads and attention backend",
            )


def measured_cases(run: Run) -> list[MeasuredCase]:
    """The engine cases of a run that ended ok."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in run.case_rows:
        if row["kind"] == "engine" and row["status"] == "ok":
            rows.setdefault(row["case_id"], []).append(row)
    planned = [case for case in run.plan["cases"] if case["case_id"] in rows]
    return [_measured(run, case, rows[case["case_id"]]) for case in planned]


def _measured(run: Run, case: dict[str, Any], rows: list[dict[str, Any]]) -> MeasuredCase:
    job = CaseJob(
        case_id=case["case_id"],
        sample=0,
        kind="engine",
        fingerprint=case["fingerprint"],
        columns=rows[0],
        model=case["model"],
        engine=case["engine"],
        workload=case["workload"],
        max_context=case["max_context"],
        workload_digest=case["workload_digest"],
        explainable_hit_tokens=sys.maxsize,
        cache_state=rows[0].get("cache_state") or "cold",
        requests_from=str(run.path),
    )
    samples = {int(row["sample"]): _metrics(row) for row in rows}
    counting = at_own_speed(rows)
    chosen = tuple(int(row["sample"]) for row in counting)
    found = [samples[sample] for sample in chosen]
    known = [name for name in METRICS if any(name in sample for sample in found)]
    middle = {name: float(median(one[name] for one in found if name in one)) for name in known}
    return MeasuredCase(job, str(case["label"]), middle, samples, chosen, is_slowed(counting[0]))


def _metrics(row: dict[str, Any]) -> dict[str, float]:
    return {name: float(row[name]) for name in METRICS if row.get(name) is not None}


def _sections(run: Run) -> dict[str, Any]:
    measure = MeasureSettings.model_validate(run.plan["measure"])
    return {"measure": measure, "slo": SloSettings.model_validate(run.plan["slo"])}


def default_path(name: str) -> Path:
    """Where a fitted model goes unless `--out` says otherwise."""
    return data_dir() / "fitted" / f"{name}.json"
