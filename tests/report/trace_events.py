"""A checker of trace-event files by the format's own rules and Perfetto's; it knows nothing of kvbench.

Rules: every phase has its fields; times are not negative and ascend; slices of one thread lie in each other or apart,
also when the file is read in its own order with a stack; async pairs go by (process, category, id) and name, close, and
do not run twice at once; arrows begin before they end and both ends lie in a slice that is open there; a counter has
numbers only, and the same series every time; every process and thread with an event is named, once, before its first.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]
FIELDS = {
    "X": {"ts", "dur"}, "i": {"ts", "s"}, "C": {"ts", "args"}, "b": {"ts", "id", "cat"}, "e": {"ts", "id", "cat"},
    "s": {"ts", "id", "cat"}, "f": {"ts", "id", "cat", "bp"}, "M": {"args"},
}  # fmt: skip


def read_trace(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data, parse_constant=_refuse)
    assert isinstance(found["traceEvents"], list)
    return found


def _refuse(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def problems(events: list[Event]) -> list[str]:
    """Everything that breaks a rule, in words; nothing where the file is sound."""
    if any(not isinstance(event, dict) or event.get("ph") not in FIELDS for event in events):
        return ["an event of a phase that is not known"]
    incomplete = [
        f"{event} lacks a field"
        for event in events
        if not FIELDS[event["ph"]] | {"name", "pid", "tid"} <= event.keys() or not event["name"]
    ]
    if incomplete:
        return incomplete
    return [*_times(events), *_names(events), *_nesting(events), *_pairs(events), *_arrows(events), *_counters(events)]


def _times(events: list[Event]) -> list[str]:
    found, last = [], 0
    for event in (e for e in events if e["ph"] != "M"):
        whole = all(type(event.get(name, 0)) is int for name in ("ts", "dur"))
        if not whole or event["ts"] < 0 or event.get("dur", 0) < 0:
            found.append(f"{event['name']}: times must be whole and not negative")
        elif event["ts"] < last:
            found.append(f"{event['name']} at {event['ts']} comes after {last}")
        else:
            last = event["ts"]
    return found


def _names(events: list[Event]) -> list[str]:
    found, known = [], Counter[tuple[str, int, int]]()
    for event in events:
        pid, tid = event["pid"], event["tid"]
        if not (pid > 0 and tid > 0):
            found.append("process and thread 0 are the kernel's")
        if event["ph"] == "M":
            if not str(next(iter(event["args"].values()), "")):
                found.append(f"{event['name']} is empty")
            known[event["name"], pid, tid if event["name"].startswith("thread") else 0] += 1
        elif not known["process_name", pid, 0] or not known["process_sort_index", pid, 0]:
            found.append(f"process {pid} is used before it is named")
        elif event["ph"] in "Xisf" and not (known["thread_name", pid, tid] and known["thread_sort_index", pid, tid]):
            found.append(f"thread {pid}/{tid} is used before it is named")
    found += [f"{key} is said {times} times" for key, times in known.items() if times > 1]
    threads = defaultdict(set)
    for event in events:
        threads[event["tid"]].add(event["pid"])
    return found + [f"thread {tid} is in processes {pids}" for tid, pids in threads.items() if len(pids) > 1]


def _nesting(events: list[Event]) -> list[str]:
    """As Perfetto does it: a slice whose end has come leaves the stack; what is pushed must fit into what is on it."""
    found, stacks = [], defaultdict(list)
    for event in (e for e in events if e["ph"] == "X"):
        stack = stacks[event["pid"], event["tid"]]
        while stack and stack[-1][1] <= event["ts"]:
            stack.pop()
        end = event["ts"] + event["dur"]
        if stack and end > stack[-1][1]:
            found.append(f"{event['name']} [{event['ts']}, {end}] overlaps {stack[-1]} on thread {event['tid']}")
        stack.append((event["name"], end))
    return found


def _pairs(events: list[Event]) -> list[str]:
    found, open_pairs = [], {}
    for event in events:
        key = event["pid"], event.get("cat"), event.get("id")
        if event["ph"] == "b":
            if key in open_pairs:
                found.append(f"{event['name']} begins inside {open_pairs[key]}")
            open_pairs[key] = event["name"]
        elif event["ph"] == "e" and open_pairs.pop(key, None) != event["name"]:
            found.append(f"{event['name']} ends and had not begun")
    return found + [f"{name} is never closed" for name in open_pairs.values()]


def _arrows(events: list[Event]) -> list[str]:
    found, begun, used, open_until = [], {}, set(), defaultdict(int)
    for event in events:
        track = event["pid"], event["tid"]
        if event["ph"] == "X":
            open_until[track] = max(open_until[track], event["ts"] + event["dur"])
        elif event["ph"] in "sf":
            key = event["cat"], event["name"], event["id"]
            if event["ts"] >= open_until[track]:
                found.append(f"arrow {key} is bound to no slice")
            if event["ph"] == "s":
                found += [f"arrow {key} begins twice"] if key in used else []
                used.add(key)
                begun[key] = event["ts"]
            elif begun.pop(key, event["ts"] + 1) > event["ts"]:
                found.append(f"arrow {key} ends before it begins")
    return found + [f"arrow {key} has no end" for key in begun]


def _counters(events: list[Event]) -> list[str]:
    found, series = [], {}
    for event in (e for e in events if e["ph"] == "C"):
        args = event["args"]
        if not args or any(type(value) not in (int, float) for value in args.values()):
            found.append(f"counter {event['name']} has something else than numbers")
        if series.setdefault((event["pid"], event["name"]), set(args)) != set(args):
            found.append(f"counter {event['name']} changes its series")
    return found
