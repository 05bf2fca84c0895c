"""The whole arithmetic of `kvbench size`: a model, a device, and what fits, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.budget import DEVICE_CONTEXT_BYTES, Budget, Load, activation_bytes, budget_of, logit_bytes
from kvbench.geometry.lengths import Lengths
from kvbench.geometry.memory import (
    TOKEN_HEAD,
    kv_bytes_per_token,
    layer_block_bytes,
    mean_sequence_blocks,
    mean_tail_share,
    tail_waste,
)
from kvbench.geometry.model import ModelGeometry
from kvbench.geometry.parallel import kv_replication, split
from kvbench.geometry.weights import weight_bytes, weight_bytes_by_part
from kvbench.units import format_bytes


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `memory_bytes` is one device's; `runtime_bytes` None estimates it."""

    model: ModelGeometry
    memory_bytes: int
    lengths: tuple[Lengths, ...]
    tp: int = 1
    weight_dtype: str = "bf16"
    kv_dtypes: tuple[str, ...] = ("bf16",)
    block_sizes: tuple[int, ...] = (16,)
    headroom_bytes: int = 0
    runtime_bytes: int | None = None
    load: Load = field(default_factory=Load)
    kv_scales: str = TOKEN_HEAD

    @property
    def rank(self) -> ModelGeometry:
        return split(self.model, self.tp)

    def budget(self, kv_dtype: str, block_size: int) -> Budget:
        return budget_of(
            self.rank,
            self.memory_bytes,
            weight_dtype=self.weight_dtype,
            kv_dtype=kv_dtype,
            block_size=block_size,
            load=self.load,
            headroom_bytes=self.headroom_bytes,
            runtime_bytes=self.runtime_bytes,
            kv_scales=self.kv_scales,
        )


def answer(question: Question) -> dict[str, Any]:
    """Everything that `size` shows, JSON-able. Bytes are those of one rank unless the name says `all_ranks`.

    Raises `CannotRunError` with the arithmetic when weights, runtime and headroom leave no room for a block.
    """
    pools = [_pool(question, dtype, block) for dtype in question.kv_dtypes for block in question.block_sizes]
    return {"model": _model(question), "device": _device(question), "pools": pools}


def _model(q: Question) -> dict[str, Any]:
    g = q.model
    return {
        "name": g.name,
        "source": g.source,
        "family": g.family,
        "attention_mode": g.attention_mode,
        "parameters": g.parameters,
        "active_parameters": g.active_parameters,
        "max_context": g.max_context,
        "layers": g.num_layers,
        "query_heads": g.query_heads,
        "kv_heads": g.kv_heads,
        "weight_dtype": q.weight_dtype,
        "weights_bytes_all_ranks": weight_bytes(q.rank, q.weight_dtype) * q.tp,
        "layer_groups": [
            {"kind": x.kind, "layers": len(x.layers), "kv_heads": x.kv_heads, "k_head_dim": x.k_head_dim,
             "v_head_dim": x.v_head_dim, "window": x.window}
            for x in g.groups
        ],
    }  # fmt: skip


def _device(q: Question) -> dict[str, Any]:
    rank = q.rank
    estimated = q.runtime_bytes is None
    return {
        "memory_bytes": q.memory_bytes,
        "tensor_parallel": q.tp,
        "query_heads": rank.query_heads,
        "kv_heads": rank.groups[0].kv_heads,
        "kv_replication": kv_replication(q.model, q.tp),
        "parameters": rank.parameters,
        "weights_bytes": weight_bytes(rank, q.weight_dtype),
        "weights_bytes_by_part": dict(weight_bytes_by_part(rank, q.weight_dtype)),
        "runtime_bytes": q.budget(q.kv_dtypes[0], q.block_sizes[0]).runtime_bytes,
        "runtime_is_estimated": estimated,
        "device_context_bytes": DEVICE_CONTEXT_BYTES if estimated else None,
        "activation_bytes": activation_bytes(rank, q.load.max_batch_tokens) if estimated else None,
        "logit_bytes": logit_bytes(rank, q.load) if estimated else None,
        "headroom_bytes": q.headroom_bytes,
        "max_sequences": q.load.max_sequences,
        "max_batch_tokens": q.load.max_batch_tokens,
        "max_context": q.load.max_context,
    }


def _pool(q: Question, kv_dtype: str, block_size: int) -> dict[str, Any]:
    budget = q.budget(kv_dtype, block_size)
    require_room(q, budget)
    layout, per_token = budget.layout, kv_bytes_per_token(q.rank, kv_dtype, q.kv_scales)
    return {
        "kv_dtype": kv_dtype,
        "block_size": block_size,
        "kv_bytes_per_token": _number(per_token),
        "kv_bytes_per_token_all_ranks": _number(per_token * q.tp),
        "layer_block_bytes": [layer_block_bytes(group, kv_dtype, block_size, q.kv_scales) for group in q.rank.groups],
        "block_bytes": layout.block_bytes,
        "block_tables": len(layout.pieces),
        "layers_per_block": layout.layers_per_block,
        "padding_share": layout.padding_share,
        "table_bytes": budget.table_bytes,
        "kv_bytes": budget.kv_bytes,
        "num_blocks": budget.num_blocks,
        "pool_bytes": budget.pool_bytes,
        "longest_sequence_tokens": layout.longest_sequence(budget.num_blocks),
        "lengths": [_length(budget, lengths) for lengths in q.lengths],
    }


def require_room(q: Question, budget: Budget) -> None:
    """Raises `CannotRunError` with the arithmetic, and the nearest way out, where not one block fits."""
    if budget.num_blocks < 1:
        raise _does_not_fit(q, budget)


def _length(budget: Budget, lengths: Lengths) -> dict[str, Any]:
    layout = budget.layout
    need = mean_sequence_blocks(layout, lengths.tokens)
    waste = Fraction(sum(tail_waste(t, layout.block_size) for t in lengths.tokens), len(lengths.tokens))
    padding = sum(layout.sequence_padding_bytes(t) for t in lengths.tokens) / len(lengths.tokens)
    sequences = int(budget.num_blocks / need)
    return {
        "length": lengths.label,
        "mean_tokens": lengths.mean,
        "clipped_share": lengths.clipped_share,
        "blocks_per_sequence": float(need),
        "bytes_per_sequence": float(need * layout.block_bytes),
        "padding_bytes_per_sequence": padding,
        "tail_waste_slots": float(waste),
        "tail_waste_share": float(waste) / lengths.mean,
        "mean_tail_share": mean_tail_share(lengths.mean, layout.block_size),
        "sequences": sequences,
        "tokens": int(sequences * lengths.mean),
    }


def _does_not_fit(q: Question, budget: Budget) -> CannotRunError:
    parts = [
        f"  memory of one device   {format_bytes(q.memory_bytes):>10}",
        f"− weights as {q.weight_dtype:<10} {format_bytes(budget.weights_bytes):>11}",
        f"− runtime                {format_bytes(budget.runtime_bytes):>10}",
        f"− headroom               {format_bytes(budget.headroom_bytes):>10}",
        f"− block tables           {format_bytes(budget.table_bytes):>10}",
        f"= for KV                 {format_bytes(budget.kv_bytes):>10}, one block and the null block take "
        f"{format_bytes(2 * budget.layout.block_bytes)}",
    ]
    ranks = f" on {q.tp} devices" if q.tp > 1 else ""
    message = f"{q.model.name} does not fit{ranks}:\n" + "\n".join(parts)
    return CannotRunError(message, hint=_way_out(q))


def _way_out(q: Question) -> str:
    """The smallest change that would fit, found by trying."""
    for tp in range(q.tp + 1, 129):
        if _fits(replace(q, tp=tp)):
            return f"it fits with --tp {tp}"
    for dtype in ("bf16", "fp8_e4m3", "int4"):
        if _fits(replace(q, weight_dtype=dtype)):
            return f"it fits with --weights {dtype}"
    return "take a device with more memory, or a smaller model"


def _fits(q: Question) -> bool:
    try:
        return all(q.budget(dtype, block).num_blocks > 0 for dtype in q.kv_dtypes for block in q.block_sizes)
    except UsageError:
        return False


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)
