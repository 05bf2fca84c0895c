"""The plan of a sweep: every case resolved for this machine, what it needs, and in which order samples are taken."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvbench.devices.facts import Device
from kvbench.measure.job import CaseJob
from kvbench.spec.cases import Case
from kvbench.spec.load import LoadedSuite
from kvbench.spec.suite import Suite
from kvbench.sweep.code_digest import cost_model_digest, engine_digest, kernel_digest
from kvbench.sweep.machine import Machine
from kvbench.sweep.memory import Memory
from kvbench.sweep.tuned import TunedConfigurations
from kvbench.workload.build import Workload


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """One case as it will be measured. `refusal` says, with the arithmetic, why it cannot be."""

    case: Case
    job: CaseJob
    label: str
    memory: Memory
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
    machine: Machine
    threads: int
    repetitions: int
    cases: list[PlannedCase]
    tuned: TunedConfigurations
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
            "tuned": self.tuned.facts(),
            "engine_digest": engine_digest(),
            **({"cost_model_code_digest": cost_model_digest()} if self.machine.is_virtual else {}),
            "kernel_digest": kernel_digest(),
            "models": self.models,
            "workloads": {digest: _workload_facts(w) for digest, w in self.workloads.items()},
            "cases": [_case_facts(case) for case in self.cases],
            "argv": sys.argv[1:],
        }

    def _ids(self) -> list[str]:
        return [case.job.case_id for case in self.cases]


def _cost_model_facts(machine: Machine) -> dict[str, Any] | None:
    cost = machine.cost
    if cost is None:
        return None
    return {"label": cost.label, "source": cost.source, "digest": cost.digest, **cost.facts()}


def _workload_facts(workload: Workload) -> dict[str, Any]:
    return {"seed": workload.seed, "report": asdict(workload.report)}


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
        "tuned": case.job.tuned,
        "max_context": case.job.max_context,
        "workload_digest": case.job.workload_digest,
        "memory_bytes": case.memory.device_total,
        "refusal": case.refusal,
        "notes": list(case.notes),
    }
