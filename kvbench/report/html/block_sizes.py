"""Fragmentation, capacity and concurrency against block size."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.report.build import CaseLine
from kvbench.report.cells import metric_label
from kvbench.report.html.contents import Contents
from kvbench.report.html.figure import Axis, Figure, LeftOut, Lines, Plot, Table, axis_of
from kvbench.report.html.grouped import Groups, grouped, metric_line, middle, range_text
from kvbench.store.case_columns import METRICS

TITLE = "Fragmentation and capacity against block size"
_SHARES = ("internal_share_mean", "reserved_share_mean", "external_share_mean")
_COUNTS = ("kv_capacity_tokens", "active_sequences_mean", "preemptions")


def figure(contents: Contents) -> Figure | LeftOut:
    """Shares of the pool that hold nothing, then what each block size leaves room for."""
    kind = contents.engine
    if kind is None:
        return LeftOut(TITLE, "no engine cases")
    groups = _by_size(kind.ran)
    if len(groups) < 2:
        return LeftOut(TITLE, "fewer than two block sizes among the engine cases that ended ok")
    shares = [name for name in _SHARES if _has(groups, name)]
    counts = [name for name in _COUNTS if _has(groups, name) and _varies(groups, name)]
    if not shares and not counts:
        return LeftOut(TITLE, "no case has these metrics")
    several = any(len(lines) > 1 for lines in groups.values())
    return Figure(
        name="block-size",
        title=TITLE,
        caption=(
            "Internal: allocated slots without a token; reserved: slots held for tokens that may never come; external: "
            "free memory that cannot serve the next request; each as a share of the pool, mean over time."
            + (" Medians over the cases of a block size; whiskers span them and their samples." if several else "")
        ),
        alt=_alt(groups, shares),
        plots=[*_share_plot(groups, shares), *(_count_plot(groups, name) for name in counts)],
        tables=[_table(groups, [*shares, *counts])],
        series=[metric_label(METRICS[name]) for name in shares],
    )


def _by_size(lines: Sequence[CaseLine]) -> Groups:
    def size(line: CaseLine) -> int | None:
        value = line.axes.get("block_size", line.facts.get("block_size"))
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    known = sorted((line for line in lines if size(line) is not None), key=lambda line: size(line) or 0)
    return grouped(known, lambda line: str(size(line)))


def _has(groups: Groups, metric: str) -> bool:
    found = [middle(lines, metric) for lines in groups.values()]
    return any(one is not None and one.high > 0 for one in found)


def _varies(groups: Groups, metric: str) -> bool:
    return len({one.value for lines in groups.values() if (one := middle(lines, metric))}) > 1


def _share_plot(groups: Groups, shares: Sequence[str]) -> list[Plot]:
    if not shares:
        return []
    lines = [metric_line(groups, name, "block size") for name in shares]
    y = Axis("share of the pool", "share")
    return [Lines(Axis("block size, tokens"), y, lines, list(groups), title="memory that holds nothing")]


def _count_plot(groups: Groups, metric: str) -> Lines:
    line = metric_line(groups, metric, "block size")
    title = metric_label(METRICS[metric])
    y = axis_of(METRICS[metric], title, [mark.y.value for mark in line.marks], may_be_log=False)
    return Lines(Axis("block size, tokens"), y, [line], list(groups), title=title)


def _table(groups: Groups, metrics: Sequence[str]) -> Table:
    heads = ["block size", "cases", *(metric_label(METRICS[name]) for name in metrics)]
    rows = [
        [size, str(len(lines)), *(range_text(middle(lines, name), name) for name in metrics)]
        for size, lines in groups.items()
    ]
    return Table(heads, rows, frozenset(range(len(heads))))


def _alt(groups: Groups, shares: Sequence[str]) -> str:
    sizes = list(groups)
    parts = [
        f"{metric_label(METRICS[name])} goes from {range_text(middle(groups[sizes[0]], name), name)} "
        f"to {range_text(middle(groups[sizes[-1]], name), name)}"
        for name in shares
    ]
    return f"Block sizes {sizes[0]} to {sizes[-1]}. {'; '.join(parts) or 'Nothing is lost'}."
