"""Prefixes that are being computed right now: whose blocks a newcomer could hit if it waited a little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvbench.engine.sequence import Sequence


def computed_by(
    sequence: Sequence, cached_tokens: int, prefilling: list[Sequence], block_size: int
) -> tuple[Sequence, int] | None:
    """The running prefill that will publish most blocks beyond the `cached_tokens` that are there, and how many tokens
    it has to compute for that; None when none of them computes a block that the sequence could use."""
    leader, most = None, cached_tokens
    for other in prefilling:
        shared = shared_tokens(sequence, other, block_size)
        if shared > most and other.computed // block_size * block_size < shared:
            leader, most = other, shared
    return None if leader is None else (leader, most)


def shared_tokens(sequence: Sequence, other: Sequence, block_size: int) -> int:
    """Tokens in whole blocks with which both begin and which `sequence` could find in a prefix cache: of one salt,
    and never its last token."""
    if sequence.job.salt != other.job.salt:
        return 0
    ours, theirs = sequence.content.tokens, other.content.tokens
    limit = min(len(ours) - 1, len(theirs)) // block_size * block_size
    if not np.array_equal(ours[: min(block_size, limit)], theirs[: min(block_size, limit)]):
        return 0
    different = ours[:limit] != theirs[:limit]
    end = int(np.argmax(different)) if different.any() else limit
    return end // block_size * block_size
