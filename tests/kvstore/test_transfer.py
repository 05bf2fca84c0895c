"""Blocks between tiers: every byte arrives, scales included, in the promised order."""

from __future__ import annotations

import pytest
import torch

from kvbench.cache.transfers import Transfers
from kvbench.engine.kvstore.store import KVStore
from kvbench.errors import CannotRunError, InternalError
from tests.attention.batches import one_layer

DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")


def filled(kv_dtype: str, *, blocks: int = 8, host_blocks: int = 4, layers: int = 3) -> KVStore:
    """Every block of every layer holds other values; scales differ as well."""
    store = KVStore(one_layer(2, 8, layers=layers), kv_dtype, 4, blocks, host_blocks=host_blocks)
    generator = torch.Generator().manual_seed(1)
    slots = torch.arange(blocks * 4) + 4
    for layer in range(layers):
        x = torch.randn((2, len(slots), 2, 8), generator=generator) * torch.rand((2, len(slots), 2, 1)) * 50
        store.write(layer, x[0], x[1], slots)
    return store


def contents(store: KVStore, block: int) -> list[torch.Tensor]:
    table = torch.tensor([block], dtype=torch.int32)
    return [x.clone() for layer in range(store.geometry.num_layers) for x in store.gather(layer, table, 4)]


def assert_same(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_a_copied_block_reads_back_the_same_scales_included(kv_dtype: str) -> None:
    """Copy-on-write that forgets the scales fails here for int8."""
    store = filled(kv_dtype)
    before = contents(store, 3)
    result = store.start(Transfers(copy_source=[3], copy_destination=[7]))
    assert_same(contents(store, 7), before)
    assert_same(contents(store, 3), before)
    assert result.done.copy_source == [3]


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_e62_bytes_are_identical_after_offload_and_promotion(kv_dtype: str) -> None:
    store = filled(kv_dtype)
    pool = store.pool.bytes
    before = pool.clone()
    store.start(Transfers(offload_device=[2, 5, 8], offload_host=[3, 0, 1]))
    pool[:, [2, 5, 8]] = 0xAA
    result = store.start(Transfers(promote_host=[1, 3, 0], promote_device=[8, 2, 5]))
    assert torch.equal(pool, before)
    assert len(result.done.promote_host) == 3
    assert result.promotion_stall_s > 0


@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_a_promoted_block_may_be_another_one(kv_dtype: str) -> None:
    store = filled(kv_dtype)
    before = contents(store, 2)
    store.start(Transfers(offload_device=[2], offload_host=[0]))
    store.start(Transfers(promote_host=[0], promote_device=[6]))
    assert_same(contents(store, 6), before)


def test_the_order_is_offload_promote_copy() -> None:
    """In one call: block 2 leaves for the host, is overwritten by host block 1, and the new contents are copied on."""
    store = filled("int8")
    store.start(Transfers(offload_device=[5], offload_host=[1]))
    old, promoted = contents(store, 2), contents(store, 5)
    store.start(
        Transfers(
            offload_device=[2],
            offload_host=[0],
            promote_host=[1],
            promote_device=[2],
            copy_source=[2],
            copy_destination=[7],
        )
    )
    assert_same(contents(store, 2), promoted)
    assert_same(contents(store, 7), promoted)
    store.start(Transfers(promote_host=[0], promote_device=[3]))
    assert_same(contents(store, 3), old)


def test_one_source_may_have_many_destinations() -> None:
    store = filled("bf16")
    before = contents(store, 1)
    store.start(Transfers(copy_source=[1, 1, 1], copy_destination=[2, 3, 4]))
    for block in (1, 2, 3, 4):
        assert_same(contents(store, block), before)


def test_a_transfer_touches_nothing_else() -> None:
    store = filled("fp32")
    before = store.pool.bytes.clone()
    store.start(Transfers(offload_device=[1], offload_host=[2], copy_source=[4], copy_destination=[6]))
    keep = [0, 1, 2, 3, 4, 5, 7, 8]
    assert torch.equal(store.pool.bytes[:, keep], before[:, keep])
    assert not store.hosts[0][[0, 1, 3]].any()


def test_no_transfers_cost_nothing() -> None:
    result = filled("fp32").start(Transfers())
    assert (len(result), result.promotion_stall_s) == (0, 0.0)


@pytest.mark.parametrize(
    ("transfers", "text"),
    [
        (Transfers(copy_source=[0], copy_destination=[1]), "copy names block 0"),
        (Transfers(copy_source=[1], copy_destination=[9]), "copy names block 9"),
        (Transfers(offload_device=[1], offload_host=[4]), "offload names block 4"),
        (Transfers(promote_host=[-1], promote_device=[1]), "promote names block -1"),
        (Transfers(promote_host=[0, 1], promote_device=[1]), "2 sources and 1 destinations"),
    ],
)
def test_a_block_that_does_not_exist_is_refused_before_anything_moves(transfers: Transfers, text: str) -> None:
    store = filled("fp32")
    before = store.pool.bytes.clone()
    with pytest.raises(InternalError, match=text):
        store.start(transfers)
    assert torch.equal(store.pool.bytes, before)


def test_without_a_host_tier_every_offload_is_refused() -> None:
    with pytest.raises(InternalError, match="offload names block 0"):
        filled("fp32", host_blocks=0).start(Transfers(offload_device=[1], offload_host=[0]))


def test_memory_that_cannot_be_had_is_one_clear_error() -> None:
    with pytest.raises(CannotRunError, match="cannot allocate") as caught:
        KVStore(one_layer(8, 128), "fp32", 256, 2**40)
    assert caught.value.hint
