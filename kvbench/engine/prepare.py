"""A schedule → the arrays that the model reads, without a loop over decoding sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.engine.batch import StepBatch
from kvbench.engine.speculation.drafts import verification_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.types import CacheManager, Int32s, Int64s
    from kvbench.engine.schedule import Schedule


def prepare_batch(step: Schedule, manager: CacheManager) -> StepBatch:
    """The step's tokens, where their K and V go, and the tables to read the past through. With drafts every token of a
    decoding sequence is a row of its own."""
    n, rows, starts, counts, decode_tokens = step.num_decodes, step.rows, step.starts, step.counts, step.decode_tokens
    if step.drafts is not None:
        verified = verification_rows(step, step.drafts)
        rows, starts = np.concatenate([verified.rows, rows[n:]]), np.concatenate([verified.starts, starts[n:]])
        counts = np.concatenate([np.ones(len(verified.rows), np.int32), counts[n:]])
        decode_tokens = verified.tokens
    prompts = [piece.sequence.content.tokens[piece.start : piece.end] for piece in step.pieces]
    tokens = np.concatenate([decode_tokens, *prompts]).astype(np.int64, copy=False)
    samples = np.ones(len(rows), np.int64)
    if step.pieces:
        last = [len(piece.sequence.samplers) if piece.is_last else 0 for piece in step.pieces]
        samples[len(decode_tokens) :] = last
    return _assemble(manager, rows, starts, counts, tokens, len(decode_tokens), samples)


def decode_batch(
    manager: CacheManager, rows: Int32s, starts: Int32s, tokens: Int64s, is_sampled: NDArray[np.bool_]
) -> StepBatch:
    """One token of each row, at `starts`; logits of those that are sampled from."""
    ones = np.ones(len(rows), np.int32)
    return _assemble(manager, rows, starts, ones, tokens, len(rows), is_sampled.astype(np.int64))


def _assemble(
    manager: CacheManager,
    rows: Int32s,
    starts: Int32s,
    counts: Int32s,
    tokens: Int64s,
    num_decodes: int,
    samples: Int64s,
) -> StepBatch:
    """`samples` `[S]`: how often each sequence's last row is sampled from."""
    query_starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=query_starts[1:])
    context_lengths = starts + counts
    width = -(-int(context_lengths.max(initial=0)) // manager.settings.block_size)
    groups = range(len(manager.settings.groups))
    return StepBatch(
        token_ids=tokens,
        positions=np.arange(query_starts[-1], dtype=np.int64) + np.repeat(starts - query_starts[:-1], counts),
        slots=_stack([manager.slots(rows, starts, counts, group) for group in groups]),
        block_tables=_stack([manager.table(rows, width, group) for group in groups]),
        query_starts=query_starts,
        context_lengths=context_lengths,
        num_decodes=num_decodes,
        logit_rows=np.repeat(query_starts[1:] - 1, samples).astype(np.int64),
    )


def _stack(groups: list[NDArray[Any]]) -> NDArray[Any]:
    """[G, …]; a single group is not copied."""
    return groups[0][np.newaxis] if len(groups) == 1 else np.stack(groups)
