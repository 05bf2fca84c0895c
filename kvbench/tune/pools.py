"""Paged K and V for trials: what the kernels read, and what attention over it should give.

Everything that is not a token is NaN: the null block, the tails of last blocks, free blocks (0 · NaN would show, K04).
A large batch repeats the contents of its first sequences in blocks of their own, so that every row of the output can
be checked at the price of a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from kvbench.geometry.dtypes import storage_dtype
from kvbench.tune.one_layer import CAP, WINDOW, one_layer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from kvbench_kernels.specs import KernelShape

EDGE_LENGTHS = (0, 1, 17, 127, 129, 700)
"""Tokens of the sequences of the second batch, none longer than the shape's context"""
QUERY_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LARGEST_NORMAL = 6.0
"""Static scales reach so far; of normal numbers hardly one is larger"""
REFERENCE_ELEMENTS = 1 << 25
"""K and V elements that the reference may go over; at least one sequence is always its own"""


@dataclass(frozen=True, slots=True)
class Batch:
    """Queries `[T, query_heads, k_dim]` float32, of sequence s the rows starts[s] to starts[s + 1], its last tokens;
    block tables `[S, width]`, lengths `[S]` and starts `[S + 1]` int32; `expected` `[T, query_heads, v_dim]` float64.
    In decode every sequence has one row."""

    queries: Tensor
    starts: NDArray[np.int32]
    tables: NDArray[np.int32]
    lengths: NDArray[np.int32]
    expected: Tensor


@dataclass(frozen=True, slots=True)
class Pool:
    """A filled store, the batch that is timed and the one of edge cases; `sinks` float32 `[query_heads]` or None."""

    store: KVStore
    batches: tuple[Batch, Batch]
    sinks: Tensor | None
    scale: float


def fill(shape: KernelShape, device: str, seed: int) -> Pool:
    """A pool with seeded normal K and V in shuffled blocks; `CannotRunError` when there is no memory for it."""
    edges = [min(length, shape.context) for length in EDGE_LENGTHS]
    lengths = [shape.context] * shape.batch + edges
    widths = [-(-length // shape.block_size) for length in lengths]
    store = KVStore(
        one_layer(shape),
        shape.kv_dtype,
        shape.block_size,
        sum(widths) + 1,
        device=device,
        kv_layout=shape.layout,
        tensor_scales=_tensor_scales(shape),
    )
    store.pool.bytes.fill_(0xFF)  # NaN in every dtype that has one, and in all scales
    tables = _tables(widths, np.random.default_rng(seed), store.num_blocks)
    generator = torch.Generator().manual_seed(seed)
    sinks = torch.randn(shape.query_heads, generator=generator) if shape.has_sinks else None
    own = _own_sequences(shape)
    queries: list[Tensor] = []
    expected: list[Tensor] = []
    for s, length in enumerate(lengths):
        copied = s % own if s < shape.batch else s
        q, k, v = _contents(shape, length, seed + copied)
        _write(store, k, v, tables[s], device)
        queries.append(q)
        expected.append(expected[copied] if copied < s else _attention(shape, store, q, tables[s], length, sinks))
    timed, edge = (slice(0, shape.batch), slice(shape.batch, None))
    batches = tuple(
        Batch(
            torch.cat(queries[part]).to(device),
            np.cumsum([0, *(len(q) for q in queries[part])], dtype=np.int32),
            np.ascontiguousarray(tables[part]),
            np.array(lengths[part], np.int32),
            torch.cat(expected[part]),
        )
        for part in (timed, edge)
    )
    return Pool(store, (batches[0], batches[1]), sinks, shape.k_dim**-0.5)


def _tensor_scales(shape: KernelShape) -> TensorScales | None:
    """Static scales for a narrow dtype without scales in its blocks: fit for normal numbers."""
    if shape.has_block_scales or not storage_dtype(shape.kv_dtype).scale_bytes:
        return None
    scale = LARGEST_NORMAL / {"int8": 127.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57_344.0}[shape.kv_dtype]
    return TensorScales((scale,), (scale,), "tensor-absmax", shape.context)


def _own_sequences(shape: KernelShape) -> int:
    each = shape.context * shape.kv_heads * (shape.k_dim + shape.v_dim)
    return int(min(shape.batch, max(1, REFERENCE_ELEMENTS // each)))


def _tables(widths: list[int], rng: np.random.Generator, num_blocks: int) -> NDArray[np.int32]:
    """Blocks dealt out in shuffled order; what a sequence does not use names the null block."""
    order = rng.permutation(num_blocks) + 1
    tables = np.zeros((len(widths), max(widths)), np.int32)
    taken = 0
    for s, width in enumerate(widths):
        tables[s, :width] = order[taken : taken + width]
        taken += width
    return tables


def _contents(shape: KernelShape, length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries `[n, query_heads, k_dim]` (in prefill no more than there are tokens), K and V of the tokens."""
    generator = torch.Generator().manual_seed(seed)
    v_dim = 0 if one_layer(shape).latent is not None else shape.v_dim
    count = 1 if shape.query_tokens == 1 else min(shape.query_tokens, length)
    q = torch.randn((count, shape.query_heads, shape.k_dim), generator=generator)
    k = torch.randn((length, shape.kv_heads, shape.k_dim), generator=generator)
    v = torch.randn((length, shape.kv_heads, v_dim), generator=generator)
    return q.to(QUERY_DTYPES[shape.query_dtype]).float(), k, v


def _write(store: KVStore, k: Tensor, v: Tensor, table: NDArray[np.int32], device: str) -> None:
    positions = np.arange(len(k))
    blocks = table[positions // store.block_size].astype(np.int64)
    slots = torch.from_numpy(blocks * store.block_size + positions % store.block_size)
    store.write(0, k.to(device), v.to(device), slots.to(device))


def _attention(
    shape: KernelShape, store: KVStore, q: Tensor, table: NDArray[np.int32], length: int, sinks: Tensor | None
) -> Tensor:
    """float64 causal attention `[n, query_heads, v_dim]` of the last n tokens over what is stored, one KV head at a
    time; length 0 gives zeros."""
    group, count = shape.query_heads // shape.kv_heads, len(q)
    out = torch.zeros((count, shape.query_heads, shape.v_dim), dtype=torch.float64)
    if length == 0:
        return out
    first = max(0, length - count + 1 - WINDOW) if shape.has_window else 0
    k, v = store.gather(0, torch.from_numpy(table).to(store.device), length, first)
    token, own = torch.arange(first, length), torch.arange(length - count, length)[:, None]
    is_hidden = (token > own) | (token <= own - (WINDOW if shape.has_window else length))
    for h in range(shape.kv_heads):
        rows = slice(h * group, (h + 1) * group)
        scores = torch.einsum("ngd,td->ngt", q[:, rows].double(), k[h].double().cpu()) * shape.k_dim**-0.5
        if shape.has_cap:
            scores = CAP * (scores / CAP).tanh()
        scores.masked_fill_(is_hidden[:, None, :], -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks[rows].double()[None, :, None].expand(count, -1, 1)], dim=2)
        weights = scores.softmax(2)[..., : length - first]
        out[:, rows] = torch.einsum("ngt,td->ngd", weights, v[h, :, : shape.v_dim].double().cpu())
    return out
