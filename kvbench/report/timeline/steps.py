"""The engine's part of a timeline: a slice per step, counters, and block copies between tiers.

What a record counts at the end of its step (blocks, sequences) is drawn there; what it counts over the step (tokens,
evictions, copies) is drawn from its start. A counter is written where it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from kvbench.report.timeline.events import BLOCKS, ENGINE, TIERS, Event, microseconds

Row = dict[str, Any]
ALWAYS = ("batch_size", "prefill_tokens", "decode_tokens", "context_tokens", "active_sequences", "waiting_sequences")
WHERE_NOT_ZERO = (
    "admissions", "preemptions", "evictions", "prefix_cache_queries", "prefix_cache_hits", "readmission_queries",
    "readmission_hits", "draft_tokens", "accepted_tokens", "rollbacks", "copy_on_write_copies", "host_offload_bytes",
    "host_promotions", "disk_offload_bytes", "disk_promotions", "swap_out_bytes", "swap_in_bytes", "swap_refusals",
    "failed_copies", "promotion_stall_s",
)  # fmt: skip
SUMS = frozenset(WHERE_NOT_ZERO) | {"prefill_tokens", "decode_tokens", "context_tokens"}
"""Columns that count over a step; of several steps drawn as one they are added up, the others are the last one's."""


class Counter(NamedTuple):
    """One counter of the picture: its series by the name that they go by, and the columns that they show."""

    process: int
    name: str
    series: dict[str, str]
    is_over_step: bool
    is_always: bool = False
    """Drawn even where it stays 0."""


_BLOCKS = {"used": "blocks_used", "cached": "blocks_cached", "free": "kv_blocks_free"}
COUNTERS = (
    Counter(ENGINE, "sequences", {"active": "active_sequences", "waiting": "waiting_sequences"}, False, True),
    Counter(ENGINE, "batch", {"size": "batch_size"}, True, True),
    Counter(ENGINE, "tokens", {"prefill": "prefill_tokens", "decode": "decode_tokens"}, True, True),
    Counter(ENGINE, "preemptions", {"in the step": "preemptions"}, True),
    Counter(BLOCKS, "blocks", _BLOCKS, False, True),
    Counter(BLOCKS, "KV occupancy", {"%": "occupancy_percent"}, False, True),
    Counter(BLOCKS, "prefix cache", {"live tokens": "live_cached_tokens"}, False),
    Counter(BLOCKS, "hits", {"tokens in the step": "prefix_cache_hits"}, True),
    Counter(BLOCKS, "evictions", {"blocks in the step": "evictions"}, True),
    Counter(BLOCKS, "slots", {"without a token": "internal_slots", "reserved": "reserved_slots"}, False),
    Counter(TIERS, "host tier", {"bytes": "host_bytes_used"}, False),
    Counter(TIERS, "disk tier", {"bytes": "disk_bytes_used"}, False),
    Counter(TIERS, "swap area", {"bytes": "swap_bytes_used"}, False),
    Counter(TIERS, "to host", {"bytes in the step": "host_offload_bytes"}, True),
    Counter(TIERS, "to disk", {"bytes in the step": "disk_offload_bytes"}, True),
    Counter(TIERS, "promotions", {"from host": "host_promotions", "from disk": "disk_promotions"}, True),
)


class Copies(NamedTuple):
    """One kind of block copies, drawn as an asynchronous slice over each step in which some ended."""

    name: str
    column: str
    id: int


COPIES = (
    Copies("promotion from host", "host_promotions", 1),
    Copies("promotion from disk", "disk_promotions", 2),
    Copies("offload to host", "host_offload_bytes", 3),
    Copies("offload to disk", "disk_offload_bytes", 4),
    Copies("swap out", "swap_out_bytes", 5),
    Copies("swap in", "swap_in_bytes", 6),
)
STALL = Copies("waiting for copies", "promotion_stall_s", 7)


def completed(row: Row) -> Row:
    """The row with what follows from it: blocks used and cached, and occupancy. A missing count is 0."""
    row = {name: 0 if value is None else value for name, value in row.items()}
    total, capacity = row["kv_blocks_total"], row["kv_capacity_bytes"]
    used = round(row["kv_bytes_used"] * total / capacity) if capacity else 0
    row["blocks_used"], row["blocks_cached"] = used, max(0, total - used - row["kv_blocks_free"])
    row["occupancy_percent"] = round(100 * used / total, 3) if total else 0
    row["busy_s"], row["steps"] = row["duration_s"], 1
    return row


def kind_of(row: Row) -> str:
    """prefill, decode, mixed, or `no tokens` for a step that only failed or waited."""
    words = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode", (False, False): "no tokens"}
    return words[row["prefill_tokens"] > 0, row["decode_tokens"] > 0]


def merged(rows: Iterable[Row], together: int) -> Iterator[Row]:
    """So many consecutive steps as one row each, from the start of the first to the end of the last."""
    if together == 1:
        yield from ({**row, "kind": kind_of(row)} for row in rows)
        return
    left = iter(rows)
    while group := list(islice(left, together)):
        last, kinds = group[-1], {kind_of(row) for row in group}
        row = last | {name: sum(row[name] for row in group) for name in (*SUMS, "busy_s") if name in last}
        row |= {"step": group[0]["step"], "t_s": group[0]["t_s"], "steps": len(group)}
        row["batch_size"] = max(row["batch_size"] for row in group)
        row["duration_s"] = last["t_s"] + last["duration_s"] - group[0]["t_s"]
        row["kind"] = kinds.pop() if len(kinds) == 1 else "several kinds"
        yield row


@dataclass(slots=True)
class StepEvents:
    """Turns rows into events. `shown`: the counters that are drawn; `is_gapless`: time between rows is idle time, which
    is not so where steps were left out. A gap shorter than the step before it is not drawn as idle."""

    shown: Sequence[Counter]
    is_gapless: bool = True
    _last: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, rows: Iterable[Row]) -> Iterator[Event]:
        """Events of the rows, in the order of time."""
        before: tuple[int, int] | None = None
        for row in rows:
            start, end = microseconds(row["t_s"]), microseconds(row["t_s"] + row["duration_s"])
            if before is not None:
                start = max(start, before[1])
                if start - before[1] > before[1] - before[0] and self.is_gapless:
                    yield from self._idle(before[1])
            before = start, max(start, end)
            yield from sorted(self._of(row, *before), key=lambda event: event.at_us)  # equal times keep their order
        if before is not None:
            yield from self._idle(before[1])

    def _of(self, row: Row, start_us: int, end_us: int) -> Iterator[Event]:
        yield _slice(row, start_us, end_us)
        yield from _begin_copies(row, start_us)
        yield from self._changed(row, start_us, is_over_step=True)
        yield from _end_copies(row, start_us, end_us)
        yield from self._changed(row, end_us, is_over_step=False)

    def _changed(self, row: Row, at_us: int, *, is_over_step: bool) -> Iterator[Event]:
        for counter in self.shown:
            if counter.is_over_step == is_over_step:
                yield from self._set(counter, at_us, {name: row[column] for name, column in counter.series.items()})

    def _idle(self, at_us: int) -> Iterator[Event]:
        for counter in self.shown:
            if counter.is_over_step:
                yield from self._set(counter, at_us, dict.fromkeys(counter.series, 0))

    def _set(self, counter: Counter, at_us: int, values: dict[str, Any]) -> Iterator[Event]:
        if self._last.get(counter.name) != values:
            self._last[counter.name] = values
            yield Event("C", counter.name, at_us, counter.process, counter.process, values)


def shown_counters(has_some: set[str]) -> list[Counter]:
    """Those that are always drawn, and those that are not 0 throughout; `has_some`: columns with a value above 0."""
    return [c for c in COUNTERS if c.is_always or any(column in has_some for column in c.series.values())]


def _slice(row: Row, start_us: int, end_us: int) -> Event:
    args = {"step": row["step"], **{name: row[name] for name in ALWAYS}}
    args |= {name: row[name] for name in WHERE_NOT_ZERO if row.get(name)}
    if row["steps"] > 1:
        args |= {"steps": row["steps"], "busy_s": row["busy_s"]}
    return Event("X", row["kind"], start_us, ENGINE, ENGINE, args, end_us - start_us, category="step")


def _begin_copies(row: Row, start_us: int) -> Iterator[Event]:
    for copies in (*COPIES, STALL):
        if row.get(copies.column):
            args = {"step": row["step"], copies.column: row[copies.column]}
            yield Event("b", copies.name, start_us, TIERS, TIERS, args, category="tier", id=copies.id)


def _end_copies(row: Row, start_us: int, end_us: int) -> Iterator[Event]:
    """Copies end with the step; a stall is as long as it was, drawn from the step's start."""
    for copies in (*COPIES, STALL):
        amount = row.get(copies.column)
        if amount:
            at_us = min(end_us, start_us + microseconds(amount)) if copies is STALL else end_us
            yield Event("e", copies.name, at_us, TIERS, TIERS, category="tier", id=copies.id)
