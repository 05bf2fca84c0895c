"""What a KV dtype costs in numbers: logits of a short prompt with the stored form against full precision (M34)."""

from __future__ import annotations

import numpy as np
import torch

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.batch import StepBatch
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.model import Model
from kvbench.geometry.memory import pool_layout
from kvbench.workload.request import Segment
from kvbench.workload.tokens import foreign_stream, token_ids

PROMPT_TOKENS = 128


def kv_error(model: Model, kv_dtype: str, block_size: int) -> dict[str, float]:
    """Relative root-mean-square and largest error of the logits at every position of one foreign prompt.

    The reference keeps K and V in fp32; both sides prefill the same `PROMPT_TOKENS` tokens through the paged path,
    so that the difference is the storage dtype's alone.
    """
    reference = _logits(model, "fp32", block_size)
    stored = reference if kv_dtype == "fp32" else _logits(model, kv_dtype, block_size)
    difference = stored - reference
    return {
        "kv_error_rel_rms": float(difference.square().mean().sqrt() / reference.square().mean().sqrt()),
        "kv_error_max_abs": float(difference.abs().max()),
        "kv_top1_agreement": float((stored.argmax(-1) == reference.argmax(-1)).float().mean()),
    }


def _logits(model: Model, kv_dtype: str, block_size: int) -> torch.Tensor:
    count = min(PROMPT_TOKENS, model.geometry.max_context)
    blocks = -(-count // block_size)
    device = str(model.device)
    pieces = len(pool_layout(model.geometry, kv_dtype, block_size).pieces)
    store = KVStore(model.geometry, kv_dtype, block_size, pieces * blocks, device=device)
    tables = np.arange(1, pieces * blocks + 1, dtype=np.int32).reshape(pieces, 1, blocks)  # block 0 is the null block
    backend = attention_backend("torch", device)
    positions = np.arange(count, dtype=np.int64)
    batch = StepBatch(
        token_ids=token_ids((Segment(foreign_stream(), 0, count),), 0, model.geometry.vocab_size).astype(np.int64),
        positions=positions,
        slots=tables[:, 0, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        block_tables=tables,
        query_starts=np.array([0, count], dtype=np.int32),
        context_lengths=np.array([count], dtype=np.int32),
        num_decodes=0,
        logit_rows=positions,
    )
    return model.forward(batch, store, backend).double().cpu()
