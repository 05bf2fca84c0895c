"""What a sweep would do: cases, expected time and memory, what cannot fit and why (M07)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvbench import tabulate
from kvbench.sweep.estimate import Estimate, estimate
from kvbench.sweep.plan import PlannedCase, SweepPlan
from kvbench.units import format_bytes, format_duration, format_seconds


def show(plan: SweepPlan, results: Path, form: str) -> None:
    """Print the plan to stdout."""
    expected = estimate(plan, results)
    facts = as_dict(plan, expected)
    if form == "json":
        print(tabulate.as_json(facts))
    elif form == "csv":
        names = ["case_id", "kind", "label", "requests", "memory_bytes", "expected_s", "refusal"]
        print(tabulate.comma_separated(names, [[case[name] for name in names] for case in facts["cases"]]))
    else:
        _print_text(plan, expected, form)


def as_dict(plan: SweepPlan, expected: Estimate) -> dict[str, Any]:
    """The plan as plain data: seconds and bytes."""
    return {
        "suite": plan.suite.name,
        "clock": plan.machine.clock,
        "device": plan.device.name,
        "threads": plan.threads,
        "repetitions": plan.repetitions,
        "samples": len(plan.cases) * plan.repetitions,
        "expected_total_s": expected.total_s,
        "expected_from": expected.source,
        "cases": [_case(case, expected) for case in plan.cases],
    }


def _case(case: PlannedCase, expected: Estimate) -> dict[str, Any]:
    return {
        "case_id": case.job.case_id,
        "kind": case.job.kind,
        "label": case.label,
        "axes": case.case.axes,
        "model": case.job.columns.get("model"),
        "requests": len(case.workload.requests) if case.workload else None,
        "memory_bytes": case.memory.device_total,
        "kv_bytes": case.memory.kv,
        "host_tier_bytes": case.memory.host_tier,
        "expected_s": expected.case_s.get(case.job.case_id),
        "refusal": case.refusal,
        "notes": list(case.notes),
    }


def _print_text(plan: SweepPlan, expected: Estimate, form: str) -> None:
    header = ["case", "kind", "settings", "requests", "KV", "memory", "expected"]
    rows = [_row(case, expected) for case in plan.cases]
    right = frozenset({3, 4, 5, 6})
    if form == "md":
        table = tabulate.markdown(header, rows, right=right)
        lines = [f"* {tabulate.escape_markdown(line)}" for line in _summary(plan, expected)]
    else:
        table = tabulate.aligned(header, rows, right=right, width=tabulate.stdout_width())
        lines = [tabulate.one_line(line) for line in _summary(plan, expected)]
    print(table, "", *lines, sep="\n")


def _summary(plan: SweepPlan, expected: Estimate) -> Iterator[str]:
    total = "unknown time" if expected.total_s is None else f"about {format_duration(expected.total_s)}"
    samples = len(plan.runnable) * plan.repetitions
    yield f"{len(plan.cases)} cases × {plan.repetitions} repetitions = {samples} samples to take, {total}"
    yield f"expected times from: {expected.source}"
    if plan.machine.cost is not None:
        yield f"virtual clock: {plan.device.name} by {plan.machine.cost.label}, no tensors"
    else:
        yield f"device: {plan.device.name}, {plan.threads} threads"
    for case in plan.cases:
        for text in filter(None, (case.refusal and f"cannot run: {case.refusal}", *case.notes)):
            yield f"{case.label}: {text}"


def _row(case: PlannedCase, expected: Estimate) -> list[str]:
    return [
        case.job.case_id,
        case.job.kind,
        case.label,
        str(len(case.workload.requests)) if case.workload else "–",
        format_bytes(case.memory.kv),
        format_bytes(case.memory.device_total),
        "cannot run" if case.refusal else format_seconds(expected.case_s.get(case.job.case_id)),
    ]
