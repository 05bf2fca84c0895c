"""Small paged batches with everything that must not be read poisoned by NaN."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvbench.engine.attention.rule import PLAIN, ScoreRule
from kvbench.engine.batch import StepBatch
from kvbench.engine.kvstore.codec import decode, encode
from kvbench.engine.kvstore.layout import ELEMENTS
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from kvbench.geometry.model import GroupKind, LatentShape, LayerGroup, ModelGeometry

NULL_AND_SPARE = 2
"""Blocks that belong to no table, besides the null block."""


def one_layer(
    kv_heads: int, k_dim: int, v_dim: int | None = None, *, layers: int = 1, window: int | None = None
) -> ModelGeometry:
    kind: GroupKind = "full" if window is None else "window"
    group = LayerGroup(kind, tuple(range(layers)), kv_heads, k_dim, v_dim or k_dim, window)
    return ModelGeometry("test", "llama", "test", layers, 8, 8, kv_heads, kv_heads, k_dim, 8, 1 << 20, (group,))


def one_latent_layer(width: int, rank: int) -> ModelGeometry:
    """One vector of `width` elements a token, whose first `rank` read as V."""
    group = LayerGroup("latent", (0,), 1, width, 0)
    shape = LatentShape(None, rank, 8, width - rank, 8)
    return ModelGeometry("test", "llama", "test", 1, 8, 8, 1, 1, width, 8, 1 << 20, (group,), latent=shape)


@dataclass(slots=True)
class Paged:
    """K and V of every sequence as they were given, and the store and batch that hold them."""

    store: KVStore
    batch: StepBatch
    q: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    rule: ScoreRule = PLAIN

    @property
    def window(self) -> int | None:
        return self.store.geometry.groups[0].window


def poison(store: KVStore) -> None:
    """NaN in every element that has one, and in every scale."""
    for pool in (store.pool,):
        pool.bytes.fill_(0x55)
        for view in pool.layers:
            for part in (view.k, view.v, view.k_scale, view.v_scale):
                if part is not None and part.is_floating_point():
                    part.fill_(float("nan"))


def random_tables(contexts: list[int], block_size: int, num_blocks: int, rng: np.random.Generator) -> np.ndarray:
    """`[S, width]` physical blocks in random order, one unused entry at the end of the longest row."""
    counts = [-(-context // block_size) for context in contexts]
    blocks = rng.permutation(num_blocks)[: sum(counts)] + 1
    tables = np.zeros((len(contexts), max(counts) + 1), np.int32)
    start = 0
    for row, count in zip(tables, counts, strict=True):
        row[:count] = blocks[start : start + count]
        start += count
    return tables


def slots_of(table: np.ndarray, start: int, end: int, block_size: int) -> torch.Tensor:
    positions = np.arange(start, end)
    return torch.from_numpy(table[positions // block_size].astype(np.int64) * block_size + positions % block_size)


def paged(
    kv_dtype: str,
    block_size: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    contexts: list[int],
    queries: list[int] | None = None,
    seed: int = 0,
    *,
    window: int | None = None,
    is_latent: bool = False,
    rule: ScoreRule = PLAIN,
    kv_layout: str = "hnd",
    tensor_scales: TensorScales | None = None,
) -> Paged:
    """A poisoned store with the contexts written. `heads` = (query, KV), `dims` = (K, V); `queries[s]` query tokens at
    the end of context s, all 1 by default; sequences with one query come first and are decodes. Of a window layer only
    the tokens that some query sees are there, and table entries of blocks before them are null."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    queries = queries or [1] * len(contexts)
    num_blocks = sum(-(-context // block_size) for context in contexts) + NULL_AND_SPARE
    geometry = one_latent_layer(*dims) if is_latent else one_layer(heads[1], *dims, window=window)
    store = KVStore(geometry, kv_dtype, block_size, num_blocks, kv_layout=kv_layout, tensor_scales=tensor_scales)
    poison(store)
    tables = random_tables(contexts, block_size, num_blocks, rng)
    keys = [torch.randn((n, heads[1], dims[0]), generator=generator) for n in contexts]
    values = [torch.randn((n, heads[1], 0 if is_latent else dims[1]), generator=generator) for n in contexts]
    for table, k, v, count in zip(tables, keys, values, queries, strict=True):
        first = 0 if window is None else max(0, len(k) - count - window + 1)
        table[: first // block_size] = 0
        store.write(0, k[first:], v[first:], slots_of(table, first, len(k), block_size))
    q = torch.randn((sum(queries), heads[0], dims[0]), generator=generator)
    return Paged(store, step_batch(tables, contexts, queries, block_size), q, keys, values, rule)


def step_batch(tables: np.ndarray, contexts: list[int], queries: list[int], block_size: int) -> StepBatch:
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    return StepBatch(
        token_ids=np.zeros(starts[-1], np.int64),
        positions=np.zeros(starts[-1], np.int64),
        slots=np.full((1, starts[-1]), block_size, np.int64),
        block_tables=tables[None].copy(),
        query_starts=starts,
        context_lengths=np.array(contexts, np.int32),
        num_decodes=sum(count == 1 for count in queries),
        logit_rows=np.zeros(0, np.int64),
    )


def as_stored(x: torch.Tensor, kv_dtype: str, tensor_scale: float | None = None) -> torch.Tensor:
    """What the store keeps of x, without the store."""
    return decode(*encode(x, ELEMENTS[kv_dtype], tensor_scale), tensor_scale)


def reference(case: Paged, kv_dtype: str | None = None) -> torch.Tensor:
    """Causal attention in float64, token by token; over the stored form when a KV dtype is given."""
    rows: list[torch.Tensor] = []
    lengths, starts = case.batch.context_lengths.tolist(), case.batch.query_starts.tolist()
    group = case.q.shape[1] // case.store.geometry.kv_heads
    for s, (k, v) in enumerate(zip(case.keys, case.values, strict=True)):
        if kv_dtype is not None:
            scales = case.store.tensor_scales
            k = as_stored(k, kv_dtype, scales and scales.k[0])
            v = as_stored(v, kv_dtype, scales and scales.v[0]) if v.shape[-1] else v
        if case.store.geometry.latent is not None:
            v = k[..., : case.store.geometry.latent.kv_lora_rank]
        k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
        for row in range(starts[s], starts[s + 1]):
            seen = max(0, lengths[s] - (starts[s + 1] - 1 - row))
            first = 0 if case.window is None else max(0, seen - case.window)
            rows.append(_one_query(case.q[row].double(), k[first:seen], v[first:seen], case.rule))
    return torch.stack(rows)


def _one_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: ScoreRule) -> torch.Tensor:
    """q `[H, dk]`, k `[L, H, dk]`, v `[L, H, dv]`, all in float64 → `[H, dv]`."""
    scores = torch.einsum("hd,thd->ht", q, k) * (k.shape[-1] ** -0.5 if rule.scale is None else rule.scale)
    if rule.soft_cap:
        scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
    weights = scores.exp()
    total = weights.sum(-1) + (0 if rule.sinks is None else rule.sinks.double().exp())
    return torch.einsum("ht,thd->hd", weights, v) / total.clamp(min=1e-300)[:, None]
