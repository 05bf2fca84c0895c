"""What a KV dtype costs in numbers: logits of a short prompt with the stored form against full precision (M34)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.engine.alone import foreign_prompt, prefill_alone
from kvbench.geometry.dtypes import canonical_dtype

if TYPE_CHECKING:
    from kvbench.engine.kvstore.scales import TensorScales
    from kvbench.engine.model import Model

PROMPT_TOKENS = 128


def kv_error(
    model: Model, kv_dtype: str, block_size: int, tensor_scales: TensorScales | None = None
) -> dict[str, float]:
    """Relative root-mean-square and largest error of the logits at every position of one foreign prompt.

    The reference keeps K and V in fp32; both sides prefill the same `PROMPT_TOKENS` tokens through the paged path,
    so that the difference is the storage dtype's alone. `tensor_scales` are the case's static ones, if it has any.
    """
    prompt = foreign_prompt(model, PROMPT_TOKENS)
    reference = prefill_alone(model, prompt, "fp32", block_size).double().cpu()
    stored = reference
    if canonical_dtype(kv_dtype) != "fp32":
        logits = prefill_alone(model, prompt, kv_dtype, block_size, tensor_scales=tensor_scales)
        stored = logits.double().cpu()
    difference = stored - reference
    return {
        "kv_error_rel_rms": float(difference.square().mean().sqrt() / reference.square().mean().sqrt()),
        "kv_error_max_abs": float(difference.abs().max()),
        "kv_top1_agreement": float((stored.argmax(-1) == reference.argmax(-1)).float().mean()),
    }
