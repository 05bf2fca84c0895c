"""The main story: load → expand → measure → store → summarise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvbench.console import say
from kvbench.errors import ExitCode, InternalError, KvbenchError
from kvbench.measure.environment import capture
from kvbench.measure.job import FINISHED, PROGRESS, REDONE, STARTED, CaseJob, Event, WorkerJob, sample_row
from kvbench.measure.supervise import Lost, OnEvent, OnLost, run_worker
from kvbench.measure.virtual_case import VirtualBench
from kvbench.spec.load import LoadedSuite, load_suite
from kvbench.store.parts import Sample
from kvbench.store.run import Run, open_run
from kvbench.store.run_folder import RunFolder
from kvbench.sweep.estimate import announcement
from kvbench.sweep.headline import headline
from kvbench.sweep.live_output import LiveOutput
from kvbench.sweep.plan import PlannedCase, SweepPlan
from kvbench.sweep.planner import make_plan
from kvbench.sweep.progress import SweepProgress
from kvbench.sweep.resume import auto_kv_bytes_of, refuse_other_clock
from kvbench.sweep.termination import termination_is_an_interrupt


class SweepInterruptedError(KvbenchError):
    """Ctrl-C or a termination signal; what was finished is sealed."""

    exit_code = ExitCode.INTERRUPTED


def run_suite(
    suite: LoadedSuite | str | Path,
    *,
    out: str | Path = "results",
    resume: str | Path | None = None,
    repetitions: int | None = None,
    run_implied: bool = False,
) -> Run:
    """Measure every case of the suite and return the sealed run.

    `resume` takes up an earlier run folder: samples that are there and still what the suite asks for are kept.
    Raises `SweepInterruptedError` after Ctrl-C, and `KvbenchError` for what cannot be run or written.
    """
    loaded = suite if isinstance(suite, LoadedSuite) else load_suite(suite)
    earlier = auto_kv_bytes_of(Path(resume)) if resume else None
    plan = make_plan(loaded, repetitions=repetitions, auto_kv_bytes=earlier)
    return run_plan(plan, out=out, resume=resume, run_implied=run_implied)


def run_plan(
    plan: SweepPlan,
    *,
    out: str | Path = "results",
    resume: str | Path | None = None,
    run_implied: bool = False,
    live: LiveOutput | None = None,
) -> Run:
    """`run_suite` for a suite that is planned already. `live`: where metrics go meanwhile; it is closed at the end."""
    with live or LiveOutput() as output:
        return _run_plan(plan, Path(out), None if resume is None else Path(resume), run_implied, output)


def _run_plan(plan: SweepPlan, out: Path, resume: Path | None, run_implied: bool, live: LiveOutput) -> Run:
    facts = {**plan.to_dict(), "environment": capture()}
    if resume is not None:
        refuse_other_clock(resume, plan.machine.clock)
    with RunFolder.resume(resume, facts) if resume is not None else RunFolder.create(out, facts) as folder:
        live.begin(plan, folder)
        sweep = _Sweep(plan, folder, run_implied, live)
        try:
            with termination_is_an_interrupt():
                sweep.run()
        except KeyboardInterrupt:
            folder.seal()
            raise SweepInterruptedError(
                f"interrupted; {len(folder.finished())} of {sweep.total} samples are in {folder.path}",
                hint=f"go on with --resume {folder.path}",
            ) from None
        folder.seal()
        return open_run(folder.path)


@dataclass(slots=True)
class _Sweep:
    """One sweep in progress: which samples are wanted, who measures them, what is said about it."""

    plan: SweepPlan
    folder: RunFolder
    run_implied: bool
    live: LiveOutput
    out_of_memory: list[CaseJob] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.plan.cases) * self.plan.repetitions

    def run(self) -> None:
        self.folder.seal()  # a resumed run: whatever lies in `parts/` from here on is of this session
        for digest, workload in self.plan.workloads.items():
            self.folder.write_workload(digest, workload.requests)
        todo = set(self.folder.todo())
        for line in self._foreword(len(todo)):
            say(line, style="yellow")
        with SweepProgress(self.total, self.total - len(todo)) as progress:
            for sample in range(self.plan.repetitions):
                wanted = [case_id for case_id, number in todo if number == sample]
                self._skip(sample, wanted, progress)
                jobs = self.plan.round(sample, wanted)
                if jobs and self.plan.machine.is_virtual:
                    self._simulate(jobs, self._listener(jobs, progress))
                elif jobs:
                    run_worker(self._worker_job(jobs), self._listener(jobs, progress), self._loser(progress))
                self.folder.seal_if_due()

    def _foreword(self, todo: int) -> Iterator[str]:
        cost = self.plan.machine.cost
        if cost is not None:
            yield f"virtual clock: no device is timed; {self.plan.device.name} by the cost model {cost.label}"
        yield from self.plan.tuned.foreword()
        yield from self.folder.problems
        if todo < self.total:
            yield f"{self.total - todo} of {self.total} samples are there already and are kept"
        if todo:
            yield announcement(self.plan, self.folder.path.parent, todo)
        for case in self.plan.cases:
            if case.refusal:
                yield f"{case.label}: skipped: {case.refusal}"
            yield from (f"{case.label}: {note}" for note in case.notes)

    def _skip(self, sample: int, wanted: list[str], progress: SweepProgress) -> None:
        """Samples of cases that cannot run here are rows as well, with the reason."""
        for case in self.plan.cases:
            if case.refusal is not None and case.job.case_id in wanted:
                self._store(case.job, sample, "skipped", case.refusal)
                self.live.ended(case.job, sample, "skipped")
                progress.finished(self._label(case.job.case_id, sample), "skipped", "")

    def _simulate(self, jobs: list[CaseJob], on_event: OnEvent) -> None:
        """Under the virtual clock no process can disturb another: everything happens in this one."""
        cost, suite = self.plan.machine.cost, self.plan.suite
        if cost is None:
            raise InternalError("a virtual sweep was planned without a cost model")
        bench = VirtualBench(self.folder.path.resolve(), cost, suite.measure, suite.slo)
        for job in jobs:
            on_event(Event(STARTED, job.case_id, {"sample": job.sample}))

            def on_share(share: float, case_id: str = job.case_id) -> None:
                on_event(Event(PROGRESS, case_id, {"share": share}))

            status, numbers = bench.measure(job, on_share, self.live.counters(job, on_event))
            on_event(
                Event(FINISHED, job.case_id, {"sample": job.sample, "status": status, "clock": "virtual", **numbers})
            )

    def _worker_job(self, jobs: list[CaseJob]) -> WorkerJob:
        suite = self.plan.suite
        return WorkerJob(
            run_dir=str(self.folder.path.resolve()),
            device=self.plan.device.kind,
            threads=self.plan.threads,
            suite={"measure": suite.measure.model_dump(mode="json"), "slo": suite.slo.model_dump(mode="json")},
            cases=jobs,
            out_of_memory=self.out_of_memory,
            run_implied=self.run_implied,
            tells_counters=self.live.is_wanted,
        )

    def _listener(self, jobs: list[CaseJob], progress: SweepProgress) -> OnEvent:
        by_id = {job.case_id: job for job in jobs}

        def on_event(event: Event) -> None:
            self.live.event(event)
            if event.kind == STARTED:
                progress.started(self._label(event.case_id, event.data["sample"]))
            elif event.kind == PROGRESS:
                progress.within(event.data["share"])
            elif event.kind == REDONE:
                say(f"{self._label(event.case_id, event.data['sample'])}: {event.data['reason']}", style="yellow")
            elif event.kind == FINISHED:
                status = event.data["status"]
                if status == "oom":
                    self.out_of_memory.append(by_id[event.case_id])
                progress.finished(self._label(event.case_id, event.data["sample"]), status, headline(event.data))

        return on_event

    def _loser(self, progress: SweepProgress) -> OnLost:
        def on_lost(lost: Lost) -> None:
            self.live.ended(lost.case, lost.case.sample, lost.status)
            if not self.folder.has((lost.case.case_id, lost.case.sample)):
                self._store(lost.case, lost.case.sample, lost.status, lost.error)
            progress.finished(self._label(lost.case.case_id, lost.case.sample), lost.status, lost.error)

        return on_lost

    def _store(self, job: CaseJob, sample: int, status: str, error: str) -> None:
        self.folder.add(Sample(job.case_id, sample, job.fingerprint, sample_row(job, status, error)))

    def _label(self, case_id: str, sample: int) -> str:
        case: PlannedCase = next(case for case in self.plan.cases if case.job.case_id == case_id)
        return f"{case.label} #{sample + 1}"
