"""A report for people: a table on the terminal, or Markdown. Text from outside is escaped here and nowhere later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kvbench.report.build import CaseLine, CaseTable, Report
from kvbench.report.cells import metric_cell, metric_label, setting_cell
from kvbench.report.claims import claim_lines, claim_markdown
from kvbench.store.case_columns import METRICS
from kvbench.store.columns import Column
from kvbench.tabulate import MISSING, escape_markdown, markdown, one_line, value_cell
from kvbench.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from kvbench.report.pictures import Column as Picture
    from kvbench.report.pictures import Pictures

_BEST, _FRONT = "*", "◆"
_PADDING = 3
PREDICTED = "VIRTUAL CLOCK: every time here is predicted by a cost model; compare it with virtual numbers only"
_MAIN_METRICS = 6
_PICTURES = 100
_SPARE_AXES, _SPARE_METRICS, _SPARE_FACTS = 1000, 2000, 3000


class Head(NamedTuple):
    """A column. `rank` 0 always stays; on a narrow terminal the highest rank goes first."""

    text: str
    rank: int
    is_metric: bool = False
    is_picture: bool = False


class Grid(NamedTuple):
    """A table as text: heads, then cells, row by row."""

    heads: list[Head]
    rows: list[list[str]]


def print_report(report: Report, console: Console, pictures: Pictures | None = None) -> None:
    """Print to a rich console, in as many columns as fit; what was left out is named."""
    from rich.text import Text

    for line in heading(report):
        console.print(Text(line))
    for table in report.tables:
        columns = pictures.columns.get(table.kind, []) if pictures else []
        grid = case_grid(table, columns)
        shown, dropped = fit(grid, console.width if not table.is_chosen else None)
        for line in [*constants(table), *case_legend(table, shown, columns)]:
            console.print(Text(line))
        (_unlimited(console) if table.is_chosen else console).print(_rich_table(shown))
        if dropped:
            console.print(Text(f"left out for width: {', '.join(dropped)} (--all shows everything)"))
    if pictures and pictures.note:
        console.print(Text(one_line(pictures.note)))
    for line in claim_lines(report.claims, console.width):
        console.print(Text(line))
    for note in report.notes:
        console.print(Text(one_line(note)))


def markdown_report(report: Report) -> str:
    """The report in Markdown: every column, one table per kind of case."""
    parts = [
        f"# {escape_markdown(line)}\n" if n == 0 else f"{escape_markdown(line)}\n"
        for n, line in enumerate(heading(report))
    ]
    for table in report.tables:
        parts += [f"{escape_markdown(line)}\n" for line in constants(table)]
        parts.append(_markdown_table(case_grid(table)))
        parts += [f"{escape_markdown(line)}\n" for line in case_legend(table, case_grid(table))]
    parts += filter(None, [claim_markdown(report.claims)])
    if report.notes:
        parts.append("".join(f"- {escape_markdown(note)}\n" for note in report.notes))
    return "\n".join(parts)


def heading(report: Report) -> list[str]:
    """What this is; the suite's own title where it has one; that times are predicted where they are."""
    title = one_line(f"{report.run_id}" + (f": {report.title}" if report.title else ""))
    return [title] if report.clock == "wall" else [title, PREDICTED]


def constants(table: CaseTable) -> list[str]:
    """What all cases share, on one line."""
    facts = [_constant(name, value) for name, value in table.constants.items()]
    return [f"all {table.kind} cases: {' · '.join(facts)}"] if facts else []


def fit(grid: Grid, width: int | None) -> tuple[Grid, list[str]]:
    """The grid without the columns that do not fit `width`, and the heads of those; None: no limit."""
    from rich.cells import cell_len

    columns = list(zip((head.text for head in grid.heads), *grid.rows, strict=True))
    widths = [max(cell_len(text) for text in column) + _PADDING for column in columns]
    kept = set(range(len(widths)))
    for index in sorted(kept, key=lambda index: -grid.heads[index].rank):
        if width is None or grid.heads[index].rank == 0 or sum(widths[i] for i in kept) <= width:
            break
        kept.remove(index)
    rows = [[cell for i, cell in enumerate(row) if i in kept] for row in grid.rows]
    dropped = [head.text for i, head in enumerate(grid.heads) if i not in kept and not head.is_picture]
    return Grid([head for i, head in enumerate(grid.heads) if i in kept], rows), dropped


def case_grid(table: CaseTable, pictures: Sequence[Picture] = ()) -> Grid:
    """The table in words: axes, how the samples ended, metrics, facts that differ; every column."""
    heads: list[Head] = []
    columns: list[Callable[[CaseLine], str]] = []

    def add(text: str, rank: int, cell: Callable[[CaseLine], str], *, is_metric: bool = False) -> None:
        heads.append(Head(one_line(text), rank, is_metric))
        columns.append(cell)

    def draw(after: str | None) -> None:
        for picture in (one for one in pictures if one.after == after):
            heads.append(Head(picture.head, _PICTURES, is_picture=True))
            columns.append(partial(_picture, picture.cells))

    for n, name in enumerate(table.axes):
        rank = 0 if name in table.key_axes else _SPARE_AXES + n
        add(name, rank, partial(_axis, name))
    add("status", 0, lambda line: line.status)
    add("samples", 0, _samples)
    if table.has_pareto:
        add("front", 0, lambda line: _FRONT if line.is_pareto else "")
    for n, column in enumerate(table.metrics):
        rank = 1 + n if n < _MAIN_METRICS else _SPARE_METRICS + n
        add(metric_label(column), rank, partial(_metric, table, column), is_metric=True)
        draw(column.name)
    for n, name in enumerate(table.facts):
        add(name, _SPARE_FACTS + n, partial(_fact, name))
    draw(None)
    return Grid(heads, [[cell(line) for cell in columns] for line in table.lines])


def _axis(name: str, line: CaseLine) -> str:
    return setting_cell(name, line.axes.get(name))


def _fact(name: str, line: CaseLine) -> str:
    return setting_cell(name, line.facts.get(name))


def _metric(table: CaseTable, column: Column, line: CaseLine) -> str:
    text = metric_cell(line.value(column.name), column)
    return f"{text} {_BEST}" if (line.case_id, column.name) in table.best else text


def _picture(cells: Mapping[str, str], line: CaseLine) -> str:
    return cells.get(line.case_id, "")


def _samples(line: CaseLine) -> str:
    return str(line.samples) if line.ok_samples == line.samples else f"{line.ok_samples} of {line.samples}"


def case_legend(table: CaseTable, shown: Grid, pictures: Sequence[Picture] = ()) -> list[str]:
    """What the marks and the numbers of a table mean, on one line."""
    parts = []
    marked = [i for i, head in enumerate(shown.heads) if head.is_metric]
    if any(row[i].endswith(f" {_BEST}") for row in shown.rows for i in marked):
        parts.append(f"{_BEST} best in its column")
    if table.has_pareto:
        parts.append(f"{_FRONT} no other case has more output tokens/s at no worse TTFT p50 and TPOT p50")
    if any(line.samples > 1 for line in table.lines):
        parts.append("metrics are medians over samples, spread is their range")
    drawn = {head.text for head in shown.heads if head.is_picture}
    parts += [picture.meaning for picture in pictures if picture.head in drawn]
    return [" · ".join(parts)] if parts else []


def _constant(name: str, value: object) -> str:
    column = METRICS.get(name)
    if column is not None and isinstance(value, int | float):
        return f"{metric_label(column)} {metric_cell(value, column)}"
    if name == "kv_memory" and isinstance(value, int):
        return f"KV memory {format_bytes(value)}"
    if name.startswith("slo_") and isinstance(value, int | float):
        return f"SLO {name.removeprefix('slo_').removesuffix('_s').upper()} {format_seconds(value)}"
    return f"{name.removesuffix('_name').replace('_', ' ')} {value_cell(value)}"


def _rich_table(grid: Grid) -> object:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for index, head in enumerate(grid.heads):
        right = _is_right(grid, index)
        table.add_column(Text(head.text), justify="right" if right else "left", overflow="fold", no_wrap=head.is_metric)
    for row in zip(*(_aligned(list(column)) for column in zip(*grid.rows, strict=True)), strict=True):
        table.add_row(*(Text(cell, style="bold" if cell.endswith(f" {_BEST}") else "") for cell in row))
    return table


def _aligned(cells: list[str]) -> list[str]:
    """Room for the mark in every cell of a column that has one, so that the digits stay under each other."""
    if not any(cell.endswith(f" {_BEST}") for cell in cells):
        return cells
    return [cell if cell.endswith(f" {_BEST}") else f"{cell}  " for cell in cells]


def _unlimited(console: Console) -> Console:
    """The same console for tables that were asked for whole: the terminal may wrap them, nothing is cut off."""
    from rich.console import Console

    return Console(
        file=console.file, width=10_000, highlight=False, no_color=console.no_color, force_terminal=console.is_terminal
    )


def _is_numeric(cells: list[str]) -> bool:
    return all(cell == MISSING or cell.replace(",", "").replace(".", "").isdigit() for cell in cells)


def _markdown_table(grid: Grid) -> str:
    right = frozenset(at for at in range(len(grid.heads)) if _is_right(grid, at))
    return markdown([head.text for head in grid.heads], grid.rows, right=right) + "\n"


def _is_right(grid: Grid, at: int) -> bool:
    return grid.heads[at].is_metric or _is_numeric([row[at] for row in grid.rows])
