"""The oracle's arithmetic: one number per position that depends on every token before it, as real K and V do.

    link[p] = mix(link[p − 1] xor mix(token[p])),  link[−1] = ROOT

Whoever reads one wrong slot continues with a wrong number, and the output, link mod vocabulary, is wrong from there on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.keys import mix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_MASK = (1 << 64) - 1
ROOT = mix(0x6B76)
UInt64s = np.ndarray[tuple[int], np.dtype[np.uint64]]


def next_link(link: int, token: int) -> int:
    """The number of a position from the one before it and its token."""
    return mix(link ^ mix(token))


def token_after(link: int, vocab_size: int, key: int | None = None) -> int:
    """What the oracle's model answers to a sequence that ends with this number; `key` is the random number of a token
    that is drawn, None when the likeliest is wanted."""
    return (link if key is None else mix(link ^ (key & _MASK))) % vocab_size


def candidates_after(link: int, vocab_size: int, count: int) -> tuple[list[int], list[float]]:
    """The `count` likeliest answers, all different, and their log-probabilities, falling."""
    first = token_after(link, vocab_size)
    leads = np.array([1 + next_link(link, rank) % 1_000_003 for rank in range(count)])
    return [(first + rank) % vocab_size for rank in range(count)], (-np.cumsum(leads) / 1e6).tolist()


def group_mark(group: int) -> int:
    """Layer groups store the same numbers under marks of their own, so that a mix-up between groups shows."""
    return mix(group + 1)


class Links:
    """The numbers of one growing token sequence, computed once each."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._tokens: list[int] = []

    def of(self, tokens: NDArray[np.int32]) -> UInt64s:
        """[n] of these tokens; those of an unchanged beginning are remembered."""
        given: list[int] = tokens.tolist()
        same = self._common(given)
        del self._values[same:], self._tokens[same:]
        self._extend(given[same:])
        return np.array(self._values, dtype=np.uint64)

    def _common(self, given: list[int]) -> int:
        known = self._tokens
        if given[: len(known)] == known:
            return len(known)
        return next(at for at, (a, b) in enumerate(zip([*known, -1], [*given, -2], strict=False)) if a != b)

    def _extend(self, tokens: Iterable[int]) -> None:
        link = self._values[-1] if self._values else ROOT
        for token in tokens:
            link = next_link(link, token)
            self._values.append(link)
            self._tokens.append(token)
