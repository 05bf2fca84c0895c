"""The description of a workload as text for people, Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kvbench import tabulate
from kvbench.units import format_count, format_seconds

_BAR = 32


class Part(NamedTuple):
    """One of the tables of a description; `right` are its columns of numbers."""

    header: list[str]
    rows: list[list[str]]
    right: frozenset[int] = frozenset()


def as_json(described: list[dict[str, Any]]) -> str:
    """One object, or a list where a suite has several workloads."""
    return tabulate.as_json(described[0] if len(described) == 1 else described)


def as_csv(described: list[dict[str, Any]]) -> str:
    """`workload,name,value`: every number under its dotted name."""
    rows = [(number, *fact) for number, facts in enumerate(described) for fact in _flat(facts)]
    return tabulate.comma_separated(["workload", "name", "value"], rows)


def as_markdown(described: list[dict[str, Any]]) -> str:
    """Headings and pipe tables; histograms only as their counts."""
    return "\n\n".join(_markdown(facts) for facts in described)


def as_table(described: list[dict[str, Any]]) -> str:
    """Aligned columns and small histograms."""
    return "\n\n\n".join(_text(facts) for facts in described)


FORMATS = {"table": as_table, "json": as_json, "csv": as_csv, "md": as_markdown}


def _text(facts: dict[str, Any]) -> str:
    parts = [tabulate.aligned(part.header, part.rows, right=part.right) for part in _parts(facts)]
    bars = [f"{name}\n{_bars(facts['histograms'][name])}" for name in ("input_tokens", "output_tokens")]
    notes = [f"note: {tabulate.one_line(note)}" for note in _notes(facts)]
    return "\n\n".join([*parts, *bars, *(["\n".join(notes)] if notes else [])])


def _markdown(facts: dict[str, Any]) -> str:
    parts = [tabulate.markdown(part.header, part.rows, right=part.right) for part in _parts(facts)]
    notes = "\n".join(f"* {tabulate.escape_markdown(note)}" for note in _notes(facts))
    return "\n\n".join([*parts, *([notes] if notes else [])])


def _parts(facts: dict[str, Any]) -> list[Part]:
    return [_overview(facts), _lengths(facts), _block_sizes(facts)]


def _overview(facts: dict[str, Any]) -> Part:
    report, arrivals, sharing = facts["import"], facts["arrivals"], facts["sharing"]
    dropped = "; ".join(f"{count:,} {reason}" for reason, count in report["dropped"].items())
    rows = [
        ["source", f"{report['source']} ({report['format']})"],
        ["sha256", report["sha256"] or "–"],
        ["digest", facts["digest"]],
        ["rows read", format_count(report["rows_read"])],
        ["rows kept", format_count(report["rows_kept"])],
        ["rows dropped", dropped or "0"],
        ["clipped", f"{report['clipped_inputs']:,} prompts, {report['clipped_outputs']:,} outputs"],
        ["scaled", f"tokens × {report['scale_tokens']}, time × {report['scale_time']:g}"],
        ["requests", _requests(facts)],
        ["duration", format_seconds(arrivals["duration_s"])],
        ["rate", "–" if arrivals["rate_per_s"] is None else f"{arrivals['rate_per_s']:.4g} per second"],
        ["burstiness", "–" if arrivals["burstiness"] is None else f"{arrivals['burstiness']:.2f} (CV of gaps)"],
        ["KV tokens", f"{facts['kv_tokens']:,} if nothing were shared"],
        ["sharing", _sharing(sharing)],
    ]
    return Part(["workload", ""], rows)


def _requests(facts: dict[str, Any]) -> str:
    follow_up = facts["arrivals"]["follow_up"]
    return format_count(facts["requests"]) + (f", {follow_up:,} of them after another one" if follow_up else "")


def _sharing(sharing: dict[str, Any]) -> str:
    if sharing["kind"] == "none":
        return "none"
    text = f"{sharing['kind']}, {sharing['shared_share']:.1%} of prompt tokens seen before"
    if sharing["block_tokens"] is None:
        return text
    unique = f"{sharing['unique_blocks']:,} of {sharing['blocks']:,} blocks of {sharing['block_tokens']} unique"
    return f"{text}; {unique}"


def _lengths(facts: dict[str, Any]) -> Part:
    names = ["mean", "min", "p50", "p90", "p95", "p99", "max", "sum"]
    rows = [
        [name.removesuffix("_tokens"), *(_number(summary[key]) for key in names)]
        for name, summary in facts["lengths"].items()
    ]
    return Part(["tokens", *names], rows, frozenset(range(1, 9)))


def _block_sizes(facts: dict[str, Any]) -> Part:
    header = ["block size", "KV blocks", "tail waste", "of slots", "prompt blocks", "unique", "hits at most", "sharing"]
    rows = []
    for row in facts["block_sizes"]:
        counts = [_number(row[key]) for key in ("block_size", "kv_blocks", "tail_waste_tokens")]
        blocks = [_number(row[key]) for key in ("prompt_blocks", "unique_prompt_blocks")]
        waste, hits = f"{row['tail_waste_share']:.2%}", f"{row['hit_rate_bound']:.1%}"
        rows.append([*counts, waste, *blocks, hits, row["sharing"]])
    return Part(header, rows, frozenset(range(7)))


def _notes(facts: dict[str, Any]) -> list[str]:
    notes: list[str] = [*facts["import"]["notes"], *facts["quantiles_left_out"]]
    if any(row["sharing"] == "synthetic" for row in facts["block_sizes"]) and facts["sharing"]["kind"] == "recorded":
        notes.append(
            f"the trace records sharing in blocks of {facts['sharing']['block_tokens']} tokens; "
            "other block sizes than its multiples are labelled synthetic"
        )
    return notes


def _bars(bins: list[dict[str, int]]) -> str:
    most = max(bin_["requests"] for bin_ in bins)
    labels = [f"{bin_['low']:,}–{bin_['high'] - 1:,}" for bin_ in bins]
    width = max(map(len, labels))
    return "\n".join(
        f"  {label:>{width}}  {'█' * -(-_BAR * bin_['requests'] // most):{_BAR}}  {bin_['requests']:,}"
        for label, bin_ in zip(labels, bins, strict=True)
    )


def _number(value: float | int | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) or (value >= 1000 and value.is_integer()) else f"{value:,.1f}"


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, part in enumerate(value):
            yield from _flat(part, f"{name}.{number}")
    else:
        yield name, value
