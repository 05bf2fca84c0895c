"""The memory budget of one device: M_gpu = M_weights + M_runtime + M_tables + M_kv + M_headroom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.geometry.memory import TOKEN_HEAD, PoolLayout, pool_layout
from kvbench.geometry.weights import weight_bytes

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry

DEVICE_CONTEXT_BYTES = 512 << 20
"""A CUDA context with loaded kernels and library workspaces, or on a CPU the interpreter with its libraries: about
half a gibibyte either way. Measure and pass `runtime_bytes` to be exact."""

BOOKS_BYTES_PER_BLOCK = 48
"""Bookkeeping of one block: state, ref count, stamp, 16-byte digest, content ids; rounded up to 48."""

TABLE_ENTRY_BYTES = 4
SLOT_BYTES = 8
TABLE_COPIES = 2
"""Block tables are staged twice, so that a copy in flight is never overwritten."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine is configured for: it decides tables and activations."""

    max_sequences: int = 64
    max_batch_tokens: int = 2048
    max_context: int = 8192


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the memory of one device goes, bytes. `kv_bytes` is negative when the rest alone does not fit."""

    memory_bytes: int
    weights_bytes: int
    runtime_bytes: int
    table_bytes: int
    headroom_bytes: int
    layout: PoolLayout

    @property
    def kv_bytes(self) -> int:
        """What is left for KV, before it is cut into blocks."""
        return self.memory_bytes - self.weights_bytes - self.runtime_bytes - self.table_bytes - self.headroom_bytes

    @property
    def num_blocks(self) -> int:
        """Usable blocks: each needs its bytes and its books, and the null block comes out of the same memory."""
        per_block = self.layout.block_bytes + BOOKS_BYTES_PER_BLOCK
        return max(0, (self.kv_bytes - self.layout.block_bytes) // per_block)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the usable blocks."""
        return self.num_blocks * self.layout.block_bytes

    def sequences(self, tokens: int, chunk: int = 1) -> int:
        """Sequences of `tokens` that fit at once, by memory alone."""
        return self.num_blocks // self.layout.sequence_blocks(max(1, tokens), chunk)


def budget_of(
    g: ModelGeometry,
    memory_bytes: int,
    *,
    weight_dtype: str,
    kv_dtype: str,
    block_size: int,
    load: Load,
    headroom_bytes: int = 0,
    runtime_bytes: int | None = None,
    kv_scales: str = TOKEN_HEAD,
) -> Budget:
    """The budget of one device that holds `g` (one rank of a split model, or the whole).

    `runtime_bytes` None estimates it: the device context plus `activation_bytes` and `logit_bytes`.
    """
    if runtime_bytes is None:
        runtime_bytes = DEVICE_CONTEXT_BYTES + activation_bytes(g, load.max_batch_tokens) + logit_bytes(g, load)
    layout = pool_layout(g, kv_dtype, block_size, kv_scales)
    return Budget(
        memory_bytes=memory_bytes,
        weights_bytes=weight_bytes(g, weight_dtype),
        runtime_bytes=runtime_bytes,
        table_bytes=table_bytes(layout, load),
        headroom_bytes=headroom_bytes,
        layout=layout,
    )


def table_bytes(layout: PoolLayout, load: Load) -> int:
    """Block tables (int32, staged twice, one per piece) and the slot mapping (int64) of the largest step."""
    width = -(-load.max_context // layout.block_size)
    tables = TABLE_COPIES * load.max_sequences * width * TABLE_ENTRY_BYTES
    return len(layout.pieces) * (tables + load.max_batch_tokens * SLOT_BYTES)


def activation_bytes(g: ModelGeometry, max_batch_tokens: int) -> int:
    """Peak activations of one layer at 16 bits: residual and input, q, k, v and attention output, gate, up and
    their product. Layers run one after another and reuse it; an expert layer's tokens pass `per_token` experts."""
    inner = g.intermediate_size
    if g.experts is not None:
        routed = g.experts.per_token * g.experts.intermediate_size + g.experts.shared_intermediate_size
        inner = max(inner if g.experts.first_layer else 0, routed)
    attention = 2 * g.query_heads * g.head_dim + max(group.elements_per_token_and_layer for group in g.groups)
    return max_batch_tokens * (2 * g.hidden_size + attention + 3 * inner) * 2


def logit_bytes(g: ModelGeometry, load: Load) -> int:
    """float32 logits of every sequence of the largest step."""
    return load.max_sequences * g.vocab_size * 4
