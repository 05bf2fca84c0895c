"""Copies that go on in the background: threads on a CPU, a stream and events on CUDA."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class StreamCopy:
    """Work that was put on a CUDA stream; `kept` are its intermediate buffers, which must outlive it."""

    def __init__(self, stream: torch.cuda.Stream, kept: list[Tensor]) -> None:
        self._kept = kept
        self._event = torch.cuda.Event()
        self._event.record(stream)

    def done(self) -> bool:
        return bool(self._event.query())

    def result(self) -> bool:
        self._event.synchronize()
        return True


@dataclass(slots=True)
class Job:
    """Copies of one kind that end together; `work.result()` says whether the bytes are where they should be."""

    kind: str
    here: list[int]
    there: list[int]
    work: Future[bool] | StreamCopy


class Jobs:
    """All copies under way, first begun first, and the thread that copies memory."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._thread: ThreadPoolExecutor | None = None

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs.append(job)

    def run(self, kind: str, here: list[int], there: list[int], copy: Callable[[], object]) -> None:
        """Call `copy` on the copying thread, after all that was given to it before (numpy lets go of the GIL)."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvbench-copy")
        self.add(Job(kind, here, there, self._thread.submit(_succeeds, copy)))

    def take_ended(self, *, wait_for_one: bool = False) -> list[Job]:
        """Jobs that have ended since the last call."""
        if wait_for_one and self._jobs and not any(job.work.done() for job in self._jobs):
            self._wait_for_one()
        ended = [job for job in self._jobs if job.work.done()]
        if ended:
            self._jobs = [job for job in self._jobs if job not in ended]
        return ended

    def wait_for(self, kinds: tuple[str, ...], blocks: set[int]) -> None:
        """Until nothing of these kinds is on its way into one of these blocks."""
        for job in self._jobs:
            if job.kind in kinds and not blocks.isdisjoint(job.there):
                job.work.result()

    def close(self) -> None:
        """Wait for everything and end the thread."""
        for job in self._jobs:
            job.work.result()
        self._jobs = []
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None

    def _wait_for_one(self) -> None:
        futures = [job.work for job in self._jobs if isinstance(job.work, Future)]
        on_stream = [job.work for job in self._jobs if not isinstance(job.work, Future)]
        if on_stream:
            on_stream[0].result()
        else:
            wait(futures, return_when=FIRST_COMPLETED)


def _succeeds(copy: Callable[[], object]) -> bool:
    copy()
    return True
