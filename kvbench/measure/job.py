"""What travels between the sweep and a worker process: one job down, events back, all JSON. Torch-free."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from kvbench.spec.suite import CacheState

FINISHED = "finished"
STARTED = "started"
PROGRESS = "progress"
COUNTERS = "counters"
REDONE = "redone"
READY = "ready"
POISONED = "poisoned"
FATAL = "fatal"
UNWRITABLE = "unwritable"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Of a process that computes, before it imports what reads them"""


@dataclass(frozen=True, slots=True)
class CaseJob:
    """One case × sample to measure; sections are settings models dumped to JSON, already resolved by the plan."""

    case_id: str
    sample: int
    kind: str
    fingerprint: str
    columns: dict[str, Any]
    """What the row of every sample of this case says besides its metrics: settings, axes, device, model."""
    model: dict[str, Any]
    engine: dict[str, Any] | None = None
    workload: dict[str, Any] | None = None
    kernel: dict[str, Any] | None = None
    max_context: int | None = None
    workload_digest: str | None = None
    tuned: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Label of a layer group → the tuned configuration of its attention kernel; without one the default runs."""
    explainable_hit_tokens: int = 0
    """Prefix-cache hits that workload and cache state can explain; more make the sample invalid (M20)."""
    cache_state: CacheState = "cold"
    """Of the prefix cache when the measured window begins."""
    timeout_s: float = 600.0
    requests_from: str | None = None
    """The folder of the run that holds the requests, for a run that is reproduced; else they are made by `workload`."""


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """What one worker process does: the given cases in the given order, each written as a part when it is done."""

    run_dir: str
    device: str
    threads: int
    suite: dict[str, Any]
    """`measure` and `slo` sections of the suite."""
    cases: list[CaseJob] = field(default_factory=list)
    out_of_memory: list[CaseJob] = field(default_factory=list)
    """Cases that ran out of memory before: what needs no less is not tried again (M08)."""
    run_implied: bool = False
    """Try them all the same."""
    tells_counters: bool = False
    """Events with the engine's counters while a case is served, too."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerJob:
        data = json.loads(text)
        for name in ("cases", "out_of_memory"):
            data[name] = [CaseJob(**case) for case in data[name]]
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Event:
    """One line from a worker: what happened, to which case, with its numbers."""

    kind: str
    case_id: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        return json.dumps({"kind": self.kind, "case_id": self.case_id, "data": self.data}) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Event | None:
        """None for a line that is not an event (a library that prints to the wrong place)."""
        try:
            found = json.loads(line)
            return cls(found["kind"], found["case_id"], found["data"])
        except (ValueError, KeyError, TypeError):
            return None


def sample_row(case: CaseJob, status: str, error: str | None) -> dict[str, Any]:
    """The row of a sample before any metric is known; all that remains of one whose worker was lost."""
    return {**case.columns, "kind": case.kind, "status": status, "error": error}
