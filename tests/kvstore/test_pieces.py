"""Hybrid and latent models: pieces share one pool of equal blocks, and nobody reads or writes another's bytes."""

from __future__ import annotations

import pytest
import torch

from kvbench.cache.transfers import Transfers
from kvbench.engine.kvstore.codec import decode, encode
from kvbench.engine.kvstore.layout import ELEMENTS
from kvbench.engine.kvstore.reading_writing import TorchIO
from kvbench.engine.kvstore.store import KVStore
from kvbench.geometry.memory import block_bytes, layer_block_bytes, pool_layout
from kvbench.geometry.model import LatentShape, LayerGroup, ModelGeometry
from tests.attention.batches import poison

DTYPES = tuple(ELEMENTS)
RANK, ROPE = 24, 8


def hybrid(full: tuple[int, ...] = (2, 5), wide: bool = False) -> ModelGeometry:
    """Six layers, those of `full` with full attention (twice as many heads if `wide`), the rest with a window."""
    window = tuple(layer for layer in range(6) if layer not in full)
    heads = 4 if wide else 2
    groups = (LayerGroup("full", full, heads, 8, 8), LayerGroup("window", window, 2, 8, 8, 16))
    return ModelGeometry("hybrid", "llama", "test", 6, 8, 8, 4, 2, 8, 8, 4096, groups)


def latent(layers: int = 2) -> ModelGeometry:
    group = LayerGroup("latent", tuple(range(layers)), 1, RANK + ROPE, 0)
    shape = LatentShape(None, RANK, 8, ROPE, 8)
    return ModelGeometry("latent", "llama", "test", layers, 8, 8, 4, 1, 16, 8, 4096, (group,), latent=shape)


def rows(store: KVStore, layer: int, tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = store.layers[layer].layout
    generator = torch.Generator().manual_seed(seed)
    v_dim = 0 if y.is_latent else y.v_dim
    return tuple(torch.randn((tokens, y.kv_heads, d), generator=generator) for d in (y.k_dim, v_dim))  # type: ignore[return-value]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_the_pool_is_the_layout_of_geometry(kv_dtype: str, block_size: int, wide: bool) -> None:
    geometry = hybrid(wide=wide)
    store, layout = KVStore(geometry, kv_dtype, block_size, 5), pool_layout(geometry, kv_dtype, block_size)
    widest = max(layer_block_bytes(group, kv_dtype, block_size) for group in geometry.groups)
    assert store.pool.bytes.shape == (layout.layers_per_block, 6, widest)
    assert store.block_bytes == block_bytes(geometry, kv_dtype, block_size)
    for index, piece in enumerate(layout.pieces):
        assert [store.group_of_layer[layer] for layer in piece.layer_ids] == [index] * piece.layers
    assert sorted(layer for piece in layout.pieces for layer in piece.layer_ids) == list(range(6))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_every_layer_reads_back_its_own(kv_dtype: str, wide: bool) -> None:
    """Each piece has two blocks of its own; layers of a piece use the same ones."""
    store = KVStore(hybrid(wide=wide), kv_dtype, 4, 2 * len(pool_layout(hybrid(wide=wide), kv_dtype, 4).pieces))
    poison(store)
    given = {}
    for layer in range(6):
        piece = store.group_of_layer[layer]
        table = torch.tensor([2 * piece + 2, 2 * piece + 1], dtype=torch.int32)
        given[layer] = table, rows(store, layer, 7, seed=layer)
        slots = table[torch.arange(7) // 4].long() * 4 + torch.arange(7) % 4
        store.write(layer, *given[layer][1], slots)
    for layer, (table, kv) in given.items():
        for got, x in zip(store.gather(layer, table, 7), kv, strict=True):
            expected = decode(*encode(x.transpose(0, 1), ELEMENTS[kv_dtype]))
            torch.testing.assert_close(got, expected, atol=0, rtol=0)


def test_a_transfer_moves_whole_blocks_whichever_piece_they_serve() -> None:
    store = KVStore(hybrid(), "int8", 4, 8, host_blocks=2)
    store.pool.bytes.random_(0, 256)
    before = store.pool.bytes.clone()
    store.start(Transfers(offload_device=[3], offload_host=[1], copy_source=[4], copy_destination=[5]))
    store.pool.bytes[:, 3] = 0
    result = store.start(Transfers(promote_host=[1], promote_device=[7]))
    assert torch.equal(store.pool.bytes[:, 7], before[:, 3])
    assert torch.equal(store.pool.bytes[:, 5], before[:, 4])
    assert result.done.promote_host == [1]


@pytest.mark.parametrize("start", [0, 1, 4, 9, 10])
@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_a_gather_from_the_middle_looks_at_no_entry_before_it(kv_dtype: str, start: int) -> None:
    store = KVStore(hybrid(), kv_dtype, 4, 4)
    poison(store)
    k, v = rows(store, 0, 10, seed=1)
    table = torch.tensor([4, 2, 3], dtype=torch.int32)
    store.write(0, k, v, table[torch.arange(10) // 4].long() * 4 + torch.arange(10) % 4)
    whole = store.gather(0, table, 10)
    table[: start // 4] = 0
    for io in (store._io, TorchIO()):
        for part, full in zip(io.gather(store.layers[0], table, start, 10), whole, strict=True):
            torch.testing.assert_close(part, full[:, start:], atol=0, rtol=0)


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_a_latent_row_is_stored_once_and_its_front_reads_as_v(kv_dtype: str, block_size: int) -> None:
    """numba and torch store the same bits; V is the first `kv_lora_rank` elements of K, under K's scale."""
    store, twin = (KVStore(latent(), kv_dtype, block_size, 40 // block_size + 2) for _ in range(2))
    poison(store)
    poison(twin)
    k, v = rows(store, 1, 30, seed=2)
    slots = torch.randperm(30) + block_size
    store.write(1, k * 100, v, slots)
    TorchIO().write(twin.layers[1], k * 100, v, slots)
    assert torch.equal(store.pool.bytes, twin.pool.bytes)
    table = torch.arange(1, 40 // block_size + 1, dtype=torch.int32)
    for io in (store._io, TorchIO()):
        got_k, got_v = io.gather(store.layers[1], table, 0, 30)
        assert got_k.shape == (1, 30, RANK + ROPE)
        assert torch.equal(got_v, got_k[..., :RANK])
        expected = decode(*encode(k[:, 0] * 100, ELEMENTS[kv_dtype]))
        torch.testing.assert_close(got_k[0, slots - block_size], expected, atol=0, rtol=0)
