"""Both backends against attention in float64, with NaN wherever nothing may be read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.kvstore.store import KVStore
from kvbench.errors import InternalError
from kvbench_kernels import set_threads
from tests.attention.batches import Paged, one_layer, paged, reference, slots_of, step_batch

BACKENDS = ("torch", "numba")
DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")
HEADS = {"mha": (3, 3), "gqa": (8, 2), "gqa7": (7, 1), "mqa": (4, 1)}
RAGGED = [0, 1, 63, 64, 65, 1000]
ERROR_OF_DTYPE = {"fp32": 5e-6, "fp16": 5e-3, "bf16": 4e-2, "fp8_e4m3": 0.3, "fp8_e5m2": 0.6, "int8": 4e-2}
"""Against K and V before they were stored: about ten units of the last place of the largest values drawn."""
ERROR_OF_ARITHMETIC = 5e-6
"""Against the stored form: float32 accumulation only."""


def attend(name: str, case: Paged) -> torch.Tensor:
    backend = attention_backend(name, "cpu")
    backend.prepare(case.batch, case.store)
    return backend.attend(0, case.q, case.store, case.rule)


def check(name: str, case: Paged, kv_dtype: str) -> None:
    out = attend(name, case).double()
    torch.testing.assert_close(out, reference(case, kv_dtype), atol=ERROR_OF_ARITHMETIC, rtol=0)
    torch.testing.assert_close(out, reference(case), atol=ERROR_OF_DTYPE[kv_dtype], rtol=0)


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 64, 256])
@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("name", BACKENDS)
def test_decode_of_ragged_contexts(name: str, kv_dtype: str, block_size: int) -> None:
    """K01: a context of length 0 gives zeros. K04: unwritten slots, the null block and foreign blocks are NaN."""
    for head_case, heads in enumerate(HEADS.values()):
        case = paged(kv_dtype, block_size, heads, (64, 64), RAGGED, seed=head_case)
        check(name, case, kv_dtype)
        assert (attend(name, case)[0] == 0).all()


@pytest.mark.parametrize("dims", [(80, 80), (128, 128), (40, 40), (8, 8), (5, 5), (1, 1), (24, 40), (72, 33)])
@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("name", BACKENDS)
def test_decode_at_any_head_size(name: str, kv_dtype: str, dims: tuple[int, int]) -> None:
    """K10: also sizes that fill no vector, and V of another size than K."""
    check(name, paged(kv_dtype, 16, (6, 2), dims, [1, 17, 300, 64]), kv_dtype)


@pytest.mark.parametrize("block_size", [17, 48, 255])
def test_k08_block_sizes_that_are_no_power_of_two(block_size: int) -> None:
    """The softmax tile does not depend on the block."""
    check("numba", paged("int8", block_size, (4, 2), (32, 32), [block_size, 544, 1]), "int8")


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("name", BACKENDS)
def test_prefill_with_and_without_a_cached_prefix(name: str, kv_dtype: str) -> None:
    contexts, queries = [70, 9, 300, 600, 520], [1, 9, 17, 600, 300]
    check(name, paged(kv_dtype, 16, (4, 2), (32, 32), contexts, queries), kv_dtype)


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("name", BACKENDS)
def test_the_answer_does_not_depend_on_chunking(name: str, kv_dtype: str) -> None:
    """One prompt of 40 tokens in one piece, in pieces, and token by token: stored is what is read."""
    whole = paged(kv_dtype, 4, (4, 2), (32, 32), [40], [40])
    expected = attend(name, whole)
    table = whole.batch.block_tables[0]
    for size in (1, 3, 7, 16):
        pieces = []
        for start in range(0, 40, size):
            end = min(start + size, 40)
            batch = step_batch(table, [end], [end - start], 4)
            pieces.append(attend(name, Paged(whole.store, batch, whole.q[start:end], [], [])))
        torch.testing.assert_close(torch.cat(pieces), expected, atol=ERROR_OF_ARITHMETIC, rtol=0)


def test_decode_bits_depend_on_neither_batch_nor_threads() -> None:
    """K18: splits have a fixed size, so a sequence's sum is taken in one order whatever runs beside it."""
    case = paged("bf16", 16, (8, 2), (64, 64), [700, 3, 1300, 256, 257])
    together = attend("numba", case)
    set_threads(1)
    try:
        torch.testing.assert_close(attend("numba", case), together, atol=0, rtol=0)
    finally:
        set_threads(torch.get_num_threads())
    for s, context in enumerate([700, 3, 1300, 256, 257]):
        batch = step_batch(case.batch.block_tables[0, s : s + 1], [context], [1], 16)
        alone = attend("numba", Paged(case.store, batch, case.q[s : s + 1], [], []))
        torch.testing.assert_close(alone, together[s : s + 1], atol=0, rtol=0)


def test_k28_the_running_maximum_rises_in_every_tile() -> None:
    """Scores that grow with the position: an accumulator that is not rescaled shows."""
    case = paged("fp32", 16, (4, 2), (16, 16), [1000])
    case.keys[0] = torch.arange(1000.0)[:, None, None].expand(1000, 2, 16) * case.q[0, ::2].sign() * 0.01
    table = case.batch.block_tables[0, 0]
    case.store.write(0, case.keys[0], case.values[0], slots_of(table, 0, 1000, 16))
    for name in BACKENDS:
        torch.testing.assert_close(attend(name, case).double(), reference(case), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", BACKENDS)
def test_k14_scales_of_k_and_v_both_count(name: str) -> None:
    """Small K and large V, each with its own scale."""
    case = paged("int8", 4, (2, 2), (16, 16), [30])
    case.keys[0], case.values[0] = case.keys[0] * 0.06, case.values[0] * 300.0
    case.store.write(0, case.keys[0], case.values[0], slots_of(case.batch.block_tables[0, 0], 0, 30, 4))
    torch.testing.assert_close(attend(name, case).double(), reference(case, "int8"), atol=2e-3, rtol=1e-5)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_stored_nan_is_seen(name: str) -> None:
    """Poison that belongs to the sequence must come out, in its head only."""
    case = paged("fp32", 4, (4, 2), (16, 16), [30, 30])
    case.keys[1][5, 0] = float("nan")
    case.store.write(0, case.keys[1], case.values[1], slots_of(case.batch.block_tables[0, 1], 0, 30, 4))
    out = attend(name, case)
    assert out[1, :2].isnan().all()
    assert out[1, 2:].isfinite().all()
    assert out[0].isfinite().all()


@pytest.mark.parametrize("name", BACKENDS)
def test_e69_kernels_get_slots_never_ids(name: str) -> None:
    """The second and the first logical block swap places: same answer."""
    case = paged("int8", 4, (4, 2), (16, 16), [8])
    before = attend(name, case)
    table = case.batch.block_tables[0, 0]
    table[:2] = table[:2][::-1]
    case.store.write(0, case.keys[0], case.values[0], slots_of(table, 0, 8, 4))
    torch.testing.assert_close(attend(name, case), before, atol=0, rtol=0)


@pytest.mark.parametrize("name", BACKENDS)
def test_low_precision_queries_keep_their_dtype(name: str) -> None:
    case = paged("bf16", 16, (4, 2), (32, 32), [40, 20], [1, 20])
    expected = attend(name, case)
    case.q = case.q.bfloat16()
    out = attend(name, case)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, atol=5e-2, rtol=0)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("wrong", [0, -1, 10_000, 2**31 - 1])
def test_a_table_that_leaves_the_pool_is_refused_before_the_kernel(name: str, wrong: int) -> None:
    case = paged("fp32", 4, (2, 2), (8, 8), [20, 20])
    case.batch.block_tables[0, 1, 3] = wrong
    with pytest.raises(InternalError, match="place 3"):
        attend(name, case)


@pytest.mark.parametrize("name", BACKENDS)
def test_unused_table_entries_may_hold_anything(name: str) -> None:
    case = paged("fp32", 4, (2, 2), (8, 8), [20, 5])
    before = attend(name, case)
    case.batch.block_tables[0, 1, 2:] = -7
    torch.testing.assert_close(attend(name, case), before, atol=0, rtol=0)


def test_a_context_longer_than_its_table_is_refused() -> None:
    case = paged("fp32", 4, (2, 2), (8, 8), [20])
    case.batch.context_lengths[0] = 25
    with pytest.raises(InternalError, match="cannot hold 25 tokens"):
        attend("torch", case)


def test_slots_outside_the_pool_are_refused() -> None:
    case = paged("fp32", 4, (2, 2), (8, 8), [20])
    case.batch.slots = np.array([[3]])
    with pytest.raises(InternalError, match="slots 3 to 3"):
        attend("torch", case)


def test_k05_offsets_beyond_two_to_the_31() -> None:
    """The last block of a 2.5 GiB pool; memory that is not touched costs nothing."""
    case = paged("int8", 256, (8, 8), (64, 64), [5])
    store = KVStore(one_layer(8, 64), "int8", 256, (5 << 29) // (256 * 8 * 2 * 64))
    case.batch.block_tables[0, 0, 0] = store.num_blocks
    case.store = store
    store.write(0, case.keys[0], case.values[0], slots_of(case.batch.block_tables[0, 0], 0, 5, 256))
    check("numba", case, "int8")
