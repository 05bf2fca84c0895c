"""A resolved case as what a worker is asked to measure, with its facts as columns and the digest of all that decides
its numbers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.measure.job import CaseJob
from kvbench.store.files import to_text
from kvbench.sweep.code_digest import cost_model_digest, engine_digest, kernel_digest
from kvbench.sweep.resolve import checkpoint_digest

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry
    from kvbench.spec.cases import Case
    from kvbench.sweep.plan import SweepPlan
    from kvbench.workload.build import Workload

Tuned = dict[str, dict[str, Any]]
"""Layers → the configuration that their kernel runs with."""


def case_job(
    plan: SweepPlan,
    case: Case,
    columns: dict[str, Any],
    geometry: ModelGeometry,
    sections: dict[str, Any],
    workload: Workload | None = None,
    tuned: Tuned | None = None,
) -> CaseJob:
    """`sections` are the suite's, resolved, as JSON; `columns` go into the case's row as they are."""
    facts: dict[str, object] = {
        "sections": sections,
        "kernels": kernel_digest(),
        "engine": engine_digest(),
        "device": plan.device.name,
        **_clock_facts(plan),
        "workload": workload.digest if workload else None,
        **({"tuned": tuned} if tuned else {}),
        **_file_facts(plan, case, sections),
    }
    return CaseJob(
        case_id=case.case_id,
        sample=0,
        kind=case.kind,
        fingerprint=_fingerprint(case, facts, geometry),
        columns=columns,
        model=sections.get("model", {}),
        engine=sections.get("engine"),
        workload=sections.get("workload"),
        kernel=sections.get("kernel"),
        tuned=tuned or {},
        timeout_s=plan.suite.measure.timeout_s,
    )


def case_columns(plan: SweepPlan, case: Case, geometry: ModelGeometry, tuned: Tuned) -> dict[str, Any]:
    """Clock, device, model and tuned kernels of a case, for its row."""
    machine = plan.machine
    columns = {
        "clock": machine.clock,
        "cost_model": machine.cost.label if machine.cost else None,
        "device": plan.device.kind,
        "device_name": plan.device.name,
        "threads": None if machine.is_virtual else plan.threads,
        "attention_mode": geometry.attention_mode,
    }
    if case.kind != "kernel":
        columns |= {"model": geometry.name, "model_family": geometry.family}
    return columns | ({"tuned": to_text(tuned)} if tuned else {})


def _clock_facts(plan: SweepPlan) -> dict[str, object]:
    """What decides times besides the device: threads, or the cost model's numbers and its code."""
    cost = plan.machine.cost
    if cost is None:
        return {"threads": plan.threads}
    return {"clock": "virtual", "rates": cost.digest, "cost_model_code": cost_model_digest()}


def _file_facts(plan: SweepPlan, case: Case, sections: dict[str, Any]) -> dict[str, object]:
    """Digests of a checkpoint and of a draft model, where the case has them."""
    facts: dict[str, object] = {}
    if case.kind == "engine" and case.model.weights == "checkpoint" and not plan.machine.is_virtual:
        facts["checkpoint"] = plan.models[sections["model"]["name"]]["checkpoint"]
    if case.engine is not None and case.engine.speculation == "draft-model":
        folder = Path(case.engine.draft_model or "")
        facts["draft"] = checkpoint_digest(folder) if folder.is_dir() else str(folder)
    return facts


def _fingerprint(case: Case, resolved: dict[str, object], geometry: ModelGeometry) -> str:
    """Digest of all that decides a sample's numbers besides chance: settings as resolved, model, code, device."""
    facts = {"case_id": case.case_id, "geometry": asdict(geometry), **resolved}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]
