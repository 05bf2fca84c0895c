"""Contents without tokens: a sequence by the names of what it is made of.

Where tokens follow from names (a stream and a position in it), two fronts are equal by name exactly when they are made
of the same runs: whole runs before, and a front of the last one. A block's key is a digest of that, so a prompt of
12,000 tokens costs a few dozen digests and one vector operation instead of its tokens. What token contents have beyond
it are streams whose tokens are equal by chance. Keys are 128 bits; a hit compares the key and the parent's content id.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.content import Content
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvbench.cache.content import KeyChain
    from kvbench.cache.types import Int32s

    UInt64s = NDArray[np.uint64]

Run = tuple[int, int, int]
"""Stream, position in it, tokens."""
NAME_WORDS = 4
"""int32 words by which a hit is compared: the key itself."""
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_ZERO = np.zeros((), np.int32)


class SymbolicContent(Content):
    """A prompt and the output that will follow it, both known by name; `length` says how far the sequence has come.

    `runs` are joined: no two neighbours are touching pieces of one stream."""

    __slots__ = ("_names", "_runs", "_total")

    def __init__(self, runs: Sequence[Run], length: int, *, salt: str | None = None, priority: int = 0) -> None:
        super().__init__((), salt=salt, priority=priority)
        self.length = length
        self._runs = runs
        self._total = sum(run[2] for run in runs)
        self._names: Int32s = np.zeros((0, NAME_WORDS), np.int32)
        if not 0 <= length <= self._total:
            raise InternalError(f"a content of {self._total} named tokens cannot have a length of {length}")

    @property
    def tokens(self) -> NDArray[np.int32]:
        """As many zeros: there are no tokens."""
        return np.broadcast_to(_ZERO, self.length)

    def append(self, token: int) -> None:
        self._go_to(self.length + 1)

    def extend(self, tokens: Sequence[int] | NDArray[np.integer]) -> None:
        self._go_to(self.length + len(tokens))

    def truncate(self, length: int) -> None:
        self._go_to(length)

    def copy(self) -> SymbolicContent:
        return SymbolicContent(self._runs, self.length, salt=self.salt, priority=self.priority)

    def keys(self, chain: KeyChain, count: int) -> list[bytes]:
        """Keys of all blocks, also of those that are still to come: it costs the same."""
        if chain is not self._chain and chain != self._chain:
            self._chain = chain
            names = self._all_names(chain)
            self._names = names.view(np.int32)
            self._keys = names.view("V16").ravel().tolist()
        if count * chain.block_size > self.length:
            raise InternalError(f"content of {self.length} tokens has no {count} full blocks")
        return self._keys

    def key_and_bytes(self, chain: KeyChain, block: int) -> tuple[bytes, bytes]:
        key = self.keys(chain, block + 1)[block]
        return key, key

    def named(self, chain: KeyChain, first: int, end: int) -> Int32s:
        self.keys(chain, end)
        return self._names[first:end]

    def _go_to(self, length: int) -> None:
        if not 0 <= length <= self._total:
            raise InternalError(f"a content of {self._total} named tokens cannot have a length of {length}")
        self.length = length

    def _all_names(self, chain: KeyChain) -> UInt64s:
        """`[blocks, 2]`: of the run in which a block ends, a base that covers all runs before it, moved on by how far
        into the run the block's end lies."""
        ends = np.arange(1, self._total // chain.block_size + 1) * chain.block_size
        lengths = np.array([run[2] for run in self._runs], np.int64)
        begins = np.cumsum(lengths) - lengths
        run_of = np.searchsorted(begins, ends) - 1
        inside = (ends - begins[run_of]).astype(np.uint64)
        bases = self._bases(chain, int(run_of[-1]) + 1 if len(ends) else 0)
        return _mix(bases[run_of] + inside[:, np.newaxis] * _GAMMA)

    def _bases(self, chain: KeyChain, count: int) -> UInt64s:
        digest, before, found = chain.digest, chain.root(self.salt), []
        for stream, start, length in self._runs[:count]:
            found.append(digest(before + struct.pack("<Qq", stream, start))[:16])
            before = digest(before + struct.pack("<Qqq", stream, start, length))
        return np.frombuffer(b"".join(found), np.uint64).reshape(-1, 2)


def _mix(words: UInt64s) -> UInt64s:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), a bijection of 64-bit words."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
