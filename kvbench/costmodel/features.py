"""What a step does, in numbers that its cost follows from. All of them are whole, so that adding them up in another
order changes nothing.

Of a sequence with n query tokens that ends at length e, a layer that sees W tokens (all of them without a window):

    context   KV tokens that its queries read between them       min(e, W + n − 1)
    pairs     (query, key) products                              Σ over its queries at p of min(p + 1, W)
    blocks    block-table entries that are followed              ⌈e / B⌉ − ⌊(e − context) / B⌋
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.geometry.model import ModelGeometry


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """One step. The lists have an entry per attention shape (distinct window) of the model."""

    sequences: int
    tokens: int
    """Query tokens: prefill and decode."""
    sampled: int
    """Rows that go through the output head."""
    prefills: int
    """Of the sequences, those that compute a piece of their prompt."""
    decode_context: tuple[int, ...]
    prefill_context: tuple[int, ...]
    prefill_pairs: tuple[int, ...]
    blocks: tuple[int, ...]


class LayerWindows(NamedTuple):
    """The layers of a model by their groups: the window of each, and how many layers have it."""

    windows: tuple[int | None, ...]
    layers: tuple[int, ...]


ONE_LAYER = LayerWindows((None,), (1,))


class LayerReads(NamedTuple):
    """What attention does in one step, summed over all layers."""

    decode_reads: int
    """KV tokens that decoding sequences read"""
    prefill_reads: int
    """KV tokens that pieces of prompts read"""
    prefill_pairs: int
    """(query, key) products of pieces of prompts"""
    block_reads: int
    """Block-table entries that are followed"""


def layer_windows(geometry: ModelGeometry) -> LayerWindows:
    """Windows and numbers of layers of the model's groups."""
    groups = geometry.groups
    return LayerWindows(tuple(group.window for group in groups), tuple(len(group.layers) for group in groups))


def layer_reads(step: StepFeatures, layers: tuple[int, ...]) -> LayerReads:
    """Sums over layers of features whose entries are the groups of so many `layers`."""

    def total(of_groups: tuple[int, ...]) -> int:
        return sum(count * each for count, each in zip(layers, of_groups, strict=True))

    return LayerReads(*map(total, (step.decode_context, step.prefill_context, step.prefill_pairs, step.blocks)))


def step_features(
    starts: NDArray[np.integer],
    counts: NDArray[np.integer],
    num_decodes: int,
    sampled: int,
    windows: tuple[int | None, ...],
    block_size: int,
) -> StepFeatures:
    """Features of a step over sequences whose `counts` query tokens begin at `starts`; the first `num_decodes` of them
    decode."""
    counts64, ends = counts.astype(np.int64), starts.astype(np.int64) + counts
    context = [visible(ends, counts64, window) for window in windows]
    return StepFeatures(
        sequences=len(ends),
        tokens=int(counts64.sum()),
        sampled=sampled,
        prefills=len(ends) - num_decodes,
        decode_context=tuple(int(seen[:num_decodes].sum()) for seen in context),
        prefill_context=tuple(int(seen[num_decodes:].sum()) for seen in context),
        prefill_pairs=tuple(_pairs(ends[num_decodes:], counts64[num_decodes:], window) for window in windows),
        blocks=tuple(int(blocks_of(ends, seen, block_size).sum()) for seen in context),
    )


def decode_run_reads(
    lengths: NDArray[np.int64], steps: int, window: int | None, block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`[steps]` KV tokens and `[steps]` block-table entries that a layer reads in consecutive steps that decode
    sequences of these lengths, the query token included in the first step, and nothing else."""
    if window is None:
        return _full_run(lengths, steps, block_size)
    ends = lengths[:, np.newaxis] + np.arange(steps)
    seen = visible(ends, 1, window)
    return seen.sum(axis=0), blocks_of(ends, seen, block_size).sum(axis=0)


def visible(ends: NDArray[np.int64], counts: NDArray[np.int64] | int, window: int | None) -> NDArray[np.int64]:
    """KV tokens that the last `counts` queries of sequences of length `ends` read between them."""
    return ends if window is None else np.minimum(ends, counts + (window - 1))


def blocks_of(ends: NDArray[np.int64], context: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Block-table entries behind the last `context` tokens of sequences of length `ends`."""
    return -(-ends // block_size) - (ends - context) // block_size


def _pairs(ends: NDArray[np.int64], counts: NDArray[np.int64], window: int | None) -> int:
    """Causal pairs in closed form: all of them, less what lies behind the window."""
    starts = ends - counts
    total = _triangle(ends) - _triangle(starts)
    if window is not None:
        total = total - _triangle(np.maximum(ends - window, 0)) + _triangle(np.maximum(starts - window, 0))
    return int(total.sum())


def _triangle(n: NDArray[np.int64]) -> NDArray[np.int64]:
    """1 + 2 + … + n."""
    return n * (n + 1) // 2


def _full_run(lengths: NDArray[np.int64], steps: int, block_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Without a window: a sequence of length n begins a block in the steps that are 1 − n modulo the block size."""
    offsets = np.arange(steps)
    begins = np.bincount((1 - lengths) % block_size, minlength=block_size)[offsets % block_size]
    begins[0] = 0
    blocks = int((-(-lengths // block_size)).sum()) + begins.cumsum()
    return int(lengths.sum()) + len(lengths) * offsets, blocks
