"""Where a sweep's metrics go: a server while it runs, a textfile when it ends. Without either nothing is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvbench.console import say
from kvbench.errors import KvbenchError, UsageError
from kvbench.measure.job import COUNTERS, CaseJob, Event
from kvbench.measure.live import LiveCounters
from kvbench.store.targets import Target, begins_with, check_target, writing
from kvbench.sweep.live import Facts, SweepMetrics

if TYPE_CHECKING:
    from kvbench.store.run_folder import RunFolder
    from kvbench.sweep.metrics_server import MetricsServer
    from kvbench.sweep.plan import SweepPlan

TARGET = Target("textfile of kvbench's metrics", begins_with(b"# HELP kvbench_", within=15), "--metrics-textfile")


class LiveOutput:
    """A context around a sweep. Opens before anything is measured, so that what cannot be served or written shows."""

    def __init__(self, address: tuple[str, int] | None = None, textfile: Path | None = None) -> None:
        """`address`: host and port to serve on, port 0 for a free one. Raises `UsageError` and `CannotRunError`."""
        self._textfile = textfile
        if textfile is not None:
            _check_writable(textfile)
        self._server = None if address is None else _opened(*address)
        self._metrics: SweepMetrics | None = None

    @property
    def is_wanted(self) -> bool:
        return self._server is not None or self._textfile is not None

    def begin(self, plan: SweepPlan, folder: RunFolder) -> None:
        """From here on scrapes are answered; where, is said."""
        if not self.is_wanted:
            return
        facts = Facts(
            suite=plan.suite.name,
            run_id=folder.run_id,
            device=plan.device.name,
            clock=plan.machine.clock,
            cases={case.job.case_id: case.label for case in plan.cases},
            repetitions=plan.repetitions,
            taken=frozenset(folder.finished()),
        )
        self._metrics = SweepMetrics(facts)
        if self._server is not None:
            self._server.begin(self._metrics.text)
            say(f"metrics: {self._server.url}")
            if not self._server.is_local:
                say("metrics can be read by every machine that reaches this one", style="yellow")

    def event(self, event: Event) -> None:
        if self._metrics is not None:
            self._metrics.event(event)

    def ended(self, job: CaseJob, sample: int, status: str) -> None:
        """A sample that no worker has said the end of."""
        if self._metrics is not None:
            self._metrics.ended(job.case_id, sample, status)

    def counters(self, job: CaseJob, on_event: Callable[[Event], None]) -> LiveCounters | None:
        """What a sample that is served in this process reports to."""
        if not self.is_wanted:
            return None
        return LiveCounters(lambda numbers: on_event(Event(COUNTERS, job.case_id, dict(numbers))))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._metrics is not None:
                self._metrics.close()
                if self._textfile is not None:
                    _write(self._textfile, self._metrics.text())
        finally:
            if self._server is not None:
                self._server.close()


def _opened(host: str, port: int) -> MetricsServer:
    from kvbench.sweep.metrics_server import MetricsServer

    return MetricsServer(host, port)


def _check_writable(path: Path) -> None:
    if path.suffix != ".prom":
        hint = "name a file as in /var/lib/node_exporter/kvbench.prom"
        raise UsageError(f"{path} does not end in .prom: node_exporter reads no other textfile", hint=hint)
    check_target(path, TARGET)


def _write(path: Path, text: str) -> None:
    """Whole or not at all: node_exporter may read at any moment, and it takes up every file in .prom."""
    try:
        with writing(path, TARGET) as file:
            file.write(text.encode())
        say(f"metrics: {path}")
    except KvbenchError as error:
        say(f"warning: {path} was not written: {error.message}; the run is whole", style="yellow")
