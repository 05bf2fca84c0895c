"""Windows, sinks, soft caps, scales and latent layers: both backends against float64, NaN wherever nothing is seen."""

from __future__ import annotations

import pytest
import torch

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.attention.rule import ScoreRule
from kvbench.errors import InternalError
from tests.attention.batches import Paged, paged, reference, slots_of, step_batch
from tests.attention.test_backends import BACKENDS, DTYPES, attend, check

CONTEXTS = [0, 1, 31, 32, 33, 64, 300, 1000]


@pytest.mark.parametrize("window", [1, 5, 32, 300, 4096])
@pytest.mark.parametrize("block_size", [3, 16, 64])
@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_decode_sees_its_window_and_reads_nothing_before_it(
    name: str, kv_dtype: str, block_size: int, window: int
) -> None:
    """Blocks wholly before the window are null in the table; the null block, and what lies before the window in its
    first block, are NaN."""
    case = paged(kv_dtype, block_size, (6, 2), (32, 24), CONTEXTS, window=window)
    if max(CONTEXTS) > window + block_size:
        assert (case.batch.block_tables[0, -1, : (1000 - window) // block_size] == 0).all()
    check(name, case, kv_dtype)


@pytest.mark.parametrize("name", BACKENDS)
def test_k02_splits_that_a_window_leaves_empty_are_merged_as_nothing(name: str) -> None:
    """Contexts of many splits, of which the window leaves one, the end of one, or two and a token of a third."""
    for window in (5, 256, 257, 513):
        case = paged("fp32", 16, (4, 2), (32, 32), [90, 2048, 1000, 5, 257], window=window)
        check(name, case, "fp32")


@pytest.mark.parametrize("window", [1, 7, 100, 256, 5000])
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_prefill_sees_its_window_and_reads_nothing_before_it(name: str, block_size: int, window: int) -> None:
    """Pieces longer and shorter than the window, at the start and in the middle of a prompt, beside a decode."""
    contexts, queries = [70, 9, 300, 600, 520], [1, 9, 17, 600, 300]
    check(name, paged("fp32", block_size, (4, 2), (32, 32), contexts, queries, window=window), "fp32")


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kv_dtype", DTYPES)
def test_a_window_does_not_depend_on_chunking(name: str, kv_dtype: str) -> None:
    whole = paged(kv_dtype, 4, (4, 2), (32, 32), [90], [90], window=20)
    expected = attend(name, whole)
    for size in (1, 3, 16, 40):
        pieces = []
        for start in range(0, 90, size):
            end = min(start + size, 90)
            table = whole.batch.block_tables[0].copy()
            table[0, : max(0, start - 20 + 1) // 4] = 0
            batch = step_batch(table, [end], [end - start], 4)
            pieces.append(attend(name, Paged(whole.store, batch, whole.q[start:end], [], [])))
        torch.testing.assert_close(torch.cat(pieces), expected, atol=5e-6, rtol=0)


def test_a_windows_bits_depend_on_neither_batch_nor_block_size() -> None:
    together = [paged("fp32", b, (8, 2), (64, 64), [700, 3, 1300], window=512) for b in (1, 16, 64)]
    out = [attend("numba", case) for case in together]
    assert torch.equal(out[0], out[1])
    assert torch.equal(out[0], out[2])
    case = together[1]
    for s, context in enumerate([700, 3, 1300]):
        batch = step_batch(case.batch.block_tables[0, s : s + 1], [context], [1], 16)
        assert torch.equal(attend("numba", Paged(case.store, batch, case.q[s : s + 1], [], [])), out[1][s : s + 1])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("queries", [[1, 1, 1], [1, 17, 40]])
def test_a_null_entry_inside_the_window_is_refused(name: str, queries: list[int]) -> None:
    """The last sequence's first visible token is in block ⌊(40 − n − 8 + 1) / 4⌋; one block later is an error."""
    case = paged("fp32", 4, (2, 2), (8, 8), [10, 20, 40], queries, window=8)
    first = max(0, 40 - queries[-1] - 8 + 1) // 4
    attend(name, case)
    case.batch.block_tables[0, 2, first] = 0
    with pytest.raises(InternalError, match=rf"names block 0 at place {first}"):
        attend(name, case)


@pytest.mark.parametrize(
    "rule",
    [
        ScoreRule(scale=0.31),
        ScoreRule(sinks=torch.tensor([-4.0, 0.0, 1.0, 3.0, 9.0, 30.0])),
        ScoreRule(sinks=torch.full((6,), float("-inf"))),
        ScoreRule(soft_cap=1.5),
        ScoreRule(scale=1.0, soft_cap=4.0, sinks=torch.tensor([-4.0, 0.0, 1.0, 3.0, 9.0, 30.0])),
    ],
)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
@pytest.mark.parametrize("name", BACKENDS)
def test_scales_sinks_and_soft_caps(name: str, kv_dtype: str, window: int | None, rule: ScoreRule) -> None:
    contexts, queries = [0, 1, 40, 300, 9, 90, 300], [1, 1, 1, 1, 9, 33, 270]
    case = paged(kv_dtype, 16, (6, 2), (24, 40), contexts, queries, window=window, rule=rule)
    check(name, case, kv_dtype)
    assert (attend(name, case)[0] == 0).all()


def test_a_sink_takes_weight_and_gives_none() -> None:
    """One token: without a sink its V comes out whole; a sink as large as its score halves it."""
    for name in BACKENDS:
        case = paged("fp32", 4, (2, 2), (8, 8), [1])
        score = torch.einsum("hd,hd->h", case.q[0], case.keys[0][0]) * 8**-0.5
        case.rule = ScoreRule(sinks=score)
        torch.testing.assert_close(attend(name, case)[0], case.values[0][0] / 2, atol=1e-6, rtol=0)


@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("name", BACKENDS)
def test_latent_layers(name: str, kv_dtype: str, block_size: int) -> None:
    """Many query heads against one row a token, whose front is its V; scale that of the heads before absorption."""
    contexts, queries = [0, 1, 64, 300, 33, 90], [1, 1, 1, 1, 1, 90]
    rule = ScoreRule(scale=24**-0.5)
    for heads, dims in ((5, (40, 32)), (16, (72, 64))):
        case = paged(kv_dtype, block_size, (heads, 1), dims, contexts, queries, is_latent=True, rule=rule)
        out = attend(name, case).double()
        assert out.shape == (sum(queries), heads, dims[1])
        torch.testing.assert_close(out, reference(case, kv_dtype), atol=5e-6, rtol=0)


def test_latent_rows_keep_one_scale() -> None:
    """int8: rows of very different size, each under its own scale, for K and for V."""
    case = paged("int8", 4, (4, 1), (24, 16), [30], is_latent=True, rule=ScoreRule(scale=0.05))
    case.keys[0] = case.keys[0] * torch.logspace(-3, 1.5, 30)[:, None, None]
    case.store.write(0, case.keys[0], case.values[0], slots_of(case.batch.block_tables[0, 0], 0, 30, 4))
    for name in BACKENDS:
        torch.testing.assert_close(attend(name, case).double(), reference(case, "int8"), atol=2e-5, rtol=1e-5)


def test_windows_sinks_and_latent_rows_compile_nothing_new() -> None:
    """They are run-time numbers of one kernel."""
    import kvbench_kernels

    attend("numba", paged("fp32", 4, (2, 2), (8, 8), [9]))
    before = kvbench_kernels.compiled_variants()
    attend("numba", paged("fp32", 4, (2, 2), (8, 8), [9], window=3))
    attend("numba", paged("fp32", 4, (2, 2), (8, 8), [9], rule=ScoreRule(0.1, 2.0, torch.zeros(2))))
    attend("numba", paged("fp32", 4, (2, 1), (8, 4), [9], is_latent=True))
    assert kvbench_kernels.compiled_variants() == before


@pytest.mark.parametrize("name", BACKENDS)
def test_half_precision_queries_keep_their_dtype_under_a_rule(name: str) -> None:
    rule = ScoreRule(sinks=torch.zeros(4))
    case = paged("bf16", 16, (4, 2), (32, 32), [40, 20], [1, 20], window=9, rule=rule)
    backend = attention_backend(name, "cpu")
    backend.prepare(case.batch, case.store)
    out = backend.attend(0, case.q.bfloat16(), case.store, rule)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), attend(name, case), atol=5e-2, rtol=0)
