"""Block copies by the Triton kernels (interpreted): exactly the bytes that should move, and no others."""

from __future__ import annotations

import random

import pytest
import torch

from kvbench.engine.kvstore.pool import allocate

pytest.importorskip("triton")
from kvbench_kernels import copy_triton
from kvbench_kernels.copy_triton import Config, block_copy, block_gather, block_scatter, ordered_runs

SHAPES = [(3, 9, 16), (1, 5, 48), (2, 40, 8208), (4, 6, 1040)]
"""Planes, blocks, bytes: one vector, an odd number of them, more than one program's."""


def pool_of(planes: int, blocks: int, size: int, seed: int = 0) -> torch.Tensor:
    """Random bytes `[blocks, planes, bytes]`, planes of blocks in memory, as the store has them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (planes, blocks, size), dtype=torch.uint8, generator=generator).transpose(0, 1)


def ids(*blocks: int) -> torch.Tensor:
    return torch.tensor(blocks, dtype=torch.int64)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("vectors", [32, 512])
def test_copies_on_write_move_all_planes_and_nothing_else(shape: tuple[int, int, int], vectors: int) -> None:
    pool = pool_of(*shape)
    expected = pool.clone()
    sources, targets = ids(1, 3, 1), ids(4, 2, 0)
    expected[targets] = expected[sources]
    block_copy(pool, sources, targets, Config(vectors))
    assert torch.equal(pool, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_gathered_blocks_come_back_where_they_are_scattered(shape: tuple[int, int, int]) -> None:
    pool, other = pool_of(*shape), pool_of(*shape, seed=1)
    before, expected = pool.clone(), other.clone()
    taken, put = ids(4, 0, 2), ids(1, 4, 3)
    staged = torch.full((4, *pool.shape[1:]), 0x55, dtype=torch.uint8)
    block_gather(pool, taken, staged)
    assert torch.equal(staged[:3], pool[taken])
    assert (staged[3] == 0x55).all(), "room that is not needed is left alone"
    assert torch.equal(pool, before)
    block_scatter(staged, other, put)
    expected[put] = before[taken]
    assert torch.equal(other, expected)


def test_a_plane_may_be_followed_by_bytes_of_nobody() -> None:
    """A re-cut pool uses the front of its memory only."""
    memory = torch.full((2, 5 * 48 + 32), 0x55, dtype=torch.uint8)
    pool = memory[:, : 5 * 48].unflatten(1, (5, 48)).transpose(0, 1)
    pool[:] = pool_of(2, 5, 48)
    expected = pool.clone()
    expected[4] = expected[1]
    block_copy(pool, ids(1), ids(4))
    assert torch.equal(pool, expected)
    assert (memory[:, 5 * 48 :] == 0x55).all()


def test_empty_lists_do_nothing() -> None:
    pool = pool_of(2, 5, 48)
    before, staged = pool.clone(), torch.zeros((0, 2, 48), dtype=torch.uint8)
    block_copy(pool, ids(), ids())
    block_gather(pool, ids(), staged)
    block_scatter(staged, pool, ids())
    assert torch.equal(pool, before)


def test_k05_offsets_beyond_two_to_the_31() -> None:
    """From the first to the last block of 2.3 GB that nothing else touches, and of planes that far apart."""
    pool = allocate((2, 9, 1 << 27), torch.device("cpu"))[:, :, :48].transpose(0, 1)
    pool[1] = 7
    block_copy(pool, ids(1), ids(8), Config(32))
    assert (pool[8] == 7).all()
    assert not pool[[0, 2, 7]].any()


@pytest.mark.parametrize("vectors", copy_triton.SPACE["vectors"])
def test_k26_every_configuration_moves_all_bytes(vectors: int) -> None:
    pool = pool_of(1, 4, 16 * 77)
    staged = torch.full((2, 1, 16 * 77), 0x55, dtype=torch.uint8)
    block_gather(pool, ids(3, 1), staged, Config(vectors))
    assert torch.equal(staged, pool[[3, 1]])


def test_what_is_no_row_of_16_bytes_is_refused() -> None:
    pool = pool_of(1, 4, 48)
    with pytest.raises(ValueError, match="16 bytes"):
        block_copy(pool[..., :40], ids(1), ids(2))
    with pytest.raises(ValueError, match="16 bytes"):
        block_copy(pool[..., 8:40], ids(1), ids(2))
    with pytest.raises(ValueError, match="planes and bytes"):
        block_gather(pool, ids(1), torch.zeros((1, 1, 32), dtype=torch.uint8))
    with pytest.raises(ValueError, match="do not fit"):
        block_gather(pool, ids(1, 2), torch.zeros((1, 1, 48), dtype=torch.uint8))
    with pytest.raises(ValueError, match="2 sources and 1 targets"):
        block_copy(pool, ids(1, 2), ids(3))


def test_runs_in_turn_give_what_the_pairs_in_turn_give() -> None:
    """Random pairs over few blocks: chains, swaps and repeated targets; each run by itself has none."""
    rng = random.Random(0)
    for _ in range(300):
        count = rng.randrange(9)
        sources, targets = ([rng.randrange(6) for _ in range(count)] for _ in range(2))
        plain, by_runs = list(range(6)), list(range(6))
        for source, target in zip(sources, targets, strict=True):
            plain[target] = plain[source]
        runs = ordered_runs(sources, targets)
        for start, end in runs:
            values = [by_runs[source] for source in sources[start:end]]
            for target, value in zip(targets[start:end], values, strict=True):
                by_runs[target] = value
            own = set(targets[start:end])
            assert len(own) == end - start
            moved = [pair for pair in zip(sources[start:end], targets[start:end], strict=True) if pair[0] != pair[1]]
            assert not {source for source, _ in moved} & {target for _, target in moved}
        assert by_runs == plain
        assert [at for start, end in runs for at in range(start, end)] == list(range(count))
    assert ordered_runs([1, 1, 2], [3, 4, 5]) == [(0, 3)]
