"""What stored runs say: their engine cases with settings and samples, of one model on one device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.errors import CannotRunError, DataError, UsageError
from kvbench.store.run import Run, open_run

if TYPE_CHECKING:
    from kvbench.sweep.advice.question import Question

_COLUMNS = (
    "output_tokens_per_s", "ttft_p50_s", "tpot_p50_s", "kv_error_rel_rms", "device_name", "model", "clock",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownCase:
    """One engine case of a run that ended well at least once."""

    run_id: str
    case_id: str
    engine: Mapping[str, Any]
    """Its settings, resolved"""
    model: Mapping[str, Any]
    arrival: Mapping[str, Any]
    workload_digest: str
    max_context: int
    samples: Mapping[int, Mapping[str, Any]]
    """Sample → its row"""

    def values(self, metric: str) -> dict[int, float]:
        """Sample → value, those that are a number."""
        found = {number: row.get(metric) for number, row in self.samples.items()}
        return {n: float(v) for n, v in found.items() if isinstance(v, int | float) and math.isfinite(v)}


@dataclass(frozen=True, slots=True)
class Known:
    """The runs, opened, and their cases."""

    runs: tuple[Run, ...]
    cases: tuple[KnownCase, ...]
    device_name: str
    clock: str


def read_known(paths: Sequence[Path]) -> Known:
    """Open the runs and check that they are of one model, one device and one clock.

    Raises `DataError` where no engine case ended well, `CannotRunError` naming what differs."""
    runs = tuple(open_run(path) for path in paths)
    ids = [run.run_id for run in runs]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is given twice", hint="name every run once: its samples would count twice")
    cases = tuple(case for run in runs for case in _cases_of(run))
    if not cases:
        where = ", ".join(str(path) for path in paths)
        raise DataError(
            f"{where}: no engine case ended well with a throughput", hint="give runs of a sweep that served requests"
        )
    rows = [row for case in cases for row in case.samples.values()]
    device, clock = _one(rows, "device_name", "devices"), _one(rows, "clock", "clocks")
    _one(rows, "model", "models")
    return Known(runs, cases, device, clock)


def refuse_other_model(known: Known, model: str | None) -> None:
    """`CannotRunError` where the question is about another model than the runs."""
    measured = str(known.cases[0].model["name"])
    if model is not None and not _same_model(model, measured):
        raise CannotRunError(
            f"the runs are of {measured}, and the question is about {model}: what one model measured says nothing "
            "about another",
            hint="leave --results out for a modelled answer, or measure this model with kvbench sweep",
        )


def refuse_other_device(measured: str, *, gpu: str | None, tp: int) -> None:
    """`CannotRunError` where the question is about another device, or more of them, than the one that was measured."""
    if gpu is not None and not _same_device(gpu, measured):
        raise CannotRunError(
            f"the results were measured on {measured}, and the question is about {gpu}",
            hint="leave --results out for a modelled answer, or leave --gpu out",
        )
    if tp > 1:
        raise CannotRunError(
            f"the results are of one device, and --tp {tp} splits the model among {tp}",
            hint="leave --results out for a modelled answer",
        )


def settled_by_the_first(known: Known, question: Question) -> list[str]:
    """A sentence about every sample that is damaged, and about every setting that the runs vary and the question
    neither chooses nor says: candidates have that of the first case."""
    said = {*question.axes, *(text.partition("=")[0].rpartition(".")[2] for text in question.overrides)}
    first, found = known.cases[0], [problem for run in known.runs for problem in run.problems]
    for name, value in first.engine.items():
        values = sorted({str(case.engine.get(name)) for case in known.cases})
        if len(values) > 1 and name not in said and not (name == "kv_memory" and question.kv_memory_bytes is not None):
            found.append(
                f"the runs vary {name} ({', '.join(values)}): candidates have {value}, as the first case; "
                f"-a {name}=… says another"
            )
    kinds = sorted({str(case.arrival.get("kind")) for case in known.cases})
    if len(kinds) > 1 and not said & {"kind", "arrival"}:
        found.append(
            f"requests of the runs arrive in several ways ({', '.join(kinds)}): here as in the first case; "
            "-a arrival.kind=… says another"
        )
    return found


def _same_model(asked: str, measured: str) -> bool:
    from kvbench.geometry.resolve import resolve_model

    return asked == measured or resolve_model(asked) == resolve_model(measured)


def _same_device(asked: str, measured: str) -> bool:
    from kvbench.devices.lookup import known_device

    try:
        return known_device(asked).name == known_device(measured).name
    except UsageError:
        return asked == measured


def _cases_of(run: Run) -> Iterable[KnownCase]:
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for row in run.case_values(_COLUMNS):
        value = row.get("output_tokens_per_s")
        if row["status"] == "ok" and isinstance(value, float) and math.isfinite(value) and value > 0:
            rows.setdefault(row["case_id"], {})[row["sample"]] = row
    for case in run.plan["cases"]:
        if case.get("kind") != "engine" or case["case_id"] not in rows:
            continue
        yield KnownCase(
            run_id=run.run_id,
            case_id=case["case_id"],
            engine=case["engine"],
            model=case["model"],
            arrival=case["workload"]["arrival"],
            workload_digest=case["workload_digest"],
            max_context=int(case["max_context"]),
            samples=rows[case["case_id"]],
        )


def _one(rows: Iterable[Mapping[str, Any]], column: str, what: str) -> str:
    found = sorted({str(row[column]) for row in rows})
    if len(found) > 1:
        raise CannotRunError(
            f"the runs are of different {what}: {', '.join(found)}", hint="give runs that agree in it, or one of them"
        )
    return found[0]
