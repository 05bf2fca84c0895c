"""A store that writes and copies by the Triton kernels (interpreted): the same bytes as one that does not."""

from __future__ import annotations

import random

import pytest
import torch

from kvbench.cache.transfers import Transfers
from kvbench.engine.kvstore import block_copies
from kvbench.engine.kvstore.block_copies import TritonCopies, copy_blocks, neighbours
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from tests.attention.batches import one_layer
from tests.kvstore.test_pieces import hybrid

pytest.importorskip("triton")

DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")
MOVES = [
    Transfers(offload_device=[2, 5, 8], offload_host=[3, 0, 1], swap_out_device=[4, 6], swap_out_swap=[1, 0]),
    Transfers(promote_host=[1, 3], promote_device=[7, 2], copy_source=[2, 2, 5], copy_destination=[3, 1, 4]),
    Transfers(swap_in_swap=[0, 1], swap_in_device=[8, 5], store_device=[3], store_host=[2]),
    Transfers(promote_host=[2], promote_device=[6], copy_source=[6], copy_destination=[7]),
]


def pair(kv_dtype: str) -> list[KVStore]:
    """Two equal stores with random bytes in all tiers, the first by Triton."""
    found = []
    for uses_triton in (True, False):
        store = KVStore(
            one_layer(2, 8, layers=3), kv_dtype, 4, 8, host_blocks=4, swap_blocks=2, uses_triton=uses_triton
        )
        generator = torch.Generator().manual_seed(1)
        for memory in (store.pool.bytes, *store.hosts):
            memory.copy_(torch.randint(0, 256, memory.shape, generator=generator))
        found.append(store)
    return found


@pytest.mark.parametrize("staging", [1, 1000, 1 << 26])
@pytest.mark.parametrize("kv_dtype", ["int8", "fp32"])
def test_every_kind_of_copy_leaves_the_bytes_that_plain_copies_leave(
    monkeypatch: pytest.MonkeyPatch, kv_dtype: str, staging: int
) -> None:
    """Pool and host tier whole, after each of four batches of copies; the staging buffer holds one block, a few, or
    all."""
    monkeypatch.setattr(block_copies, "STAGING_BYTES", staging)
    ours, plain = pair(kv_dtype)
    for transfers in MOVES:
        for store in (ours, plain):
            outcome = store.start(transfers)
            if transfers.store_device:
                outcome = store.poll(wait=True)
                assert outcome.done.store_host == [2]
        assert torch.equal(ours.pool.bytes, plain.pool.bytes)
        assert torch.equal(ours.hosts[0], plain.hosts[0])
    for store in (ours, plain):
        store.close()


@pytest.mark.parametrize("way", ["within", "out", "in"])
def test_random_copies_equal_plain_ones(way: block_copies.Way) -> None:
    """Pairs in any order, in a pool whose planes lie apart; within the pool also chains and repeated targets."""
    rng, copies = random.Random(0), TritonCopies()
    for _ in range(20):
        pools = [torch.randint(0, 256, (2, 7, 48), dtype=torch.uint8).transpose(0, 1)] * 1
        pools.append(pools[0].clone(memory_format=torch.preserve_format))
        hosts = [torch.randint(0, 256, (9, 2, 48), dtype=torch.uint8)]
        hosts.append(hosts[0].clone())
        count = rng.randrange(6)
        blocks, places = rng.sample(range(7), count), rng.sample(range(9), count)
        if way == "within":
            places = [rng.randrange(7) for _ in blocks]
        here, there = (places, blocks) if way == "in" else (blocks, places)
        for copy, pool, host in zip((copies, copy_blocks), pools, hosts, strict=True):
            copy(host if way == "in" else pool, host if way == "out" else pool, here, there, way)
        assert torch.equal(pools[0], pools[1])
        assert torch.equal(hosts[0], hosts[1])


def test_neighbours_are_cut_where_a_number_is_missing() -> None:
    assert neighbours([]) == []
    assert neighbours([4]) == [(0, 1)]
    assert neighbours([2, 3, 4, 6, 9, 10]) == [(0, 3), (3, 4), (4, 6)]


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_the_layers_of_a_shared_pool_are_written_where_each_reads(kv_dtype: str) -> None:
    """A pool of two pieces whose layers have unequal heads: a narrow layer uses the front of its rows."""
    ours, plain = (KVStore(hybrid(), kv_dtype, 4, 6, uses_triton=triton) for triton in (True, False))
    generator = torch.Generator().manual_seed(2)
    for layer, view in enumerate(ours.layers):
        heads, dims = view.layout.kv_heads, (view.layout.k_dim, view.layout.v_dim)
        k, v = (torch.randn((9, heads, dim), generator=generator) for dim in dims)
        slots = torch.randperm(24, generator=generator)[:9] + 4
        for store in (ours, plain):
            store.write(layer, k, v, slots)
    assert torch.equal(ours.pool.bytes, plain.pool.bytes)
    assert ours.pool.bytes.any()


def test_static_scales_are_those_of_each_layer() -> None:
    scales = TensorScales((0.5, 0.25), (2.0, 4.0))
    ours, plain = (
        KVStore(one_layer(2, 8, layers=2), "fp8_e4m3", 4, 3, tensor_scales=scales, uses_triton=triton)
        for triton in (True, False)
    )
    k, v, slots = torch.randn(5, 2, 8), torch.randn(5, 2, 8), torch.arange(5) + 4
    for layer in range(2):
        for store in (ours, plain):
            store.write(layer, k, v, slots)
    assert torch.equal(ours.pool.bytes, plain.pool.bytes)
