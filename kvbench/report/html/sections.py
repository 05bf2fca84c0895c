"""The parts of the page, each from words and figures that are ready; nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvbench.report.cells import metric_label, setting_cell
from kvbench.report.claims import CLAIM_HEADS, CLAIM_TITLE
from kvbench.report.html.contents import Contents, Kind
from kvbench.report.html.figure import ROWS_MOST, Figure, LeftOut, Table
from kvbench.report.html.headline import answers, badges, what_ran
from kvbench.report.html.markup import Html, el, joined, table
from kvbench.report.html.theme import DASHES, SHAPES, colour
from kvbench.report.text import case_grid, case_legend, constants
from kvbench.store.manifest import flat_fields
from kvbench.tabulate import MISSING, value_cell
from kvbench.units import format_count

_NOTES_SHOWN = 8
_LONGEST = 100
_LONGEST_TITLE = 160
_OUTLINES = {
    "circle": "M16 7a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "square": "M16 3h8v8h-8z",
    "triangle-up": "M20 2l5 9h-10z",
    "diamond": "M20 1l5 6l-5 6l-5-6z",
    "cross": "M18.5 2h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
    "triangle-down": "M20 12l5-9h-10z",
}
Charts = Mapping[tuple[str, int], Html]


def head(contents: Contents) -> Html:
    """Title, labels and the answer."""
    report = contents.report
    created = str(contents.run.plan.get("created_at") or "")
    about = " · ".join(filter(None, (f"suite {report.suite}", f"run {report.run_id}", created)))
    return el(
        "header",
        el("h1", value_cell(report.title or report.suite, limit=_LONGEST_TITLE)),
        el("p", about, class_="sub"),
        joined(el("p", badge.text, class_=f"badge {badge.tone}") for badge in badges(contents)),
        el("p", what_ran(contents)),
        el("ul", *(el("li", told) for told in answers(contents)), class_="answer"),
    )


def notes(contents: Contents) -> Html | None:
    """Warnings and errors in words, those of damaged samples first."""
    told = [f"left out: {problem}" for problem in contents.run.problems] + contents.report.notes
    if not told:
        return None
    items = [el("li", note) for note in told]
    rest = items[_NOTES_SHOWN:]
    more = el("details", el("summary", f"{len(rest)} more"), el("ul", *rest)) if rest else None
    return section("warnings", "Warnings and notes", el("ul", *items[:_NOTES_SHOWN]), more)


def claims(contents: Contents) -> Html | None:
    """Whether the suite's claims held in this run, with the numbers."""
    found = contents.report.claims
    rows = [(one.held, one.claim, one.because) for one in found]
    return section("claims", CLAIM_TITLE, el("div", table(Table(CLAIM_HEADS, rows)), class_="long")) if found else None


def settings(contents: Contents) -> Html:
    """What was asked: constants, axes, workloads."""
    suite = contents.run.plan["suite"]
    parts: list[Html | None] = [] if contents.report.claims else [_claim(suite)]
    for kind in contents.kinds.values():
        parts += [el("p", line) for line in constants(kind.table)]
        parts.append(_axes(kind))
    parts.append(_workloads(contents))
    return section("settings", "Settings", *parts)


def _claim(suite: Mapping[str, Any]) -> Html | None:
    claim = suite.get("claim")
    return el("p", f"The claim that the suite re-measures: {claim}") if claim else None


def _axes(kind: Kind) -> Html | None:
    if not kind.table.axes:
        return None
    values: dict[str, list[str]] = {name: [] for name in kind.table.axes}
    for line in kind.table.lines:
        for name, value in line.axes.items():
            values[name].append(setting_cell(name, value))
    rows = [[name, ", ".join(dict.fromkeys(found))] for name, found in values.items()]
    return el("div", table(Table(("axis", "values"), rows), f"Axes of the {kind.table.kind} cases"), class_="long")


def _workloads(contents: Contents) -> Html | None:
    found = contents.run.manifest["controlled"].get("workloads", {})
    heads = ("workload", "requests", "input tokens p50", "p90", "max", "output tokens p50", "p90", "max", "requests/s")
    rows = []
    for digest, facts in found.items():
        lengths = [facts.get(name) or {} for name in ("input_tokens", "output_tokens")]
        numbers = [_number(one.get(key)) for one in lengths for key in ("p50", "p90", "max")]
        rate = facts.get("requests_per_s")
        rows.append([digest[:12], _number(facts.get("requests")), *numbers, MISSING if rate is None else f"{rate:.3g}"])
    return table(Table(heads, rows, frozenset(range(1, len(heads)))), "Workloads as they were run") if rows else None


def _number(value: Any) -> str:
    return format_count(value) if isinstance(value, int | float) else MISSING


def figure(found: Figure, charts: Charts, *, is_static: bool) -> Html:
    """Charts side by side where there is room, and the same numbers as a table. The first one carries the words for
    all."""
    plots = [
        el(
            "figure",
            el("figcaption", plot.title) if plot.title else None,
            el("div", charts[found.name, at], role="img", aria_label=_words(found, at)),
            class_="plot",
        )
        for at, plot in enumerate(found.plots)
    ]
    return section(
        found.name,
        found.title,
        el("p", found.caption, class_="caption"),
        _legend(found.series) if len(found.series) > 1 else None,
        el("div", *plots, class_="plots static" if is_static else "plots"),
        el(
            "details", el("summary", "The same numbers as a table"), *(_table(one, found.title) for one in found.tables)
        ),
    )


def _words(found: Figure, at: int) -> str:
    return f"{found.plots[at].title or found.title}. {found.alt if at == 0 else f'{found.title}; see its table.'}"


def _table(found: Table, title: str) -> Html:
    return table(found, f"{title}: {found.title}" if found.title else title)


def left_out(found: Sequence[LeftOut]) -> Html | None:
    """What was not drawn, and why."""
    items = [el("li", f"{one.title}: {one.why}") for one in found]
    return section("left-out", "Not drawn", el("ul", *items)) if items else None


def cases(contents: Contents, most: int | None = None) -> Html:
    """The tables of `kvbench report`, every column; of more than `most` cases of a kind those that do best."""
    parts: list[Html] = []
    for kind in contents.kinds.values():
        found = case_grid(kind.table)
        right = frozenset(at for at, one in enumerate(found.heads) if one.is_metric)
        rows = found.rows
        if most is not None and len(rows) > most:
            best = {id(line) for line in kind.by_primary()[:most]}
            rows = [row for line, row in zip(kind.table.lines, rows, strict=True) if id(line) in best]
            parts.append(el("p", _shortened(kind, len(rows)), class_="caption"))
        told = table(Table([one.text for one in found.heads], rows, right), f"{kind.table.kind} cases")
        parts += [told, *(el("p", line, class_="caption") for line in case_legend(kind.table, found))]
    return section("cases", "All cases", *parts)


def _shortened(kind: Kind, shown: int) -> str:
    every = len(kind.table.lines)
    return (
        f"{shown} of {every} cases, those with the best {metric_label(kind.primary)}, so that this file stays small; "
        "kvbench report RUN --format csv has all of them."
    )


def manifest(contents: Contents) -> Html:
    """Everything that the run controlled, and the suite's own text."""
    groups: dict[str, list[list[str]]] = {}
    for name, field, value in _fields(contents):
        groups.setdefault(name, []).append([field, value_cell(value, limit=_LONGEST)])
    parts = [
        el(
            "details",
            el("summary", f"{name}: {len(rows)} fields"),
            el("div", table(Table(("field", "value"), rows), name), class_="long"),
        )
        for name, rows in groups.items()
    ]
    text = str(contents.run.plan["suite"].get("text") or "")
    suite = el("details", el("summary", "The suite's file"), el("pre", text, tabindex=0)) if text else None
    about = "What decides a result is controlled; what is only noted is environment; volatile differs in any two runs."
    return section("manifest", "Manifest", el("p", about, class_="caption"), *parts, suite)


def _fields(contents: Contents) -> Iterator[tuple[str, str, Any]]:
    """Of many cases only how many: the file has them all."""
    cases = len(contents.run.plan["cases"])
    for name, field, value in flat_fields(contents.run.manifest):
        if field != "suite.text" and not (cases > ROWS_MOST and field.startswith("cases.")):
            yield name, field, value
    if cases > ROWS_MOST:
        yield "controlled", "cases", f"{cases} cases, each with its settings, are in the run's manifest.json"


def section(name: str, title: str, *children: Html | None) -> Html:
    return el("section", el("h2", title), *children, id=name)


def _legend(series: Sequence[str]) -> Html:
    return el("ul", *(el("li", _swatch(at), name) for at, name in enumerate(series)), class_="legend")


def _swatch(at: int) -> Html:
    """A piece of the line with its mark."""
    dash = " ".join(map(str, DASHES[at % len(DASHES)]))
    ink = colour(at)
    line = el("path", d="M0 7H40", stroke=ink, stroke_width="2", stroke_dasharray=dash if at % len(DASHES) else None)
    mark = el("path", d=_OUTLINES[SHAPES[at % len(SHAPES)]], fill=ink)
    return el("svg", line, mark, viewBox="0 0 40 14", aria_hidden="true")
