"""How much of each prompt earlier requests have already held.

The books here are kept on segments, not tokens, so that they cost the same for every block size. They are the naive
account that a cold prefix cache's hits are checked against (M20): caches start empty and nothing is ever evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvbench.workload.request import Segment
from kvbench.workload.tokens import token_ids

if TYPE_CHECKING:
    from kvbench.workload.request import Request
    from kvbench.workload.types import Workload

_CHANCE = 1e-6
"""Below this probability, equal tokens in different streams are not looked for."""
_MOST_TOKENS = 2_000_000
"""Of a workload that is looked at token by token."""


def explainable_hit_tokens(
    workload: Workload, block_size: int, vocab_size: int | None = None, before: Sequence[Request] = ()
) -> int:
    """Most prefix-cache hit tokens, over all first admissions, that the workload itself, and what was served `before`
    it, can cause.

    Whole blocks only. The order in which requests are served does not change the sum, as long as a request comes
    after the one it follows. With a small `vocab_size`, different streams may hold equal tokens by chance; where that
    is likely enough to matter, tokens are compared instead of streams.
    """
    shared = shared_prefix_tokens((*before, *workload.requests))
    if vocab_size is not None and _chance_of_equal_blocks(shared, block_size, vocab_size) > _CHANCE:
        return _hit_tokens_by_value(workload, block_size, vocab_size, before)
    shared = shared[len(before) :]
    return int((shared // block_size * block_size).sum())


def explainable_tokens_inside_blocks(
    workload: Workload, block_size: int, vocab_size: int, before: Sequence[Request] = ()
) -> int:
    """The same where the fronts of blocks are reused too: token by token, so that tokens which are equal by chance are
    explained. For a long workload, or one whose outputs are the model's own, the bound is the whole blocks and all but
    one token of a block for each request."""
    everything = (*before, *workload.requests)
    tokens = sum(request.input_tokens + request.output_tokens for request in everything)
    if tokens <= _MOST_TOKENS and all(request.output is not None for request in everything):
        return _hit_tokens_by_value(workload, 1, vocab_size, before)
    whole = explainable_hit_tokens(workload, block_size, vocab_size, before)
    return whole + (block_size - 1) * len(workload.requests)


def shared_prefix_tokens(requests: Sequence[Request]) -> NDArray[np.int64]:
    """`[n]` length of the longest front of each prompt that an earlier prompt, with its forced output, begins with."""
    tree = PrefixTree()
    shared = np.zeros(len(requests), dtype=np.int64)
    for number, request in enumerate(requests):
        shared[number] = tree.match(request.salt, runs(request.prompt))
        tree.insert(request.salt, runs((*request.prompt, *(request.output or ()))))
    return shared


def runs(segments: Iterable[Segment]) -> list[Segment]:
    """Segments with touching pieces of one stream joined: equal tokens by name ⟺ equal runs."""
    joined: list[Segment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if last is not None and last.stream == segment.stream and last.start + last.length == segment.start:
            joined[-1] = Segment(last.stream, last.start, last.length + segment.length)
        elif segment.length:
            joined.append(segment)
    return joined


class PrefixTree:
    """A tree over runs. Nodes are numbers; an edge is a run that some sequence has in full, and `_longest` knows the
    longest run that begins at a node with given stream and position."""

    def __init__(self) -> None:
        self._roots: dict[str | None, int] = {}
        self._longest: dict[tuple[int, int, int], int] = {}
        self._children: dict[tuple[int, int, int, int], int] = {}

    def match(self, salt: str | None, sequence: list[Segment]) -> int:
        """Tokens at the front of the sequence that are in the tree."""
        node = self._roots.get(salt)
        matched = 0
        for run in sequence:
            if node is None:
                break
            matched += min(run.length, self._longest.get((node, run.stream, run.start), 0))
            node = self._children.get((node, run.stream, run.start, run.length))
        return matched

    def insert(self, salt: str | None, sequence: list[Segment]) -> None:
        """Add a sequence."""
        node = self._roots.setdefault(salt, self._new_node())
        for run in sequence:
            key = (node, run.stream, run.start)
            if run.length > self._longest.get(key, 0):
                self._longest[key] = run.length
            node = self._children.setdefault((*key, run.length), self._new_node())

    def _new_node(self) -> int:
        return len(self._children) + len(self._roots)


def _chance_of_equal_blocks(shared: NDArray[np.int64], block_size: int, vocab_size: int) -> float:
    """Upper bound: each request against each earlier one, equal on the tokens that complete the next block."""
    missing = block_size - shared % block_size
    return float((np.arange(len(shared)) * float(vocab_size) ** -missing.astype(np.float64)).sum())


def _hit_tokens_by_value(workload: Workload, block_size: int, vocab_size: int, before: Sequence[Request] = ()) -> int:
    known: dict[tuple[object, bytes], int] = {}
    hits = 0
    for number, request in enumerate((*before, *workload.requests)):
        tokens = token_ids((*request.prompt, *(request.output or ())), workload.seed, vocab_size)
        is_match = True
        parent: object = ("salt", request.salt)
        for end in range(block_size, len(tokens) + 1, block_size):
            block = (parent, tokens[end - block_size : end].tobytes())
            is_match = is_match and block in known and end <= request.input_tokens
            hits += block_size if is_match and number >= len(before) else 0
            parent = known.setdefault(block, len(known))
    return hits
