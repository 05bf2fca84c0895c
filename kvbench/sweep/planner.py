"""Planning a sweep: every case of a suite resolved for this machine, or refused with the arithmetic."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from kvbench.devices.host import Host
from kvbench.engine.families import check_runs
from kvbench.engine.speculation.geometry import check_draft
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.model import ModelGeometry
from kvbench.measure.kernel_geometry import one_layer, query_dtype
from kvbench.spec.cases import Case, expand
from kvbench.spec.engine import EngineSettings
from kvbench.spec.fields import Settings
from kvbench.spec.load import LoadedSuite
from kvbench.spec.suite import CacheState, ModelSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.store.setting_columns import setting_row
from kvbench.sweep import refusals, resolve
from kvbench.sweep.branches import cannot_branch, too_wide
from kvbench.sweep.case_job import case_columns, case_job
from kvbench.sweep.labels import labels
from kvbench.sweep.machine import Machine, find_machine
from kvbench.sweep.memory import Memory, auto_kv_bytes, does_not_fit, engine_memory, kernel_memory, tiers_do_not_fit
from kvbench.sweep.plan import PlannedCase, SweepPlan
from kvbench.sweep.recorded import Recorded
from kvbench.sweep.tuned import TunedConfigurations
from kvbench.workload.beforehand import requests_before
from kvbench.workload.build import Workload, build_workload
from kvbench.workload.sharing import explainable_hit_tokens, explainable_tokens_inside_blocks


def make_plan(
    loaded: LoadedSuite,
    *,
    repetitions: int | None = None,
    auto_kv_bytes: int | None = None,
    recorded: Recorded | None = None,
) -> SweepPlan:
    """Resolve every case; `auto_kv_bytes` is what an earlier part of the run resolved `kv_memory = "auto"` to, and
    `recorded` what a run that is reproduced had: its threads, models and requests.

    Raises `UsageError` for what is wrong in the suite or its trace and `CannotRunError`, with
    the arithmetic, when no case at all can run on this machine."""
    suite = loaded.suite
    machine = find_machine(suite.measure)
    threads = Host().usable_cores() if suite.measure.threads == "auto" else int(suite.measure.threads)
    samples = repetitions or (1 if machine.is_virtual else suite.measure.repetitions)
    threads = recorded.threads if recorded else threads
    tuned = TunedConfigurations(machine, threads, is_on=suite.measure.tuned)
    plan = SweepPlan(loaded, machine, threads, samples, [], tuned)
    cases = expand(suite)
    plan.auto_kv_bytes = auto_kv_bytes or _auto_kv_bytes(cases, machine)
    planner = _Planner(plan, recorded)
    plan.cases = [planner.plan(case, label) for case, label in zip(cases, labels(cases), strict=True)]
    if not plan.runnable:
        first = plan.cases[0]
        raise CannotRunError(
            f"none of the {len(plan.cases)} cases can run here; {first.label}: {first.refusal}",
            hint="change what the reason names; too much memory: a smaller kv_memory, batch or lengths (a trace: "
            "--scale-tokens, or -a max_input_tokens=…), or a smaller model.name or weight_dtype=bf16",
        )
    return plan


def _auto_kv_bytes(cases: list[Case], machine: Machine) -> int | None:
    """`kv_memory = "auto"`: the same bytes for every case that asks, as many as the neediest of them leaves. One that
    leaves none is refused later, by its own arithmetic; when all do, that is the error."""
    asking = {(case.model, case.engine) for case in cases if case.engine and case.engine.kv_memory == "auto"}
    found: list[int] = []
    error: CannotRunError | None = None
    for model, engine in asking:
        _, geometry = resolve.resolve_model_settings(model, machine.device)
        _check_built(geometry, machine)
        try:
            found.append(auto_kv_bytes(machine, geometry, engine))
        except CannotRunError as refused:
            error = refused
    if error is not None and not found:
        raise error
    return min(found, default=None)


def _check_built(geometry: ModelGeometry, machine: Machine) -> None:
    """Under the virtual clock no transformer runs, and a geometry is enough."""
    if not machine.is_virtual:
        check_runs(geometry)


class _Planner:
    """Resolves cases one by one and keeps what they share."""

    def __init__(self, plan: SweepPlan, recorded: Recorded | None = None) -> None:
        self._plan = plan
        self._recorded = recorded
        self._workloads: dict[tuple[str, int], Workload] = {}
        self._explained: dict[tuple[str, int, bool, CacheState], int] = {}
        self._checked: set[tuple[str, str]] = set()

    def plan(self, case: Case, label: str) -> PlannedCase:
        return self._kernel(case, label) if case.kind == "kernel" else self._engine(case, label)

    def _kernel(self, case: Case, label: str) -> PlannedCase:
        assert case.kernel is not None
        suite = self._plan.suite
        geometry = one_layer(case.kernel)
        memory = kernel_memory(case.kernel, geometry)
        attention = resolve.resolve_attention(case.kernel.attention, self._plan.machine)
        kernel = case.kernel.model_copy(update={"attention": attention})
        tuned = self._plan.tuned.of_kernel(kernel, geometry)
        columns = {
            **case_columns(self._plan, case, geometry, tuned),
            **setting_row({"kernel": kernel, "measure": suite.measure}),
            **case.axes,
            "query_dtype": query_dtype(kernel, self._plan.machine.device.kind),
        }
        sections = {"kernel": kernel.model_dump(mode="json")}
        job = case_job(self._plan, case, columns, geometry, sections, tuned=tuned)
        refusal = refusals.cannot_price_kernels(self._plan.machine) or does_not_fit(memory, self._plan.machine)
        return PlannedCase(case, job, label, memory, refusal=refusal)

    def _engine(self, case: Case, label: str) -> PlannedCase:
        assert case.engine is not None
        assert case.workload is not None
        machine, device = self._plan.machine, self._plan.device
        model, geometry = resolve.resolve_model_settings(self._model(case), device)
        _check_built(geometry, machine)
        self._note_model(model, geometry)
        check_draft(geometry, case.engine)
        self._check_draft_folder(case.engine)
        engine = resolve.resolve_engine(case.engine, machine, self._plan.auto_kv_bytes)
        limit = resolve.context_limit(engine, geometry)
        workload = self._recorded_workload(case) or self._workload(case.workload, limit)
        memory = engine_memory(geometry, engine, int(engine.kv_memory), device)
        settings: dict[str, Settings] = {"model": model, "engine": engine, "workload": case.workload}
        measure = self._plan.suite.measure.model_copy(update={"cache_state": case.cache_state})
        sections = {name: section.model_dump(mode="json") for name, section in settings.items()}
        tuned = self._plan.tuned.of_engine(engine, geometry, workload)
        columns = {
            **case_columns(self._plan, case, geometry, tuned),
            **setting_row({**settings, "measure": measure, "slo": self._plan.suite.slo}),
            **case.axes,
            "workload_digest": workload.digest,
            "sharing": workload.sharing_label(engine.block_size),
            "weight_dtype_resolved": engine.weight_dtype,
            "cache_dtype": engine.kv_dtype,
        }
        job = replace(
            case_job(self._plan, case, columns, geometry, sections, workload, tuned),
            max_context=limit,
            workload_digest=workload.digest,
            requests_from=self._recorded.folder if self._recorded else None,
            explainable_hit_tokens=self._explain(workload, engine, geometry, case.cache_state),
            cache_state=case.cache_state,
        )
        refusal, notes = self._verdict(memory, workload, engine, geometry)
        refusal = refusal or refusals.arrives_too_late(workload, machine, measure.timeout_s)
        refusal = refusal or cannot_branch(workload, case.workload.sampling, engine, geometry, limit)
        refusal = refusal or refusals.cannot_reblock(workload, engine, geometry, self._plan.machine)
        refusal = refusal or refusals.cannot_speculate(case.workload, engine, machine)
        refusal = refusal or refusals.cannot_capture(engine, geometry, machine)
        refusal = refusal or refusals.cannot_price(engine, geometry, machine)
        if refusal is None:
            count, arithmetic = too_wide(workload, case.workload.sampling, engine, geometry, limit)
            notes += _rejections(count, len(workload.requests), arithmetic)
        return PlannedCase(case, job, label, memory, workload, refusal, notes)

    def _model(self, case: Case) -> ModelSettings:
        """The model that the case asks for; `auto` is what it was in a run that is reproduced."""
        name = self._recorded.model_of(case) if self._recorded and case.model.name == "auto" else None
        return case.model.model_copy(update={"name": name}) if name else case.model

    def _recorded_workload(self, case: Case) -> Workload | None:
        """The requests of the run that is reproduced."""
        found = self._recorded.workload_of(case) if self._recorded else None
        if found is not None:
            self._plan.workloads[found.digest] = found
        return found

    def _verdict(
        self, memory: Memory, workload: Workload, engine: EngineSettings, geometry: ModelGeometry
    ) -> tuple[str | None, tuple[str, ...]]:
        refusal = (
            refusals.cannot_serve(engine, geometry)
            or does_not_fit(memory, self._plan.machine)
            or tiers_do_not_fit(engine, geometry, self._plan.machine)
        )
        count, arithmetic = refusals.too_long(workload, engine, geometry)
        total = len(workload.requests)
        if refusal is None and count == total:
            refusal = f"none of its {total} requests can be served: {arithmetic}"
        return refusal, _rejections(count, total, arithmetic)

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

    def _explain(self, workload: Workload, engine: EngineSettings, geometry: ModelGeometry, state: CacheState) -> int:
        if engine.prefix_cache == "none":
            return 0
        to = engine.reblock_to
        block_size = engine.block_size if to == "none" else min(to, engine.block_size)
        key = (workload.digest, block_size, engine.partial_block_reuse, state)
        if key not in self._explained:
            explain = explainable_tokens_inside_blocks if engine.partial_block_reuse else explainable_hit_tokens
            before = requests_before(workload, state, self._plan.suite.measure.steady_share)
            self._explained[key] = explain(workload, block_size, geometry.vocab_size, before)
        return self._explained[key]


def _rejections(count: int, total: int, arithmetic: str) -> tuple[str, ...]:
    return (f"{count} of {total} requests will be rejected: {arithmetic}",) if 0 < count < total else ()
