"""Jobs by name: prompts and outputs that are never written down as tokens. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.symbolic import Run, SymbolicContent
from kvbench.engine.job import Job
from kvbench.errors import UsageError
from kvbench.workload.sharing import runs

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry
    from kvbench.spec.engine import EngineSettings
    from kvbench.workload.request import Request

_NO_TOKEN = np.zeros((), np.int32)


@dataclass(frozen=True, slots=True)
class SymbolicJob(Job):
    """A job whose prompt has a length and no tokens; `named` are prompt and output, joined."""

    named: tuple[Run, ...] = ()

    def content(self) -> SymbolicContent:
        return SymbolicContent(self.named, len(self.prompt), salt=self.salt, priority=self.priority)


def check_symbolic(g: ModelGeometry, settings: EngineSettings) -> None:
    """`UsageError` where something looks into tokens or keys for itself."""
    plain = settings.prefix_cache in ("none", "hash") and settings.offload == "none"
    if not plain or settings.partial_block_reuse or any(group.kind == "window" for group in g.groups):
        raise UsageError(
            "named contents need a hash prefix cache over whole blocks, without windows and lower tiers",
            hint="serve tokens, or simplify the settings",
        )


def symbolic_job(request: Request, seed: int) -> SymbolicJob:
    """The job of a request whose output is forced; `UsageError` for a sampled one, which has no name beforehand."""
    if request.output is None:
        raise UsageError(
            f"request {request.request_id} samples its output, whose tokens have no name",
            hint='set workload.outputs = "forced"',
        )
    joined = runs((*request.prompt, *request.output))
    return SymbolicJob(
        request_id=request.request_id,
        prompt=np.broadcast_to(_NO_TOKEN, request.input_tokens),
        max_tokens=request.output_tokens,
        arrival_s=request.arrival_s,
        salt=request.salt,
        seed=seed,
        priority=request.priority,
        named=tuple((segment.stream, segment.start, segment.length) for segment in joined),
    )
