"""Steps of stored runs as a fit sees them: what each sample counted, how long it took, and what all must have in
common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.slowed import is_slowed
from kvbench.costmodel.fitted import shape_digest
from kvbench.costmodel.terms import ATTENTION
from kvbench.errors import CannotRunError, DataError, UsageError
from kvbench.workload.importers.arrow_values import values_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.store.parts import Key
    from kvbench.store.run import Run

    Floats = NDArray[np.float64]

_BYTES = {
    "copy_bytes": ("copy_on_write_copies",),
    "host_bytes": ("host_promotions",),
    "disk_bytes": ("disk_promotions",),
}
"""Term → columns that count blocks"""
LONGEST_STEP_S = 1e6
_MORE_BYTES = {
    "host_bytes": ("host_offload_bytes", "swap_out_bytes", "swap_in_bytes"),
    "disk_bytes": ("disk_offload_bytes",),
}
_NEEDED = (
    "step", "t_s", "duration_s", "batch_size", "prefill_tokens", "decode_tokens", "sampled_rows", *ATTENTION,
    "kv_capacity_bytes", "kv_blocks_total",
)  # fmt: skip
_SUBJECT = ("device_name", "model", "weight_dtype_resolved", "attention_backend")
_OF_ROWS = ("kind", *_SUBJECT, "threads", "beams", "temperature", "cache_state", "warnings")
"""Columns of a case's row"""
_UNUSUAL = {"speculation": "none", "reblock_to": "none", "cuda_graphs": False}
"""Settings whose steps cost something that the terms do not count → the value without it"""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a fit is of. All runs of one fit agree in it."""

    device_name: str
    device_kind: str
    memory_bytes: int
    model: str
    geometry: str
    weight_dtype: str
    threads: int
    attention: str


@dataclass(frozen=True, slots=True)
class SampleSteps:
    """One sample: a process's steps of one case. `counts` are the columns of `terms.matrix`, `[n]` each."""

    run_id: str
    case_id: str
    sample: int
    form: tuple[str, str, str]
    """Stored form of K and V: dtype, scales, layout"""
    settings: Mapping[str, Any]
    counts: Mapping[str, Floats]
    seconds: Floats
    """`[n]` from the start of each step to that of the next one"""
    is_slowed: bool = False
    """The machine was not at its own speed meanwhile (`slowed.py`)"""

    @property
    def case(self) -> tuple[str, str]:
        return self.run_id, self.case_id


def samples_of(runs: Sequence[Run]) -> tuple[Subject, list[SampleSteps], list[str]]:
    """What the runs measured, and one line for every kind of case that was left out.

    Raises `UsageError` for virtual runs and `CannotRunError` for runs of different subjects, for those without a step
    to fit, and for those that an older kvbench wrote; `DataError` for steps that lack a count or hold what is not a
    number."""
    found: list[SampleSteps] = []
    subjects: dict[Subject, str] = {}
    notes: list[str] = []
    for run in runs:
        if run.plan.get("clock") != "wall":
            raise UsageError(f"{run.run_id} is a virtual run: its times were predicted", hint="fit measured runs")
        for subject, sample in _of_run(run, notes):
            subjects.setdefault(subject, f"{run.run_id}, case {sample.case_id}")
            found.append(sample)
    if not found:
        raise CannotRunError(
            "there is no step to fit: no engine case ended ok" + "".join(f"; {note}" for note in notes),
            hint="kernel cases have no steps; fit a run with engine cases",
        )
    _check_one(subjects)
    return next(iter(subjects)), found, list(dict.fromkeys(notes))


def _check_one(subjects: Mapping[Subject, str]) -> None:
    if len(subjects) == 1:
        return
    (one, here), (other, there) = list(subjects.items())[:2]
    differ = [name for name, value in asdict(one).items() if asdict(other)[name] != value]
    said = ", ".join(f"{name} {getattr(one, name)!r} and {getattr(other, name)!r}" for name in differ)
    raise CannotRunError(
        f"one fit is of one device, model and set of threads; here are {said} ({here}; {there})",
        hint="fit them apart",
    )


def _of_run(run: Run, notes: list[str]) -> Iterator[tuple[Subject, SampleSteps]]:
    cases = {case["case_id"]: case for case in run.plan["cases"]}
    places = {case_id: place for place, case_id in enumerate(cases)}
    rows = [row for row in run.case_values(_OF_ROWS) if row["kind"] == "engine" and row["status"] == "ok"]
    rows.sort(key=lambda row: (places[row["case_id"]], row["sample"]))
    if not rows:
        return
    steps = _by_sample(run, "steps", (*_NEEDED, *_byte_columns()))
    requests = _by_sample(run, "requests", ("arrival_s", "e2e_s"))
    for row in rows:
        key = (row["case_id"], row["sample"])
        engine = cases[row["case_id"]]["engine"]
        reason = _unusual(engine, row)
        if reason is not None:
            notes.append(f"left out: cases with {reason}")
        elif key in steps:
            counts, seconds = _columns(steps[key], requests.get(key), f"{run.run_id}, case {key[0]}, sample {key[1]}")
            form = (engine["kv_dtype"], engine["kv_scales"], engine["kv_layout"])
            settings = {**engine, "cache_state": row.get("cache_state")}
            if len(seconds):
                subject = _subject(run, cases[row["case_id"]], row)
                yield subject, SampleSteps(run.run_id, *key, form, settings, counts, seconds, is_slowed(row))


def _by_sample(run: Run, table: str, columns: Sequence[str]) -> dict[Key, dict[str, Floats]]:
    """The columns `[n]` of each sample that has any rows, NaN for what is missing."""
    import pyarrow.compute as pc

    found = run.columns_of(table, columns).combine_chunks()
    if not found.num_rows:
        return {}
    cases = pc.unique(found["case_id"])
    codes, samples = values_of(pc.index_in(found["case_id"], cases)), values_of(found["sample"])
    order = np.lexsort((samples, codes))
    codes, samples = codes[order], samples[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(codes) != 0) | (np.diff(samples) != 0)])
    values = {name: _floats(found[name])[order] for name in dict.fromkeys(columns)}
    names = cases.to_pylist()
    return {
        (names[codes[start]], int(samples[start])): {name: array[start:end] for name, array in values.items()}
        for start, end in pairwise([*starts.tolist(), len(order)])
    }


def _floats(column: Any) -> Floats:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        column = pc.fill_null(pc.cast(column, pa.float64(), safe=False), np.nan)
    return values_of(column).astype(np.float64)


def _unusual(engine: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    for name, usual in _UNUSUAL.items():
        if engine.get(name, usual) != usual:
            return f"{name} = {engine[name]}"
    return f"{row['beams']} beams" if (row.get("beams") or 1) > 1 else None


def _subject(run: Run, case: Mapping[str, Any], row: Mapping[str, Any]) -> Subject:
    said = {name: row.get(name) for name in _SUBJECT}
    missing = [name for name, value in {**said, "threads": row.get("threads")}.items() if value is None]
    if missing:
        raise DataError(
            f"{run.run_id}, case {row['case_id']}: its row does not say {', '.join(missing)}",
            hint="the run is damaged: measure it again",
        )
    return Subject(
        device_name=str(said["device_name"]),
        device_kind=str(run.plan["device"]["kind"]),
        memory_bytes=int(run.plan["device"]["memory_bytes"]),
        model=str(said["model"]),
        geometry=shape_digest(run.plan["models"][case["model"]["name"]]["geometry"]),
        weight_dtype=str(said["weight_dtype_resolved"]),
        threads=int(row["threads"]),
        attention=str(said["attention_backend"]),
    )


def _columns(
    steps: Mapping[str, Floats], requests: Mapping[str, Floats] | None, where: str
) -> tuple[dict[str, Floats], Floats]:
    """The counts and the seconds of the steps that computed something."""
    order = np.argsort(steps["step"], kind="stable")
    column = {name: _numbers(steps, name, where)[order] for name in (*_NEEDED, *_byte_columns())}
    decodes = column["decode_tokens"]
    counts = {
        "sequences": column["batch_size"],
        "prefills": column["batch_size"] - decodes,
        "tokens": column["prefill_tokens"] + decodes,
        "sampled_rows": column["sampled_rows"],
        **{name: column[name] for name in ATTENTION},
    }
    block_bytes = column["kv_capacity_bytes"] / np.maximum(column["kv_blocks_total"], 1.0)
    for term, names in _BYTES.items():
        blocks = np.sum([column[name] for name in names], axis=0)
        counts[term] = blocks * block_bytes + sum(column[name] for name in _MORE_BYTES.get(term, ()))
    seconds = _to_the_next(column["step"], column["t_s"], column["duration_s"], requests)
    kept = counts["sequences"] > 0
    if not np.all(seconds[kept] > 0):
        raise DataError(f"{where}: a step took no time", hint="the run is damaged, or its clock stood still")
    if np.any(seconds > LONGEST_STEP_S):
        raise DataError(f"{where}: a step took {seconds.max():.3g} s", hint="the run is damaged: measure it again")
    return {name: values[kept] for name, values in counts.items()}, seconds[kept]


def _byte_columns() -> tuple[str, ...]:
    return tuple(name for names in (*_BYTES.values(), *_MORE_BYTES.values()) for name in names)


def _numbers(steps: Mapping[str, Floats], name: str, where: str) -> Floats:
    column = steps[name]
    is_missing = np.isnan(column)
    if is_missing.any():
        if is_missing.all() and name in ("sampled_rows", *ATTENTION):
            raise CannotRunError(
                f"{where}: its steps do not say {name}: an older kvbench wrote them", hint="measure it again"
            )
        raise DataError(
            f"{where}: {name} is missing or not a number in some step", hint="the run is damaged: measure it again"
        )
    if not np.all(np.isfinite(column)):
        raise DataError(f"{where}: {name} is not finite in some step", hint="the run is damaged: measure it again")
    return column


def _to_the_next(numbers: Floats, starts: Floats, lengths: Floats, requests: Mapping[str, Floats] | None) -> Floats:
    """`[n]` seconds from the start of each step to that of the next one. Where nobody was in flight between the two, or
    the next one was not recorded, the usual time between steps is added to the step's own."""
    ends = starts + lengths
    gaps = np.full(len(starts), np.nan)
    gaps[:-1] = np.where(np.diff(numbers) == 1, starts[1:] - ends[:-1], np.nan)
    gaps[~_busy(ends, requests)] = np.nan
    usual = float(np.nanmedian(gaps)) if np.isfinite(gaps).any() else 0.0
    return lengths + np.maximum(np.where(np.isfinite(gaps), gaps, usual), 0.0)


def _busy(times: Floats, requests: Mapping[str, Floats] | None) -> NDArray[np.bool_]:
    """`[n]` whether some request had arrived and was not finished at these times."""
    if requests is None:
        return np.zeros(len(times), np.bool_)
    is_served = ~np.isnan(requests["e2e_s"])
    arrivals = requests["arrival_s"][is_served]
    finishes = np.sort(arrivals + requests["e2e_s"][is_served])
    in_flight = np.searchsorted(np.sort(arrivals), times, side="right") - np.searchsorted(finishes, times, side="right")
    found: NDArray[np.bool_] = in_flight > 0
    return found
