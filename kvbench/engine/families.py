"""The model families that the transformer runs, and what each does beyond llama. Torch-free, so that a plan can refuse
what it does not run at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry


@dataclass(frozen=True, slots=True)
class Family:
    """`norm_offset` + the stored weight is what an RMS norm multiplies by. `scales_embedding`: token embeddings are
    multiplied by √hidden_size. `router` names how a mixture of experts chooses (`engine/experts.py`)."""

    norm_offset: float = 0.0
    scales_embedding: bool = False
    router: str | None = None


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "gemma2": Family(norm_offset=1.0, scales_embedding=True),
    "gemma3_text": Family(norm_offset=1.0, scales_embedding=True),
    "gpt_oss": Family(router="top-k-then-softmax"),
    "deepseek_v2": Family(router="softmax-then-top-k"),
    "deepseek_v3": Family(router="sigmoid-with-correction"),
}
"""By Hugging Face `model_type`."""
ACTIVATIONS = ("silu", "swish", "gelu_pytorch_tanh")
"""`hidden_act`s of the MLP's gate."""


def check_runs(geometry: ModelGeometry) -> None:
    """`UsageError` for a model that the transformer does not run."""
    if geometry.family not in FAMILIES:
        raise UsageError(
            f"the engine cannot run {geometry.name} (family {geometry.family})",
            hint=f"its transformer covers {', '.join(FAMILIES)}; --clock virtual and `kvbench size` need none",
        )
    if geometry.hidden_act not in ACTIVATIONS:
        raise UsageError(
            f"{geometry.name}: hidden_act {geometry.hidden_act!r} is not supported",
            hint=f"the engine computes {', '.join(ACTIVATIONS)}",
        )
