"""The chosen candidate as the settings that another server is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.analysis.advice.flags import Answer
from kvbench.errors import UsageError
from kvbench.sweep.advice.pools import context_of

if TYPE_CHECKING:
    from kvbench.sweep.advise import Advice


def answer_of(advice: Advice) -> Answer:
    """Block size and KV dtype always, what else was an axis or an override, and the pool where its bytes were named.

    Raises `UsageError` where nothing was chosen."""
    row, question = advice.chosen, advice.question
    if row is None:
        raise UsageError("nothing is recommended, so there are no flags")
    engine = row.settings
    named = {
        name.rpartition(".")[2] for name in (*advice.axes, *(text.partition("=")[0] for text in question.overrides))
    }
    geometry = advice.evidence.whole
    capability = advice.evidence.device.compute_capability
    return Answer(
        block_size=engine.block_size,
        kv_dtype=engine.kv_dtype,
        kv_scales=engine.kv_scales,
        max_sequences=engine.max_sequences if "max_sequences" in named else None,
        max_batch_tokens=engine.max_batch_tokens if "max_batch_tokens" in named else None,
        batch_policy=engine.batch_policy if "batch_policy" in named else None,
        prefix_cache=engine.prefix_cache != "none" if "prefix_cache" in named else None,
        host_bytes=engine.host_memory if engine.offload != "none" and "offload" in named else None,
        kv_bytes=question.kv_memory_bytes,
        tp=question.tp,
        max_context=context_of(advice.evidence, engine) if "max_context" in named else None,
        is_latent=any(group.kind == "latent" for group in geometry.groups),
        capability=float(capability) if capability else None,
    )
