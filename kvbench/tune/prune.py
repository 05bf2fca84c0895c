"""What is worth timing: everything that cannot be launched, spills, or is another configuration's code is dropped, with
why; the rest is ranked. Torch-free."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvbench.devices.facts import Device
from kvbench.tune.compile_pool import Outcome
from kvbench.tune.occupancy import WARP, Occupancy, occupancy
from kvbench.tune.rank import Prediction, predict
from kvbench.tune.resources import Resources
from kvbench.tune.targets import Target
from kvbench_kernels.specs import CompileSpec, KernelShape

STATUSES = {
    "kept": "worth timing",
    "refused": "not a configuration of this shape; never compiled",
    "compile_error": "the compiler said no",
    "timeout": "the compiler was still busy when its time was over",
    "crashed": "the compiler took its process with it",
    "does_not_fit": "needs more than the device has",
    "spills": "registers are spilled to memory",
    "same_code": "the machine code and launch of another configuration, which is timed for both",
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration before anything is known of it; `refusal` is why the kernel cannot have it, "" if it can."""

    configuration: Mapping[str, Any]
    is_default: bool
    refusal: str = ""
    spec: CompileSpec | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """One configuration, its place in the space, one of `STATUSES` and why; `rank` counts the kept ones from 1."""

    number: int
    candidate: Candidate
    status: str
    reason: str = ""
    outcome: Outcome | None = None
    occupancy: Occupancy | None = None
    same_code_as: int | None = None
    prediction: Prediction | None = None
    rank: int | None = None

    @property
    def resources(self) -> Resources | None:
        return self.outcome.resources if self.outcome else None


def judge(
    kernel: str,
    shape: KernelShape,
    candidates: Sequence[Candidate],
    outcomes: Sequence[Outcome | None],
    target: Target,
    device: Device,
) -> list[Judged]:
    """Every candidate judged, in the order of the space. `outcomes` are None for the refused ones."""
    judged = [
        _alone(kernel, shape, number, candidate, outcome, target, device)
        for number, (candidate, outcome) in enumerate(zip(candidates, outcomes, strict=True))
    ]
    return _ranked(_distinct(judged, launch_fields(candidates)))


def _alone(
    kernel: str,
    shape: KernelShape,
    number: int,
    candidate: Candidate,
    outcome: Outcome | None,
    target: Target,
    device: Device,
) -> Judged:
    if outcome is None:
        return Judged(number, candidate, "refused", candidate.refusal)
    found = outcome.resources
    if found is None:
        return Judged(number, candidate, outcome.status, outcome.reason, outcome)
    resident = occupancy(found.registers, found.shared_bytes, found.warps, target, found.tensor_memory_columns)
    judged = Judged(number, candidate, "kept", "", outcome, resident)
    if reason := does_not_fit(found, resident, target):
        return replace(judged, status="does_not_fit", reason=reason)
    if found.spill_bytes:
        reason = f"{found.spill_store_bytes} bytes of spill stores and {found.spill_load_bytes} of spill loads a thread"
        return replace(judged, status="spills", reason=reason)
    return replace(judged, prediction=predict(kernel, shape, candidate.configuration, resident, device))


def does_not_fit(found: Resources, resident: Occupancy, target: Target) -> str:
    """What the device has too little of for one block, with the numbers (K09, K23); "" where one fits."""
    limit = target.shared_per_block_bytes
    if found.shared_bytes > limit:
        return f"{found.shared_bytes} bytes of shared memory; a block on {target.name} can have {limit}"
    columns = target.tensor_memory_columns
    if found.tensor_memory_columns > columns:
        return f"{found.tensor_memory_columns} columns of tensor memory; {target.name} has {columns}"
    if found.warps * WARP > target.threads_per_block:
        return f"{found.warps * WARP} threads; a block can have {target.threads_per_block}"
    if not resident.blocks:
        return (
            f"{found.registers} registers for each of {found.warps * WARP} threads; an SM has {target.registers_per_sm}"
        )
    return ""


def launch_fields(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Fields of a configuration that change the launch alone and never what is compiled: configurations that differ in
    them are different trials, whatever their code."""
    compiled = [candidate for candidate in candidates if candidate.spec is not None]
    fields = list(compiled[0].configuration) if compiled else []
    return tuple(field for field in fields if not _is_compiled_in(field, compiled))


def _is_compiled_in(field: str, candidates: Sequence[Candidate]) -> bool:
    specs: dict[str, str] = {}
    for candidate in candidates:
        others = json.dumps({name: value for name, value in candidate.configuration.items() if name != field})
        if specs.setdefault(others, spec_key(candidate.spec)) != spec_key(candidate.spec):
            return True
    return False


def spec_key(spec: CompileSpec | None) -> str:
    """Equal for equal compiles."""
    return repr(spec)


def _distinct(judged: list[Judged], launch: tuple[str, ...]) -> list[Judged]:
    """Of those with one code and one launch, the default or else the first is kept."""
    first: dict[tuple[Any, ...], int] = {}
    for one in sorted(judged, key=lambda one: not one.candidate.is_default):
        if one.status == "kept" and one.resources:
            first.setdefault(_identity(one, launch), one.number)
    return [
        replace(one, status="same_code", same_code_as=same, prediction=None)
        if one.status == "kept" and (same := first[_identity(one, launch)]) != one.number
        else one
        for one in judged
    ]


def _identity(one: Judged, launch: tuple[str, ...]) -> tuple[Any, ...]:
    digest = one.resources.code_digest if one.resources else ""
    return (digest, *(one.candidate.configuration[field] for field in launch))


def _ranked(judged: list[Judged]) -> list[Judged]:
    """By the model's seconds where the kernel has a model, those within a per cent being equal; then by occupancy, then
    by fewer registers, then by the order of the space."""
    kept = sorted((one for one in judged if one.status == "kept"), key=_order)
    ranks = {one.number: rank for rank, one in enumerate(kept, 1)}
    return [replace(one, rank=ranks.get(one.number)) for one in judged]


def _order(one: Judged) -> tuple[int, float, int, int]:
    per_cents = round(100 * math.log(one.prediction.seconds)) if one.prediction else 0
    share = one.occupancy.share if one.occupancy else 0.0
    return (per_cents, -share, one.resources.registers if one.resources else 0, one.number)
