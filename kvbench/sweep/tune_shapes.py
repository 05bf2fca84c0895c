"""Which shapes of a kernel a suite or a trace asks for: what `kvbench tune --suite` tunes. Torch-free."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvbench.errors import UsageError
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import KernelSettings, ModelSettings
from kvbench.sweep.resolve import resolve_model_settings
from kvbench.sweep.tuned import engine_case_shapes, kernel_case_shape
from kvbench.tuned.kernels import backends_of, kernel_of
from kvbench.tuned.key import TunedKey, bucket, key_of

if TYPE_CHECKING:
    from kvbench.sweep.plan import PlannedCase, SweepPlan
    from kvbench.workload.build import Workload
    from kvbench_kernels.specs import KernelShape


def shapes_of_plan(plan: SweepPlan, kernel: str) -> list[KernelShape]:
    """What a plan's cases ask of a kernel, each bucket once; of a trace also the other contexts that its tokens are
    decoded at. `UsageError` when no case that can run uses the kernel."""
    found: dict[TunedKey, KernelShape] = {}
    for case in plan.runnable:
        for backend, shape in _case_shapes(plan, case, backends_of(kernel)):
            runs = kernel_of(backend, shape)
            if runs is not None and runs.name == kernel:
                found.setdefault(key_of(runs.name, runs.page, runs.compiler, "", shape), shape)
    if not found:
        raise UsageError(
            f"no case of suite {plan.suite.name!r} that can run here uses kernel {kernel}",
            hint="see the cases with kvbench sweep --dry-run",
        )
    return list(found.values())


def context_buckets(workload: Workload, share: float = 0.1) -> list[int]:
    """Powers of two of context at which at least that share of the decoded tokens is produced; the fullest if none."""
    tokens: dict[int, int] = {}
    for request in workload.requests:
        middle = bucket(request.input_tokens + max(1, request.output_tokens) // 2)
        tokens[middle] = tokens.get(middle, 0) + request.output_tokens
    total = sum(tokens.values())
    found = sorted(size for size, count in tokens.items() if total and count >= share * total)
    return found or sorted(tokens, key=lambda size: -tokens[size])[:1]


def _case_shapes(plan: SweepPlan, case: PlannedCase, backends: list[str]) -> list[tuple[str, KernelShape]]:
    """Every work of a case with its backend; none where that is not one of `backends`."""
    job = case.job
    if job.kernel is not None:
        kernel = KernelSettings.model_validate(job.kernel)
        shape = kernel_case_shape(kernel, plan.machine.device.kind)
        return [(kernel.attention, shape)] if kernel.attention in backends else []
    engine = EngineSettings.model_validate(job.engine)
    if engine.attention not in backends or case.workload is None:
        return []
    _, geometry = resolve_model_settings(ModelSettings.model_validate(job.model), plan.device)
    shapes = list(engine_case_shapes(engine, geometry, case.workload).values())
    others = context_buckets(case.workload) if case.workload.report.source != "synthetic" else []
    decodes = [shape for shape in shapes if shape.query_tokens == 1]
    shapes += [replace(shape, context=context) for shape in decodes for context in others]
    return [(engine.attention, shape) for shape in shapes]
