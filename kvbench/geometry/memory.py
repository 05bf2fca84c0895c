"""Bytes of KV: per token, per block, per sequence, and how many blocks and sequences a memory holds.

Layout of one block in one layer, which is also what the KV store allocates: K `[kv_heads, block_size, k_head_dim]`,
then V `[kv_heads, block_size, v_head_dim]`, then for narrow dtypes with scales per token and head float32 scales of K
`[kv_heads, block_size]` and of V likewise; the total is rounded up to 16 bytes. A latent group has no V and no V
scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from kvbench.errors import UsageError
from kvbench.geometry.dtypes import scales_per_token, storage_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.geometry.model import LayerGroup, ModelGeometry

ALIGNMENT = 16
"""Bytes: the widest load of a GPU thread, so that every block of every layer starts on one."""

TOKEN_HEAD = "token-head"
"""The scales of a narrow KV dtype lie in its blocks, unless it is said otherwise (`geometry.dtypes.SCALES`)."""

MOST_PIECES = 8
"""Block tables that a hybrid model may have: each one more costs bookkeeping in every step."""


def kv_bytes_per_token(g: ModelGeometry, kv_dtype: str, kv_scales: str = TOKEN_HEAD) -> Fraction:
    """Bytes that one token adds over all layers, scales included, before any rounding to blocks:
    Σ layers (K heads · d_k + V heads · d_v) · bytes + scales. Whole except for odd int4 shapes."""
    return sum((len(group.layers) * _token_bytes(group, kv_dtype, kv_scales) for group in g.groups), Fraction(0))


def layer_block_bytes(group: LayerGroup, kv_dtype: str, block_size: int, kv_scales: str = TOKEN_HEAD) -> int:
    """Bytes of one block of `block_size` tokens in one layer of the group, a multiple of 16."""
    if block_size < 1:
        raise UsageError(f"block size {block_size} is not positive", hint="a block holds 1 token or more")
    return _round_up(_token_bytes(group, kv_dtype, kv_scales) * block_size, ALIGNMENT)


def block_bytes(g: ModelGeometry, kv_dtype: str, block_size: int, kv_scales: str = TOKEN_HEAD) -> int:
    """Bytes of one physical block: all layers of the group, or the shared block of a hybrid model."""
    return pool_layout(g, kv_dtype, block_size, kv_scales).block_bytes


def tail_waste(tokens: int, block_size: int) -> int:
    """Slots of the last block that hold no token: −T mod B."""
    return -tokens % block_size


def mean_tail_share(mean_tokens: float, block_size: int) -> float:
    """Mean tail waste as a share of the sequence, (B − 1) / (2 T̄), for lengths spread evenly over a block."""
    return (block_size - 1) / (2 * mean_tokens)


def group_blocks(group: LayerGroup, tokens: int, block_size: int, chunk: int | None = 1) -> int:
    """Most blocks that a sequence of `tokens` holds in one layer group; the one cap for sizing, admission and
    execution. `chunk` is the most tokens that one step computes of it, None when it may be all of them."""
    blocks = -(-tokens // block_size)
    if group.window is None or chunk is None:
        return blocks
    return min(blocks, window_blocks(group.window, block_size, chunk))


def window_blocks(window: int, block_size: int, chunk: int) -> int:
    """Blocks of window layers that hold the window and the `chunk` tokens of the step in flight, wherever they fall in
    their blocks: ⌈(W − 1 + chunk) / B⌉ + 1."""
    return -(-(window - 1 + chunk) // block_size) + 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Layers of one group that share a block table. `layers` real ones, padded up to the pool's layers per block;
    `layer_ids` are their numbers in the model, in the order of a block's planes."""

    group: LayerGroup
    layers: int
    used_bytes: int
    layer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """How layer groups share one pool: every block has `block_bytes`, whichever piece it serves.

    `padding_bytes` is what one block of every piece together wastes.
    """

    block_bytes: int
    block_size: int
    layers_per_block: int
    pieces: tuple[Piece, ...]

    @property
    def padding_bytes(self) -> int:
        return sum(self.block_bytes - piece.used_bytes for piece in self.pieces)

    @property
    def padding_share(self) -> float:
        """Padding as a share of one block of every piece."""
        return self.padding_bytes / (self.block_bytes * len(self.pieces))

    def sequence_blocks(self, tokens: int, chunk: int | None = 1) -> int:
        """Most blocks that one sequence of `tokens` holds at once, over all pieces."""
        return sum(group_blocks(piece.group, tokens, self.block_size, chunk) for piece in self.pieces)

    def sequence_padding_bytes(self, tokens: int, chunk: int = 1) -> int:
        """Bytes that a sequence of `tokens` wastes on missing layers and narrower groups of its blocks."""
        return sum(
            group_blocks(piece.group, tokens, self.block_size, chunk) * (self.block_bytes - piece.used_bytes)
            for piece in self.pieces
        )

    def longest_sequence(self, blocks: int, chunk: int | None = 1) -> int | None:
        """Tokens of the longest single sequence that `blocks` can hold; None when windows make it endless."""
        full = sum(piece.group.window is None for piece in self.pieces)
        if full == 0 and chunk is not None:
            return None if blocks >= self.sequence_blocks(2**62, chunk) else self._longest(blocks, chunk)
        return self._longest(blocks, chunk)

    def _longest(self, blocks: int, chunk: int | None) -> int:
        low, high = 0, blocks
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.sequence_blocks(middle * self.block_size, chunk) <= blocks
            low, high = (middle, high) if fits else (low, middle - 1)
        return low * self.block_size


def pool_layout(g: ModelGeometry, kv_dtype: str, block_size: int, kv_scales: str = TOKEN_HEAD) -> PoolLayout:
    """One group: a block holds all its layers. Several: groups are cut into pieces of equally many layers, so that
    one block size serves them all. Taken is the cut with at most `MOST_PIECES` tables under which a sequence of the
    model's longest context takes least memory, the fewest tables on a tie.

    Gemma-3-12b, 8 full and 40 sliding layers: blocks of 8 layers, 1 + 5 tables, no padding.
    """
    if len(g.groups) == 1:
        return _layout(g, kv_dtype, block_size, kv_scales, len(g.groups[0].layers))
    widths = range(1, max(len(group.layers) for group in g.groups) + 1)
    few = [w for w in widths if _pieces_at(g, w) <= max(MOST_PIECES, len(g.groups))]
    layouts = (_layout(g, kv_dtype, block_size, kv_scales, width) for width in few)
    return min(layouts, key=lambda x: (x.sequence_blocks(g.max_context) * x.block_bytes, len(x.pieces)))


def mean_sequence_blocks(layout: PoolLayout, lengths: Iterable[int], chunk: int = 1) -> Fraction:
    """Mean of the blocks that sequences of these lengths hold."""
    needs = [layout.sequence_blocks(tokens, chunk) for tokens in lengths]
    return Fraction(sum(needs), len(needs))


def _token_bytes(group: LayerGroup, kv_dtype: str, kv_scales: str) -> Fraction:
    dtype, in_block = storage_dtype(kv_dtype), scales_per_token(kv_scales)
    scales = in_block * group.kv_heads * dtype.scale_bytes * (2 if group.v_head_dim else 1)
    return group.elements_per_token_and_layer * dtype.bytes_per_element + scales


def _pieces_at(g: ModelGeometry, width: int) -> int:
    return sum(-(-len(group.layers) // width) for group in g.groups)


def _layout(g: ModelGeometry, kv_dtype: str, block_size: int, kv_scales: str, width: int) -> PoolLayout:
    pieces: list[Piece] = []
    for group in g.groups:
        layer = layer_block_bytes(group, kv_dtype, block_size, kv_scales)
        for start in range(0, len(group.layers), width):
            layer_ids = group.layers[start : start + width]
            pieces.append(Piece(group, len(layer_ids), len(layer_ids) * layer, layer_ids))
    widest = max(layer_block_bytes(group, kv_dtype, block_size, kv_scales) for group in g.groups)
    return PoolLayout(width * widest, block_size, width, tuple(pieces))


def _round_up(value: Fraction, unit: int) -> int:
    return -(-value.numerator // (value.denominator * unit)) * unit
