"""A sample's timeline in a file: names of the tracks, then engine and requests merged by time, one event a line.

Nothing is held but the rows of this sample and the requests' events; a name that ends in .gz is compressed.
"""

from __future__ import annotations

import gzip
import heapq
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kvbench import __version__
from kvbench.errors import DataError
from kvbench.report.timeline.events import BLOCKS, ENGINE, QUEUE, REQUESTS, TIERS, Event, process_names, thread_names
from kvbench.report.timeline.pick import Picked
from kvbench.report.timeline.requests import StepTimes, request_events
from kvbench.report.timeline.steps import COPIES, STALL, StepEvents, completed, merged, shown_counters
from kvbench.store.targets import Target, check_target, writing
from kvbench.tabulate import one_line

if TYPE_CHECKING:
    import pyarrow as pa

    from kvbench.store.run import Run

MAX_STEPS, MAX_REQUESTS = 50_000, 20_000
"""More steps are drawn several as one slice, of more requests one in so many; `is_whole` draws them all."""
GROUPS = {ENGINE: "engine", BLOCKS: "blocks", TIERS: "tiers", REQUESTS: "requests", QUEUE: "requests that wait"}
_HEAD = b'{"displayTimeUnit": "ms", "otherData": '
_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Written:
    """A timeline that was written. `notes`: what it leaves out, a line each."""

    path: Path
    bytes: int
    events: int
    steps: int
    requests: int
    notes: tuple[str, ...]


def write_timeline(run: Run, picked: Picked, path: Path, *, is_whole: bool = False) -> Written:
    """Write the sample's timeline; an earlier timeline of this name is replaced when the new one is whole.

    Raises `DataError` for a sample without steps and `UsageError` for a file that cannot be written or that holds
    something else, as a run's own table."""
    check_target(path, TARGET)
    key = picked.row["case_id"], picked.row["sample"]
    steps, requests = run.sample_table("steps", *key), run.sample_table("requests", *key)
    if not steps.num_rows:
        why = one_line(str(picked.row.get("error") or f"it ended {picked.row['status']}"))
        raise DataError(f"{picked.label}, sample {key[1]}, has no steps on record: {why}", hint="choose another sample")
    steps = steps.sort_by("step")
    picture = _Picture(run, picked, steps, requests, is_whole)
    with _opened(path) as file:
        events = picture.write(file)
    return Written(path, path.stat().st_size, events, steps.num_rows, requests.num_rows, tuple(picture.notes))


class _Picture:
    """One sample's events, and what is said about them."""

    def __init__(self, run: Run, picked: Picked, steps: pa.Table, requests: pa.Table, is_whole: bool) -> None:
        self._run, self._picked, self._steps = run, picked, steps
        self._together = 1 if is_whole else -(-steps.num_rows // MAX_STEPS)
        one_in = 1 if is_whole else -(-requests.num_rows // MAX_REQUESTS)
        self._stride = picked.row.get("steps_stride") or 1
        in_order = requests.sort_by([("arrival_s", "ascending"), ("request_id", "ascending")])
        self._requests = in_order.to_pylist()[::one_in]
        self.notes = list(self._left_out(one_in, requests.num_rows))

    def _left_out(self, one_in: int, total: int) -> Iterator[str]:
        if self._stride > 1:
            yield f"one step in {self._stride} is on record; what lies between is not drawn"
        if self._together > 1:
            yield f"{self._together} steps are drawn as one slice, of {self._steps.num_rows} ({MAX_STEPS} at most)"
        if one_in > 1:
            yield f"one request in {one_in} is drawn, of {total} ({MAX_REQUESTS} at most)"
        preempted = sum((row["preemptions"] or 0) > 0 and not row["preempted_at_s"] for row in self._requests)
        if preempted:
            yield f"{preempted} requests were preempted at times that are not on record"

    def write(self, file: IO[bytes]) -> int:
        """JSON, one event a line; how many events."""
        facts = json.dumps(self._facts(), ensure_ascii=False, allow_nan=False)
        file.write(_HEAD + facts.encode() + b', "traceEvents": [\n')
        count = 0
        for event in self._events():
            file.write((b",\n" if count else b"") + event.to_json().encode())
            count += 1
        file.write(b"\n]}\n")
        return count

    def _events(self) -> Iterator[Event]:
        table, in_use = self._steps, self._columns_in_use()
        times = StepTimes.of(table["t_s"].to_pylist(), table["duration_s"].to_pylist())
        served, shown = request_events(self._requests, times), shown_counters(in_use)
        drawn = {ENGINE, REQUESTS, *(counter.process for counter in shown), *(event.process for event in served)}
        drawn |= {TIERS} if in_use & {copies.column for copies in (*COPIES, STALL)} else set()
        yield from self._names(drawn)
        yield from (event for event in served if event.phase == "M")
        rest = (event for event in served if event.phase != "M")
        engine = StepEvents(shown, is_gapless=self._stride == 1)(merged(self._rows(), self._together))
        # At equal times the engine's event comes first: an arrow that begins at a step must find its slice.
        yield from heapq.merge(engine, rest, key=lambda event: event.at_us)

    def _rows(self) -> Iterator[dict[str, Any]]:
        for batch in self._steps.to_batches(max_chunksize=_BATCH):
            yield from map(completed, batch.to_pylist())

    def _columns_in_use(self) -> set[str]:
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self._steps
        numeric = [f.name for f in table.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
        return {name for name in numeric if (pc.max(table[name]).as_py() or 0) > 0}

    def _names(self, processes: set[int]) -> Iterator[Event]:
        about, label = self._title(), "virtual clock" if self._picked.is_virtual else ""
        for process in sorted(processes):
            yield from process_names(process, f"{GROUPS[process]} · {about}", label)
        yield from thread_names(ENGINE, ENGINE, "steps")

    def _title(self) -> str:
        row = self._picked.row
        title = f"{one_line(str(self._run.plan['suite']['name']))} · {self._picked.label} · sample {row['sample']}"
        return title + (" · VIRTUAL CLOCK: times are predicted" if self._picked.is_virtual else "")

    def _facts(self) -> dict[str, Any]:
        row = self._picked.row
        names = ("case_id", "sample", "status", "clock", "cost_model", "device", "device_name", "model")
        return {
            "run_id": self._run.run_id,
            "suite": self._run.plan["suite"]["name"],
            "case": self._picked.label,
            **{name: row.get(name) for name in names},
            "written_by": f"kvbench {__version__}",
            "times": "microseconds since the start of the workload",
            "notes": self.notes,
        }


def _is_timeline(path: Path) -> bool:
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if is_packed else path.open("rb") as file:
            return file.read(len(_HEAD)) == _HEAD
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return False


TARGET = Target("timeline", _is_timeline, option="--perfetto")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file to write, compressed where its name says so. `UsageError` when it cannot be written."""
    with writing(path, TARGET) as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
            yield packed  # type: ignore[misc]
