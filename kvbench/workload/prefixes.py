"""What stands in front of a session's own tokens: system prompt, few-shot examples, retrieved documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError
from kvbench.workload.draws import uniforms
from kvbench.workload.lengths import pick
from kvbench.workload.request import Segment
from kvbench.workload.tokens import document_stream, prefix_stream

if TYPE_CHECKING:
    from kvbench.spec.workload import Documents, SharedPrefixes, WorkloadSettings

_MAX_GROUPS = 10_000_000


def draw_groups(prefix: SharedPrefixes, seed: int, count: int) -> NDArray[np.int64] | None:
    """`[count]` group numbers, group g with weight (g + 1)^−zipf; None when nothing is shared."""
    if prefix.groups == 0:
        return None
    if prefix.groups > _MAX_GROUPS:
        raise UsageError(f"prefix.groups = {prefix.groups:,} is more than {_MAX_GROUPS:,}", hint="make it smaller")
    ranks = np.arange(1, prefix.groups + 1, dtype=np.float64)
    return pick(ranks**-prefix.zipf, uniforms(seed, "prefix", count))


def fronts(settings: WorkloadSettings, count: int) -> list[tuple[Segment, ...]]:
    """For each of `count` sessions, the pieces that its first prompt begins with.

    A group's examples follow its system prompt in the group's own stream, so whoever takes fewer of them has a prefix
    of whoever takes more.
    """
    prefix, seed = settings.prefix, settings.seed
    groups = draw_groups(prefix, seed, count)
    found: list[tuple[Segment, ...]] = [()] * count
    if groups is not None:
        shots = np.floor(uniforms(seed, "shots", count) * (prefix.shots + 1)).astype(np.int64)
        lengths = (prefix.tokens + shots * prefix.shot_tokens).tolist()
        found = [(Segment(prefix_stream(g), 0, n),) for g, n in zip(groups.tolist(), lengths, strict=True)]
    if settings.documents.corpus:
        quoted = _draw_documents(settings.documents, seed, count)
        found = [(*front, *more) for front, more in zip(found, quoted, strict=True)]
    return found


def draw_tenants(prefix: SharedPrefixes, seed: int, count: int) -> list[str | None]:
    """The salt of each of `count` sessions; every tenant is as likely as the others."""
    if prefix.tenants == 0:
        return [None] * count
    tenants = np.floor(uniforms(seed, "tenant", count) * prefix.tenants).astype(np.int64)
    return [f"tenant-{tenant}" for tenant in tenants.tolist()]


def _draw_documents(documents: Documents, seed: int, count: int) -> Iterator[tuple[Segment, ...]]:
    """`per_request` draws for each session by popularity; a document that is drawn twice is quoted once."""
    if documents.corpus > _MAX_GROUPS:
        raise UsageError(
            f"documents.corpus = {documents.corpus:,} is more than {_MAX_GROUPS:,}", hint="make it smaller"
        )
    ranks = np.arange(1, documents.corpus + 1, dtype=np.float64)
    drawn = pick(ranks**-documents.zipf, uniforms(seed, "document", count * documents.per_request))
    for session in drawn.reshape(count, documents.per_request).tolist():
        yield tuple(Segment(document_stream(number), 0, documents.tokens) for number in dict.fromkeys(session))
