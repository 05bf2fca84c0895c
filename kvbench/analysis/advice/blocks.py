"""Blocks that a sequence holds at every length, over all block tables of a model: exact, windows and hybrids too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.geometry.memory import group_blocks

if TYPE_CHECKING:
    from kvbench.analysis.advice.lengths import Ints
    from kvbench.geometry.memory import PoolLayout


def held_blocks(layout: PoolLayout, lengths: Ints) -> Ints:
    """`[n]` blocks held in the decode step that stores token t: ⌈t/B⌉ in a full group, and in a window group those
    from the first position that the step reads on, ⌈t/B⌉ − ⌊max(0, t − W) / B⌋, as `cache/windows.py` lets them go."""
    size = layout.block_size
    blocks = -(-lengths // size)
    held = np.zeros(len(lengths), dtype=np.int64)
    for piece in layout.pieces:
        window = piece.group.window
        held += blocks if window is None else blocks - np.maximum(lengths - window, 0) // size
    return held


def most_blocks(layout: PoolLayout, lengths: Ints) -> Ints:
    """`[n]` most blocks that a sequence of so many tokens may hold at once, the cap that admission and `kvbench size`
    count with (`PoolLayout.sequence_blocks`, steps of one token)."""
    size = layout.block_size
    blocks = -(-lengths // size)
    most = np.zeros(len(lengths), dtype=np.int64)
    for piece in layout.pieces:
        cap = None if piece.group.window is None else group_blocks(piece.group, 1 << 62, size)
        most += blocks if cap is None else np.minimum(blocks, cap)
    return most


def held_bytes(layout: PoolLayout, lengths: Ints) -> Ints:
    """`[n]` bytes of the tokens that a sequence needs at this length, before any rounding to blocks: in a window group
    the last W only. What `held_blocks` has beyond them is waste: tails, fronts of windows, padding between groups."""
    size = layout.block_size
    needed = np.zeros(len(lengths), dtype=np.int64)
    for piece in layout.pieces:
        tokens = lengths if piece.group.window is None else np.minimum(lengths, piece.group.window)
        needed += tokens * piece.used_bytes
    return needed // size
