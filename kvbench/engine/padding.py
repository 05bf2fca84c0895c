"""Decode steps at padded batch sizes, as CUDA graphs need them: the sizes, and a batch filled up. Torch-free.

Rows that fill up a batch have context length 0 and slot −1: they see nothing (their attention is zero, never NaN) and
are written nowhere.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.batch import PAD_SLOT, StepBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.geometry.model import ModelGeometry
    from kvbench.spec.engine import EngineSettings

LARGEST_SIZE = 512
"""Larger decode batches are not captured: a launch costs them little."""
_STEP, _WIDE_STEP, _WIDE_FROM = 8, 16, 256


def batch_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then every 8th to 256 and every 16th to 512, as far as `most` rows go; the last one is `most` itself
    where it is no larger."""
    top = min(most, LARGEST_SIZE)
    sizes = [1, 2, 4, *range(_STEP, _WIDE_FROM, _STEP), *range(_WIDE_FROM, LARGEST_SIZE + 1, _WIDE_STEP)]
    return (*(size for size in sizes if size < top), top)


def size_for(rows: int, sizes: tuple[int, ...]) -> int | None:
    """The least of the sizes that holds so many rows; None for no rows, and for more than the largest."""
    at = bisect_left(sizes, rows)
    return sizes[at] if rows > 0 and at < len(sizes) else None


def is_decode(batch: StepBatch) -> bool:
    """Whether every sequence has one token and takes the decode kernel."""
    return batch.num_decodes == batch.num_sequences == batch.num_tokens


def padded(batch: StepBatch, size: int) -> StepBatch:
    """A decode batch with rows added up to `size`; logits of all rows are wanted."""
    more = size - batch.num_sequences
    return StepBatch(
        token_ids=_extended(batch.token_ids, more, 0),
        positions=_extended(batch.positions, more, 0),
        slots=_extended(batch.slots, more, PAD_SLOT),
        block_tables=np.pad(batch.block_tables, ((0, 0), (0, more), (0, 0))),
        query_starts=np.arange(size + 1, dtype=np.int32),
        context_lengths=np.pad(batch.context_lengths, (0, more)),
        num_decodes=size,
        logit_rows=np.arange(size, dtype=np.int64),
    )


def why_no_graphs(settings: EngineSettings, geometry: ModelGeometry, kind: str) -> str | None:
    """Why decode steps cannot be captured; None when they can, or nobody asks."""
    if not settings.cuda_graphs:
        return None
    if kind != "cuda":
        return f"cuda_graphs needs a CUDA device, and this is {kind}"
    if settings.attention not in ("auto", "triton"):
        return f'cuda_graphs captures the triton backend, and attention = "{settings.attention}"'
    if geometry.experts is not None:
        return f"cuda_graphs: {geometry.name} is a mixture of experts, whose router is read on the host in every step"
    return None


def _extended(values: NDArray[np.int64], more: int, fill: int) -> NDArray[np.int64]:
    """Longer in the last axis."""
    return np.pad(values, ((0, 0),) * (values.ndim - 1) + ((0, more),), constant_values=fill)
