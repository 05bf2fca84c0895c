"""Stored runs side by side: opened, held to be comparable, laid out for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.analysis.side_by_side import Change, Line, SharedCase, side_by_side
from kvbench.analysis.sides import all_defaults, chosen_metrics, read_side
from kvbench.errors import DataError, UsageError
from kvbench.report.cells import metric_cell, metric_label
from kvbench.report.ci.context import percent
from kvbench.report.ci.data import difference_records, plain_json
from kvbench.store.case_columns import METRICS
from kvbench.store.comparability import Comparability, FieldDifference, compare_manifests
from kvbench.store.run import Run, open_run
from kvbench.tabulate import MISSING

MOST_RUNS = 26
RECORD = (
    "case_id",
    "case",
    "metric",
    "unit",
    "run",
    "median",
    "min",
    "max",
    "samples",
    "change",
    "low",
    "high",
    "word",
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs A, B, C … and what they say of the cases they share."""

    runs: tuple[Run, ...]
    lines: tuple[Line, ...]
    differences: tuple[tuple[str, FieldDifference], ...]
    """(letter of the run, how it differs from A)"""
    lone: tuple[tuple[str, str], ...]
    """(letters of the runs that have it, case) of cases that some run lacks"""
    clock: str

    @property
    def letters(self) -> str:
        return "".join(chr(ord("A") + at) for at in range(len(self.runs)))


def compare_folders(
    paths: Sequence[Path], metrics: Sequence[str] = (), vary: Sequence[str] = ("git_commit",)
) -> Comparison:
    """Open, check and compare. Raises `NotComparableError` (exit 4) for runs that differ beyond `vary` and `DataError`
    (exit 5) for runs without a common case."""
    chosen_metrics(metrics)
    if not 2 <= len(paths) <= MOST_RUNS:
        raise UsageError(f"compare takes 2 to {MOST_RUNS} runs", hint="kvbench compare results/before results/after")
    runs = tuple(open_run(path) for path in paths)
    found = [compare_manifests(runs[0].manifest, run.manifest, vary=vary) for run in runs[1:]]
    for one in found:
        one.check()
    return compare_runs(runs, found, metrics)


def compare_runs(runs: Sequence[Run], found: Sequence[Comparability], metrics: Sequence[str] = ()) -> Comparison:
    """The runs side by side; `found[i]` is what the manifests of run 0 and run i + 1 have in common."""
    if not any(one.pairs for one in found):
        raise DataError("the runs have no case in common", hint="kvbench report RUN shows the cases of each")
    clock = str(runs[0].plan.get("clock", "wall"))
    sides = [read_side(run, metrics or all_defaults()) for run in runs]
    shared, lone = _cases(runs, found)
    lines = side_by_side(shared, sides, metrics, is_exact=clock == "virtual")
    if not lines:
        raise DataError("no shared case has any of these metrics", hint="docs/results.md lists them all")
    letters = [chr(ord("A") + at) for at in range(len(runs))]
    differences = tuple((letters[at + 1], d) for at, one in enumerate(found) for d in one.differences)
    return Comparison(tuple(runs), tuple(lines), differences, tuple(lone), clock)


def _cases(runs: Sequence[Run], found: Sequence[Comparability]) -> tuple[list[SharedCase], list[tuple[str, str]]]:
    maps = [dict(one.pairs) for one in found]
    facts = [{case["case_id"]: case for case in run.plan["cases"]} for run in runs]
    shared, lone = [], []
    for case_id, case in facts[0].items():
        ids = (case_id, *(pairs.get(case_id) for pairs in maps))
        label = str(case.get("label") or case_id)
        has = "".join(chr(ord("A") + at) for at, one in enumerate(ids) if one is not None)
        if len(has) > 1:
            shared.append(SharedCase(ids, str(case.get("kind", "engine")), label))
        if len(has) < len(runs):
            lone.append((has, label))
    for at, one in enumerate(found):
        letter = chr(ord("B") + at)
        lone += [(letter, str(facts[at + 1][case_id].get("label") or case_id)) for case_id in one.right_only]
    return shared, lone


def cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and rows for people: every run's median and samples, then the change of each against A."""
    letters = comparison.letters
    heads = ["case", "metric", *(f"{letter}" for letter in letters)]
    heads += [head for letter in letters[1:] for head in (f"{letter} / A", "95 % interval", "so")]
    rows = []
    for line in comparison.lines:
        column = METRICS[line.metric]
        values = [f"{metric_cell(cell.median, column)} ({cell.samples})" for cell in line.cells]
        changes = [text for change in line.changes for text in _change_cells(change)]
        rows.append([line.label, metric_label(column), *values, *changes])
    return heads, rows


def _change_cells(change: Change) -> list[str]:
    known = change.low == change.low
    interval = f"[{percent(change.low)}, {percent(change.high)}]" if known else MISSING
    return [percent(change.change), interval, change.word]


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """One record per case, metric and run; numbers whole, missing ones None."""
    found = []
    for line in comparison.lines:
        none = Change(float("nan"), float("nan"), float("nan"), "")
        for at, (cell, change) in enumerate(zip(line.cells, (none, *line.changes), strict=True)):
            head = (line.case_id, line.label, line.metric, METRICS[line.metric].unit, comparison.letters[at])
            values = (*head, *cell, *change[:3], change.word or None)
            found.append(plain_json(dict(zip(RECORD, values, strict=True))))
    return found


def document(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison as one object."""
    letters = comparison.letters
    return {
        "clock": comparison.clock,
        "runs": {letter: run.run_id for letter, run in zip(letters, comparison.runs, strict=True)},
        "lines": records(comparison),
        "differences": [
            {"run": letter} | difference_records([difference])[0] for letter, difference in comparison.differences
        ],
        "only_in": [{"runs": list(has), "case": label} for has, label in comparison.lone],
    }


def notes(comparison: Comparison) -> list[str]:
    """What a reader must know besides the table."""
    told = [f"{letter}: {run.run_id}" for letter, run in zip(comparison.letters, comparison.runs, strict=True)]
    told += [f"{letter}: left out: {problem}" for letter, run in zip(comparison.letters, comparison.runs, strict=True)
             for problem in run.problems]  # fmt: skip
    told += [f"only in {', '.join(has)}: {label}" for has, label in comparison.lone]
    if comparison.clock == "virtual":
        told.append("every time here is predicted by a cost model; changes are exact")
    else:
        told.append("medians (samples); intervals are 95 % each, not of all rows together: kvbench gate judges a suite")
    return told
