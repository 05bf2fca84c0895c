"""Published blocks by the content before them, for reuse inside a block: who begins with most of these tokens?

Of the blocks that continue one content the tokens are kept sorted, so that the longest common front of all of them with
some tokens is that of a neighbour of the place where those would stand: two comparisons, however many there are.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.prefix import Labels
    from kvbench.cache.types import Int32s

_BIG = np.dtype(">i4")


class Siblings:
    """Of one layer group; contents with several blocks are named by one of them."""

    def __init__(self) -> None:
        self._sorted: dict[int, list[bytes]] = {}
        """Content id → tokens of the blocks that continue it, big-endian, so that bytes sort as tokens do"""
        self._blocks: dict[tuple[int, bytes], int] = {}

    def add(self, parent: int, tokens: Int32s, block: int) -> None:
        """A content has come, or has another block."""
        data = tokens.astype(_BIG).tobytes()
        if (parent, data) not in self._blocks:
            names = self._sorted.setdefault(parent, [])
            names.insert(bisect_left(names, data), data)
        self._blocks[parent, data] = block

    def remove(self, parent: int, tokens: Int32s) -> None:
        """The last block of a content has gone."""
        data = tokens.astype(_BIG).tobytes()
        del self._blocks[parent, data]
        names = self._sorted[parent]
        del names[bisect_left(names, data)]
        if not names:
            del self._sorted[parent]

    def longest(self, parent: int, tokens: Int32s) -> tuple[int, int]:
        """(common tokens, block) of the block behind `parent` with the longest common front; (0, 0) without any."""
        names = self._sorted.get(parent)
        if not names or not len(tokens):
            return 0, 0
        data = tokens.astype(_BIG).tobytes()
        at = bisect_left(names, data)
        common, name = max((_common_bytes(data, name), name) for name in names[max(0, at - 1) : at + 1])
        return (common // 4, self._blocks[parent, name]) if common >= 4 else (0, 0)

    def check(self, blocks: list[int], labels: Labels) -> None:
        """`blocks` are one block of every content."""
        expected = {(int(labels.parent_ids[b]), labels.tokens[b].astype(_BIG).tobytes()): b for b in blocks}
        if expected != self._blocks:
            wrong = {b for _, b in expected.items() ^ self._blocks.items()}
            raise InternalError(f"block {min(wrong)} is not among the blocks that continue its parent, or no more")
        names = [(parent, name) for parent, found in self._sorted.items() for name in found]
        if sorted(names) != sorted(self._blocks) or any(found != sorted(found) for found in self._sorted.values()):
            raise InternalError("the blocks that continue a content are out of order")


def _common_bytes(one: bytes, other: bytes) -> int:
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    differs = np.frombuffer(one, np.uint8, size) != np.frombuffer(other, np.uint8, size)
    return int(np.argmax(differs))
