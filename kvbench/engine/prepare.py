"""A schedule → the arrays that the model reads, without a loop over decoding sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.engine.batch import StepBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.cache.types import CacheManager
    from kvbench.engine.schedule import Schedule


def prepare_batch(step: Schedule, manager: CacheManager) -> StepBatch:
    """The step's tokens, where their K and V go, and the tables to read the past through."""
    query_starts = np.zeros(len(step.rows) + 1, np.int32)
    np.cumsum(step.counts, out=query_starts[1:])
    context_lengths = step.ends
    width = -(-int(context_lengths.max(initial=0)) // manager.settings.block_size)
    groups = range(len(manager.settings.groups))
    return StepBatch(
        token_ids=_token_ids(step),
        positions=_positions(step, query_starts),
        slots=_stack([manager.slots(step.rows, step.starts, step.counts, group) for group in groups]),
        block_tables=_stack([manager.table(step.rows, width, group) for group in groups]),
        query_starts=query_starts,
        context_lengths=context_lengths,
        num_decodes=step.num_decodes,
        logit_rows=_logit_rows(step, query_starts),
    )


def _stack(groups: list[NDArray[Any]]) -> NDArray[Any]:
    """[G, …]; a single group is not copied."""
    return groups[0][np.newaxis] if len(groups) == 1 else np.stack(groups)


def _token_ids(step: Schedule) -> NDArray[np.int64]:
    prompts = [piece.sequence.content.tokens[piece.start : piece.end] for piece in step.pieces]
    return np.concatenate([step.decode_tokens, *prompts]).astype(np.int64, copy=False)


def _positions(step: Schedule, query_starts: NDArray[np.int32]) -> NDArray[np.int64]:
    offsets = np.repeat(step.starts - query_starts[:-1], step.counts)
    return np.arange(query_starts[-1], dtype=np.int64) + offsets


def _logit_rows(step: Schedule, query_starts: NDArray[np.int32]) -> NDArray[np.int64]:
    """The decodes' only row each, then the last row of every piece that ends its prefill, once for each sampler."""
    samples = np.ones(len(step.rows), np.int64)
    samples[step.num_decodes :] = [len(piece.sequence.samplers) if piece.is_last else 0 for piece in step.pieces]
    return np.repeat(query_starts[1:] - 1, samples).astype(np.int64)
