"""A sweep as metrics while it runs: what the worker's events say, in the form that the server and the textfile give.

Written by the sweep's thread, read by the server's: one lock, held for as long as it takes to copy a few numbers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kvbench import __version__
from kvbench.measure.job import COUNTERS, FINISHED, PROGRESS, REDONE, STARTED, Event
from kvbench.measure.live import Numbers
from kvbench.report.prometheus import ENGINE_FAMILIES, Point, exposition

Key = tuple[str, int]
RUNNING = "running"
MAX_SAMPLES = 256
"""So many samples are shown, the latest; the numbers of earlier ones are in the run folder."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a sweep's metrics are about. `cases`: case id → label; `taken`: samples that are there already."""

    suite: str
    run_id: str
    device: str
    clock: str
    cases: Mapping[str, str]
    repetitions: int
    taken: frozenset[Key] = frozenset()


@dataclass(slots=True)
class _Shown:
    """One sample as it is shown."""

    status: str = RUNNING
    share: float = 0.0
    numbers: Numbers = field(default_factory=dict)


class SweepMetrics:
    """The state of a sweep, as text whenever somebody asks."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._samples: OrderedDict[Key, _Shown] = OrderedDict()
        self._ended: dict[Key, str] = dict.fromkeys(facts.taken, "ok")
        self._current: Key | None = None
        self._redone = 0
        self._is_running = True
        self._started_s = self._heard_s = time.time()
        self._since, self._elapsed_s = time.monotonic(), 0.0

    def event(self, event: Event) -> None:
        """Something that a worker has said."""
        with self._lock:
            self._heard_s = time.time()
            if event.kind == STARTED:
                self._current = event.case_id, event.data["sample"]
                self._shown(self._current)
            elif event.kind == PROGRESS and self._current is not None:
                self._shown(self._current).share = event.data["share"]
            elif event.kind == COUNTERS and self._current is not None:
                self._shown(self._current).numbers = event.data
            elif event.kind == REDONE:
                self._redone += 1
                self._samples[event.case_id, event.data["sample"]] = _Shown()
            elif event.kind == FINISHED:
                self._end((event.case_id, event.data["sample"]), event.data["status"])

    def ended(self, case_id: str, sample: int, status: str) -> None:
        """A sample that was skipped, or whose worker did not live to say how it ended."""
        with self._lock:
            self._heard_s = time.time()
            self._end((case_id, sample), status)

    def close(self) -> None:
        """The sweep is over; what is still running was interrupted."""
        with self._lock:
            self._is_running = False
            self._elapsed_s = time.monotonic() - self._since
            for shown in self._samples.values():
                shown.status = "interrupted" if shown.status == RUNNING else shown.status

    def text(self) -> str:
        with self._lock:
            samples = [(key, replace(shown)) for key, shown in self._samples.items()]
            ended, redone, heard_s, is_running = dict(self._ended), self._redone, self._heard_s, self._is_running
        elapsed_s = time.monotonic() - self._since if is_running else self._elapsed_s
        times = {"start_time": self._started_s, "last_event_time": heard_s, "elapsed": elapsed_s}
        return exposition([*self._sweep(ended, redone, is_running, times), *self._engines(samples)])

    def _end(self, key: Key, status: str) -> None:
        shown = self._shown(key)
        shown.status = status
        shown.share = 1.0 if status == "ok" else shown.share
        self._ended[key] = status
        self._current = None

    def _shown(self, key: Key) -> _Shown:
        if key not in self._samples:
            self._samples[key] = _Shown()
            while len(self._samples) > MAX_SAMPLES:
                self._samples.popitem(last=False)
        return self._samples[key]

    def _sweep(
        self, ended: Mapping[Key, str], redone: int, is_running: bool, times: Mapping[str, float]
    ) -> Iterator[Point]:
        facts, suite = self._facts, (self._facts.suite,)
        taken = Counter(case_id for case_id, _ in ended)
        done = sum(taken[case_id] >= facts.repetitions for case_id in facts.cases)
        failed = len({case_id for (case_id, _), status in ended.items() if status != "ok"})
        about = (facts.suite, facts.run_id, facts.device, facts.clock, __version__)
        yield Point("kvbench_sweep_info", about, 1)
        yield Point("kvbench_sweep_running", suite, int(is_running))
        yield Point("kvbench_sweep_cases_planned", suite, len(facts.cases))
        yield Point("kvbench_sweep_cases_done", suite, done)
        yield Point("kvbench_sweep_cases_failed", suite, failed)
        yield Point("kvbench_sweep_samples_planned", suite, len(facts.cases) * facts.repetitions)
        statuses = Counter({"ok": 0}) | Counter(ended.values())
        yield from (Point("kvbench_sweep_samples", (*suite, status), n) for status, n in {"ok": 0, **statuses}.items())
        yield Point("kvbench_sweep_samples_redone_total", suite, redone)
        yield from (Point(f"kvbench_sweep_{name}_seconds", suite, value) for name, value in times.items())

    def _engines(self, samples: Iterable[tuple[Key, _Shown]]) -> Iterator[Point]:
        facts = self._facts
        for (case_id, sample), shown in samples:
            label = facts.cases.get(case_id, case_id)
            labels = (facts.suite, label, str(sample), shown.status, facts.clock)
            yield Point("kvbench_sample_progress_ratio", labels, float(shown.share))
            for family in ENGINE_FAMILIES:
                if family.source in shown.numbers:
                    yield Point(family.name, labels, shown.numbers[family.source])
