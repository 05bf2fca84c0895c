"""What a drafter asks of the models, and how much KV it takes. Torch-free: the plan of a sweep asks the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.errors import UsageError
from kvbench.geometry.memory import pool_layout
from kvbench.geometry.resolve import resolve_model

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry
    from kvbench.spec.engine import EngineSettings

_WIDE = ("fp32", "fp16", "bf16")


def check_draft(target: ModelGeometry, settings: EngineSettings) -> ModelGeometry | None:
    """The draft model's geometry, None without one; `UsageError` when the drafter does not suit the model."""
    if settings.speculation == "first-layers" and int(settings.draft_layers or 0) >= target.num_layers:
        raise UsageError(
            f"draft_layers is {settings.draft_layers}, and {target.name} has {target.num_layers} layers",
            hint=f"draft with 1 to {target.num_layers - 1} of them",
        )
    if settings.speculation != "draft-model":
        return None
    draft = resolve_model(settings.draft_model or "")
    if draft.vocab_size != target.vocab_size:
        raise UsageError(
            f"the draft {draft.name} has a vocabulary of {draft.vocab_size} tokens, {target.name} one of "
            f"{target.vocab_size}",
            hint="a draft model must share the tokens of the model that it drafts for",
        )
    for model in (target, draft):
        if [group.kind for group in model.groups] != ["full"]:
            raise UsageError(
                f"{model.name} does not see its whole context in every layer, and a draft model keeps its KV in the "
                "blocks of one that does",
                hint='use speculation = "prompt-lookup" or "first-layers"',
            )
    return draft


def draft_kv_dtype(settings: EngineSettings) -> str:
    """The stored form of the draft's KV: `kv_dtype`, or fp16 where that is narrower than two bytes."""
    return settings.kv_dtype if settings.kv_dtype in _WIDE else "fp16"


def draft_block_bytes(target: ModelGeometry, settings: EngineSettings) -> int:
    """What the draft's KV adds to every block."""
    draft = check_draft(target, settings)
    return 0 if draft is None else pool_layout(draft, draft_kv_dtype(settings), settings.block_size).block_bytes
