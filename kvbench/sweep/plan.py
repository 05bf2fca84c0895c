"""The plan of a sweep: every case resolved for this machine, what it needs, and in which order samples are taken."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kvbench.devices.facts import Device
from kvbench.devices.host import Host
from kvbench.engine.families import check_runs
from kvbench.engine.speculation.geometry import check_draft
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.model import ModelGeometry
from kvbench.measure.job import CaseJob
from kvbench.measure.kernel_geometry import one_layer
from kvbench.spec.cases import Case, expand
from kvbench.spec.engine import EngineSettings
from kvbench.spec.fields import Settings
from kvbench.spec.load import LoadedSuite
from kvbench.spec.suite import ModelSettings, Suite
from kvbench.spec.workload import WorkloadSettings
from kvbench.store.setting_columns import setting_row
from kvbench.sweep import resolve
from kvbench.sweep.code_digest import cost_model_digest, engine_digest, kernel_digest
from kvbench.sweep.labels import labels
from kvbench.workload.build import Workload, build_workload
from kvbench.workload.sharing import explainable_hit_tokens, explainable_tokens_inside_blocks


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """One case as it will be measured. `refusal` says, with the arithmetic, why it cannot be."""

    case: Case
    job: CaseJob
    label: str
    memory: resolve.Memory
    workload: Workload | None = None
    refusal: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> tuple[int, int]:
        """Input and output tokens of the workload."""
        requests = self.workload.requests if self.workload else ()
        return sum(r.input_tokens for r in requests), sum(r.output_tokens for r in requests)


@dataclass(slots=True)
class SweepPlan:
    """A suite on this machine."""

    loaded: LoadedSuite
    machine: resolve.Machine
    threads: int
    repetitions: int
    cases: list[PlannedCase]
    auto_kv_bytes: int | None = None
    workloads: dict[str, Workload] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name → geometry and, of a checkpoint, its digest."""

    @property
    def device(self) -> Device:
        return self.machine.device

    @property
    def suite(self) -> Suite:
        return self.loaded.suite

    @property
    def runnable(self) -> list[PlannedCase]:
        return [case for case in self.cases if case.refusal is None]

    def round(self, sample: int, wanted: Iterable[str]) -> list[CaseJob]:
        """The wanted cases of one repetition in the order they will be measured: shuffled, by seed and repetition."""
        keep = set(wanted)
        jobs = [replace(case.job, sample=sample) for case in self.runnable]
        random.Random(f"{self.suite.measure.seed}/{sample}").shuffle(jobs)
        return [job for job in jobs if job.case_id in keep]

    def to_dict(self) -> dict[str, Any]:
        """plan.json: what the run controls besides the environment."""
        return {
            "suite": {
                "name": self.suite.name,
                "title": self.suite.title,
                "claim": self.suite.claim,
                "path": str(self.loaded.path),
                "digest": self.loaded.digest,
                "text": self.loaded.text,
                "effective": self.loaded.effective,
            },
            "clock": self.machine.clock,
            "cost_model": _cost_model_facts(self.machine),
            "device": {"kind": self.device.kind, "name": self.device.name, "memory_bytes": self.device.memory_bytes},
            "threads": self.threads,
            "repetitions": self.repetitions,
            "order_seed": self.suite.measure.seed,
            "order": [[job.case_id for job in self.round(n, self._ids())] for n in range(self.repetitions)],
            "measure": self.suite.measure.model_dump(mode="json"),
            "slo": self.suite.slo.model_dump(mode="json"),
            "auto_kv_memory_bytes": self.auto_kv_bytes,
            "engine_digest": engine_digest(),
            "kernel_digest": kernel_digest(),
            "models": self.models,
            "workloads": {digest: _workload_facts(w) for digest, w in self.workloads.items()},
            "cases": [_case_facts(case) for case in self.cases],
            "argv": sys.argv[1:],
        }

    def _ids(self) -> list[str]:
        return [case.job.case_id for case in self.cases]


def make_plan(loaded: LoadedSuite, *, repetitions: int | None = None, auto_kv_bytes: int | None = None) -> SweepPlan:
    """Resolve every case; `auto_kv_bytes` is what an earlier part of the run resolved `kv_memory = "auto"` to.

    Raises `UsageError` for what is wrong in the suite or its trace and `CannotRunError`, with
    the arithmetic, when no case at all can run on this machine."""
    suite = loaded.suite
    machine = resolve.find_machine(suite.measure)
    threads = Host().usable_cores() if suite.measure.threads == "auto" else int(suite.measure.threads)
    samples = repetitions or (1 if machine.is_virtual else suite.measure.repetitions)
    plan = SweepPlan(loaded, machine, threads, samples, [])
    cases = expand(suite)
    plan.auto_kv_bytes = auto_kv_bytes or _auto_kv_bytes(cases, machine)
    planner = _Planner(plan)
    plan.cases = [planner.plan(case, label) for case, label in zip(cases, labels(cases), strict=True)]
    if not plan.runnable:
        first = plan.cases[0]
        raise CannotRunError(
            f"none of the {len(plan.cases)} cases can run here; {first.label}: {first.refusal}",
            hint="make kv_memory, batch or lengths smaller (a trace: --scale-tokens, or -a max_input_tokens=…); "
            "where the weights alone are too large, take a smaller model.name or weight_dtype=bf16",
        )
    return plan


def _auto_kv_bytes(cases: list[Case], machine: resolve.Machine) -> int | None:
    """`kv_memory = "auto"`: the same bytes for every case that asks, as many as the neediest of them leaves. One that
    leaves none is refused later, by its own arithmetic; when all do, that is the error."""
    asking = {(case.model, case.engine) for case in cases if case.engine and case.engine.kv_memory == "auto"}
    found: list[int] = []
    error: CannotRunError | None = None
    for model, engine in asking:
        _, geometry = resolve.resolve_model_settings(model, machine.device)
        _check_built(geometry, machine)
        try:
            found.append(resolve.auto_kv_bytes(machine, geometry, engine))
        except CannotRunError as refused:
            error = refused
    if error is not None and not found:
        raise error
    return min(found, default=None)


def _check_built(geometry: ModelGeometry, machine: resolve.Machine) -> None:
    """Under the virtual clock no transformer runs, and a geometry is enough."""
    if not machine.is_virtual:
        check_runs(geometry)


class _Planner:
    """Resolves cases one by one and keeps what they share."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._workloads: dict[tuple[str, int], Workload] = {}
        self._explained: dict[tuple[str, int, bool], int] = {}
        self._checked: set[tuple[str, str]] = set()

    def plan(self, case: Case, label: str) -> PlannedCase:
        return self._kernel(case, label) if case.kind == "kernel" else self._engine(case, label)

    def _kernel(self, case: Case, label: str) -> PlannedCase:
        assert case.kernel is not None
        suite = self._plan.suite
        geometry = one_layer(case.kernel)
        memory = resolve.kernel_memory(case.kernel, geometry)
        attention = resolve.resolve_attention(case.kernel.attention, self._plan.machine)
        kernel = case.kernel.model_copy(update={"attention": attention})
        columns = {
            **self._columns(case, geometry),
            **setting_row({"kernel": kernel, "measure": suite.measure}),
            **case.axes,
        }
        job = self._job(case, columns, geometry, {"kernel": kernel.model_dump(mode="json")})
        return PlannedCase(case, job, label, memory, refusal=resolve.does_not_fit(memory, self._plan.machine))

    def _engine(self, case: Case, label: str) -> PlannedCase:
        assert case.engine is not None
        assert case.workload is not None
        machine, device = self._plan.machine, self._plan.device
        model, geometry = resolve.resolve_model_settings(case.model, device)
        _check_built(geometry, machine)
        self._note_model(model, geometry)
        check_draft(geometry, case.engine)
        self._check_draft_folder(case.engine)
        engine = resolve.resolve_engine(case.engine, machine, self._plan.auto_kv_bytes)
        limit = resolve.context_limit(engine, geometry)
        workload = self._workload(case.workload, limit)
        memory = resolve.engine_memory(geometry, engine, int(engine.kv_memory), device)
        settings: dict[str, Settings] = {"model": model, "engine": engine, "workload": case.workload}
        sections = {name: section.model_dump(mode="json") for name, section in settings.items()}
        columns = {
            **self._columns(case, geometry),
            **setting_row({**settings, "measure": self._plan.suite.measure, "slo": self._plan.suite.slo}),
            **case.axes,
            "workload_digest": workload.digest,
            "sharing": workload.sharing_label(engine.block_size),
            "weight_dtype_resolved": engine.weight_dtype,
            "cache_dtype": engine.kv_dtype,
        }
        job = replace(
            self._job(case, columns, geometry, sections, workload=workload),
            max_context=limit,
            workload_digest=workload.digest,
            explainable_hit_tokens=self._explain(workload, engine, geometry),
        )
        refusal, notes = self._verdict(memory, workload, engine, geometry)
        refusal = refusal or resolve.cannot_branch(case.workload, engine)
        refusal = refusal or resolve.cannot_reblock(workload, engine, geometry, self._plan.machine)
        refusal = refusal or resolve.cannot_speculate(case.workload, engine, machine)
        return PlannedCase(case, job, label, memory, workload, refusal, notes)

    def _verdict(
        self, memory: resolve.Memory, workload: Workload, engine: EngineSettings, geometry: ModelGeometry
    ) -> tuple[str | None, tuple[str, ...]]:
        refusal = (
            resolve.cannot_serve(engine, geometry)
            or resolve.does_not_fit(memory, self._plan.machine)
            or resolve.tiers_do_not_fit(engine, geometry, self._plan.machine)
        )
        count, arithmetic = resolve.too_long(workload, engine, geometry)
        total = len(workload.requests)
        if refusal is None and count == total:
            refusal = f"none of its {total} requests can be served: {arithmetic}"
        notes = (f"{count} of {total} requests will be rejected: {arithmetic}",) if 0 < count < total else ()
        return refusal, notes

    def _job(
        self,
        case: Case,
        columns: dict[str, Any],
        geometry: ModelGeometry,
        sections: dict[str, Any],
        workload: Workload | None = None,
    ) -> CaseJob:
        facts: dict[str, object] = {
            "sections": sections,
            "kernels": kernel_digest(),
            "engine": engine_digest(),
            "device": self._plan.device.name,
            **self._clock_facts(),
            "workload": workload.digest if workload else None,
        }
        if case.kind == "engine" and case.model.weights == "checkpoint" and not self._plan.machine.is_virtual:
            facts["checkpoint"] = self._plan.models[sections["model"]["name"]]["checkpoint"]
        if case.engine is not None and case.engine.speculation == "draft-model":
            folder = Path(case.engine.draft_model or "")
            facts["draft"] = resolve.checkpoint_digest(folder) if folder.is_dir() else str(folder)
        return CaseJob(
            case_id=case.case_id,
            sample=0,
            kind=case.kind,
            fingerprint=resolve.fingerprint(case, facts, geometry),
            columns=columns,
            model=sections.get("model", {}),
            engine=sections.get("engine"),
            workload=sections.get("workload"),
            kernel=sections.get("kernel"),
            timeout_s=self._plan.suite.measure.timeout_s,
        )

    def _columns(self, case: Case, geometry: ModelGeometry) -> dict[str, Any]:
        machine = self._plan.machine
        columns = {
            "clock": machine.clock,
            "cost_model": machine.rates.label if machine.rates else None,
            "device": self._plan.device.kind,
            "device_name": self._plan.device.name,
            "threads": None if machine.is_virtual else self._plan.threads,
            "attention_mode": geometry.attention_mode,
        }
        return (
            columns if case.kind == "kernel" else {**columns, "model": geometry.name, "model_family": geometry.family}
        )

    def _clock_facts(self) -> dict[str, object]:
        """What decides times besides the device: threads, or the cost model's numbers and its code."""
        rates = self._plan.machine.rates
        if rates is None:
            return {"threads": self._plan.threads}
        return {"clock": "virtual", "rates": rates.digest, "cost_model_code": cost_model_digest()}

    def _check_draft_folder(self, engine: EngineSettings) -> None:
        """A draft model's folder is checked like a model's."""
        name = engine.draft_model if engine.speculation == "draft-model" else None
        if name is not None and not self._plan.machine.is_virtual and (name, "draft") not in self._checked:
            resolve.check_model_folder(name, "checkpoint" if Path(name).is_dir() else "random")
            self._checked.add((name, "draft"))

    def _note_model(self, model: ModelSettings, geometry: ModelGeometry) -> None:
        """What the manifest says of a model; a folder is checked, and a checkpoint read, once."""
        if not self._plan.machine.is_virtual and (model.name, model.weights) not in self._checked:
            resolve.check_model_folder(model.name, model.weights)
            self._checked.add((model.name, model.weights))
        facts = self._plan.models.setdefault(
            model.name, {"attention_mode": geometry.attention_mode, "geometry": asdict(geometry)}
        )
        if model.weights == "checkpoint" and "checkpoint" not in facts and not self._plan.machine.is_virtual:
            facts["checkpoint"] = resolve.checkpoint_digest(Path(model.name))

    def _workload(self, settings: WorkloadSettings, limit: int) -> Workload:
        if settings.source == "trace" and settings.trace is None:
            raise UsageError(
                f"suite {self._plan.suite.name!r} needs a trace",
                hint=f"kvbench sweep {self._plan.suite.name} --trace requests.csv",
            )
        key = (settings.model_dump_json(), limit)
        if key not in self._workloads:
            resolve.check_requests_fit(settings)
            self._workloads[key] = build_workload(settings, max_context=limit)
            self._plan.workloads[self._workloads[key].digest] = self._workloads[key]
        return self._workloads[key]

    def _explain(self, workload: Workload, engine: EngineSettings, geometry: ModelGeometry) -> int:
        if engine.prefix_cache == "none":
            return 0
        to = engine.reblock_to
        block_size = engine.block_size if to == "none" else min(to, engine.block_size)
        key = (workload.digest, block_size, engine.partial_block_reuse)
        if key not in self._explained:
            explain = explainable_tokens_inside_blocks if engine.partial_block_reuse else explainable_hit_tokens
            self._explained[key] = explain(workload, block_size, geometry.vocab_size)
        return self._explained[key]


def _cost_model_facts(machine: resolve.Machine) -> dict[str, Any] | None:
    if machine.rates is None:
        return None
    rates = machine.rates
    return {"label": rates.label, "source": rates.source, "digest": rates.digest, "rates": asdict(rates.rates)}


def _workload_facts(workload: Workload) -> dict[str, Any]:
    report = workload.report
    return {"seed": workload.seed, "report": {name: getattr(report, name) for name in report.__dataclass_fields__}}


def _case_facts(case: PlannedCase) -> dict[str, Any]:
    return {
        "case_id": case.job.case_id,
        "fingerprint": case.job.fingerprint,
        "kind": case.job.kind,
        "label": case.label,
        "axes": case.case.axes,
        "model": case.job.model,
        "engine": case.job.engine,
        "workload": case.job.workload,
        "kernel": case.job.kernel,
        "max_context": case.job.max_context,
        "workload_digest": case.job.workload_digest,
        "memory_bytes": case.memory.device_total,
        "refusal": case.refusal,
        "notes": list(case.notes),
    }
