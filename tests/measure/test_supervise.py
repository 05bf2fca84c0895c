"""A worker under watch: what it reports arrives, what it does to itself costs one case only."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.errors import CannotRunError
from kvbench.measure.job import FINISHED, STARTED, CaseJob, Event, WorkerJob
from kvbench.measure.supervise import Lost, run_worker

# A worker that does to each case what the case's id says.
_FAKE = """
import json, os, signal, sys, time
job = json.loads(sys.stdin.readline())
def say(kind, case="", **data):
    sys.stdout.write(json.dumps({"kind": kind, "case_id": case, "data": data}) + "\\n"); sys.stdout.flush()
say("ready", pid=os.getpid())
for case in job["cases"]:
    name = case["case_id"]
    say("started", name, sample=case["sample"], pid=os.getpid())
    if "hang" in name: time.sleep(60)
    if "segfault" in name: os.kill(os.getpid(), signal.SIGSEGV)
    if "exit" in name: sys.stderr.write("boom\\nthe last words\\n"); sys.exit(3)
    if "noise" in name: print("a library says hello")
    if "full" in name: say("unwritable", name, error="the disk is full", hint="make room"); sys.exit(0)
    say("finished", name, sample=case["sample"], status="ok", seconds=0.0)
    if "poison" in name: say("poisoned", name); sys.exit(0)
"""


def _job(*names: str, timeout_s: float = 30.0) -> WorkerJob:
    cases = [CaseJob(name, 0, "engine", "f", {}, {}, timeout_s=timeout_s) for name in names]
    return WorkerJob("run", "cpu", 1, {}, cases)


@pytest.fixture
def fake(tmp_path: Path) -> list[str]:
    script = tmp_path / "fake_worker.py"
    script.write_text(_FAKE)
    return [sys.executable, str(script)]


def _watch(job: WorkerJob, command: list[str]) -> tuple[list[Event], list[Lost], int]:
    events: list[Event] = []
    lost: list[Lost] = []
    started = run_worker(job, events.append, lost.append, command=command)
    return events, lost, started


def _finished(events: list[Event]) -> list[str]:
    return [event.case_id for event in events if event.kind == FINISHED]


def test_every_case_of_a_healthy_worker_is_reported_by_one_process(fake: list[str]) -> None:
    events, lost, started = _watch(_job("a", "b-noise", "c"), fake)
    assert _finished(events) == ["a", "b-noise", "c"]
    assert (lost, started) == ([], 1)


@pytest.mark.parametrize(
    ("bad", "status", "words"),
    [("hang", "timeout", "no result within"), ("segfault", "crash", "SIGSEGV"), ("exit", "crash", "the last words")],
)
def test_m09_a_bad_case_costs_itself_and_the_worker_is_replaced(
    fake: list[str], bad: str, status: str, words: str
) -> None:
    """A case hangs or crashes its process: typed status, fresh worker for the rest."""
    events, lost, started = _watch(_job("a", bad, "z", timeout_s=1.0 if bad == "hang" else 30.0), fake)
    assert _finished(events) == ["a", "z"]
    assert [(one.case.case_id, one.status) for one in lost] == [(bad, status)]
    assert words in lost[0].error
    assert started == 2


def test_m09_a_poisoned_context_ends_the_process_and_not_the_sweep(fake: list[str]) -> None:
    """The worker says that its accelerator context is beyond use; the next case gets a new process."""
    events, lost, started = _watch(_job("a-poison", "b"), fake)
    pids = {event.data["pid"] for event in events if event.kind == STARTED}
    assert _finished(events) == ["a-poison", "b"]
    assert lost == []
    assert (started, len(pids)) == (2, 2)


def test_m09_a_hung_worker_is_gone_before_the_next_one_starts(fake: list[str]) -> None:
    """Its memory is back: the process no longer exists."""
    events, _, _ = _watch(_job("hang", "z", timeout_s=0.5), fake)
    pid = next(event.data["pid"] for event in events if event.kind == STARTED)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_m11_a_full_disk_stops_the_sweep_with_its_reason(fake: list[str]) -> None:
    """Nobody could go on writing: one error, with the worker's hint."""
    with pytest.raises(CannotRunError, match="the disk is full") as caught:
        _watch(_job("a", "full", "z"), fake)
    assert caught.value.hint == "make room"


def test_a_worker_that_cannot_start_is_a_crash_of_each_case(tmp_path: Path) -> None:
    command = [sys.executable, str(tmp_path / "missing.py")]
    events, lost, started = _watch(_job("a", "b"), command)
    assert (_finished(events), started) == ([], 2)
    assert [one.status for one in lost] == ["crash", "crash"]


def test_an_interrupt_leaves_no_worker_behind(fake: list[str]) -> None:
    pids: list[int] = []

    def interrupt(event: Event) -> None:
        if event.kind == STARTED:
            pids.append(event.data["pid"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_worker(_job("hang"), interrupt, lambda lost: None, command=fake)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_the_real_worker_stops_when_the_sweep_that_started_it_is_gone(tmp_path: Path) -> None:
    """kill -9 of the sweep closes the pipe; an orphan must not go on measuring."""
    import subprocess

    job = replace(_job("a"), run_dir=str(tmp_path), suite={"measure": {}, "slo": {}})
    worker = subprocess.Popen([sys.executable, "-m", "kvbench.measure.worker"], stdin=subprocess.PIPE, stdout=-3)
    assert worker.stdin is not None
    worker.stdin.write(job.to_json().encode())  # no newline: the job is never complete
    worker.stdin.close()
    deadline = time.monotonic() + 30
    while worker.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert worker.poll() not in (None, 0)
