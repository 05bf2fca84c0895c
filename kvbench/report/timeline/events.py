"""Trace events in the legacy JSON form that the Perfetto UI and chrome://tracing open.

Times are whole microseconds: Perfetto truncates fractions to nanoseconds, which could push a slice over the end of the
one that it lies in. Nesting on a track goes by time alone, so slices of a track lie in each other or apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

ENGINE, BLOCKS, TIERS, REQUESTS, QUEUE = 1, 2, 3, 4, 5
"""Process ids: a process is a group of tracks"""
LANES = {REQUESTS: 1_000, QUEUE: 10_000_000}
"""Thread id of the first lane; no thread id is used twice"""


@dataclass(frozen=True, slots=True)
class Event:
    """One trace event. `phase`: X slice, i instant, C counter, b and e begin and end of an async slice, s and f begin
    and end of an arrow, M name of a track."""

    phase: str
    name: str
    at_us: int
    process: int
    thread: int
    args: dict[str, Any] = field(default_factory=dict)
    length_us: int = 0
    """X only."""
    category: str = ""
    id: int = 0
    """b, e, s and f only: the two ends of a pair share it, with category and name."""
    depth: int = 0
    """Of a slice in others of its track; parents come before children that begin and end with them."""

    @property
    def order(self) -> tuple[int, int, int]:
        """Place among slices, marks and arrows: by time, what encloses before what it encloses, arrows after their
        slice."""
        return self.at_us, "Xisf".index(self.phase), self.depth

    def to_json(self) -> str:
        found: dict[str, Any] = {"ph": self.phase, "name": self.name, "pid": self.process, "tid": self.thread}
        if self.phase != "M":
            found["ts"] = self.at_us
        if self.phase == "X":
            found["dur"] = self.length_us
        if self.phase == "i":
            found["s"] = "t"
        if self.phase in "besf":
            found["id"] = self.id
        if self.phase == "f":
            found["bp"] = "e"  # the arrow ends at the slice that encloses it, not at the next one
        if self.category:
            found["cat"] = self.category
        if self.args:
            found["args"] = {name: _short(value) for name, value in self.args.items()}
        return json.dumps(found, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _short(value: Any) -> Any:
    """At most 15 digits after the point: Perfetto reads a number with 20 of them as another one."""
    return round(value, 15) if isinstance(value, float) else value


def microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def process_names(process: int, name: str, label: str = "") -> list[Event]:
    """A process's name and its place among the others."""
    about: list[tuple[str, dict[str, Any]]] = [
        ("process_name", {"name": name}),
        ("process_sort_index", {"sort_index": process}),
    ]
    if label:
        about.append(("process_labels", {"labels": label}))
    return [Event("M", kind, 0, process, process, args) for kind, args in about]


def thread_names(process: int, thread: int, name: str) -> list[Event]:
    """A track's name and its place in the process: by thread id."""
    about: tuple[tuple[str, dict[str, Any]], ...] = (
        ("thread_name", {"name": name}),
        ("thread_sort_index", {"sort_index": thread}),
    )
    return [Event("M", kind, 0, process, thread, args) for kind, args in about]
