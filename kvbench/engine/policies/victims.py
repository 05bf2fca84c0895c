"""Who loses its blocks when a decode finds none; of equals always the last arrived.

Whatever is chosen, everybody is served: a preemption keeps the generated tokens, and a step either produces a token or
preempts nobody after its decodes are settled (docs/engine.md has the argument).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvbench.cache.types import CacheManager
    from kvbench.engine.sequence import Sequence
    from kvbench.spec.engine import EngineSettings


class VictimPolicy(Protocol):
    """Who loses its blocks."""

    def choose(self, prefilling: list[Sequence], decoding: list[Sequence]) -> Sequence:
        """One of the running sequences, of which there is at least one; both lists are by arrival."""
        ...


class LastArrived:
    """The latest scheduled arrival: the oldest work is kept."""

    def __init__(self, manager: CacheManager, settings: EngineSettings) -> None:
        self._manager = manager
        self._settings = settings

    def choose(self, prefilling: list[Sequence], decoding: list[Sequence]) -> Sequence:
        return max([*prefilling[-1:], *decoding[-1:]], key=lambda sequence: sequence.order)


class FirstArrived(LastArrived):
    """First in, first out."""

    def choose(self, prefilling: list[Sequence], decoding: list[Sequence]) -> Sequence:
        return min([*prefilling[:1], *decoding[:1]], key=lambda sequence: sequence.order)


class FewestTokens(LastArrived):
    """The one that is cheapest to compute again: fewest tokens with K and V."""

    def choose(self, prefilling: list[Sequence], decoding: list[Sequence]) -> Sequence:
        return max([*prefilling, *decoding], key=lambda sequence: (-sequence.computed, sequence.order))


class ByPriority(LastArrived):
    """The lowest priority."""

    def choose(self, prefilling: list[Sequence], decoding: list[Sequence]) -> Sequence:
        return max([*prefilling, *decoding], key=lambda sequence: (-sequence.job.priority, sequence.order))


def spare_restarted(prefilling: list[Sequence], decoding: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """Those who may be victims. A beam search loses its output with its blocks, so two of them could take turns for
    ever: the first arrived of those that began again is spared as long as anybody else runs."""
    restarted = [s for s in (*prefilling, *decoding) if s.group is not None and s.group.search and s.preemptions]
    first = min(restarted, key=lambda sequence: sequence.order, default=None)
    if first is None:
        return prefilling, decoding
    rest = [[s for s in some if s.request_id != first.request_id] for some in (prefilling, decoding)]
    return (rest[0], rest[1]) if any(rest) else (prefilling, decoding)


class LeastReferenced(LastArrived):
    """The one whose blocks others count on least: least R(s) = mean over its blocks of other owners and lifetime hits.

    What others count on is not freed by a preemption anyway, and what was hit often may be hit again."""

    def choose(self, prefilling: list[Sequence], decoding: list[Sequence]) -> Sequence:
        return max([*prefilling, *decoding], key=lambda sequence: (-self._references(sequence), sequence.order))

    def _references(self, sequence: Sequence) -> float:
        return self._manager.references(sequence.table_row)


class LeastReferencedAndOldest(LeastReferenced):
    """The largest α · (R_max − R(s)) / R_max + β · a(s) / (n − 1) of the n that run, R as above and a(s) how many of
    them arrived after s: between `lrc` (β = 0) and `first-arrived` (α = 0). A term whose divisor is 0 is 0."""

    def choose(self, prefilling: list[Sequence], decoding: list[Sequence]) -> Sequence:
        running = sorted([*prefilling, *decoding], key=lambda sequence: sequence.order)
        references = [self._references(sequence) for sequence in running]
        most, last = max(references) or 1.0, len(running) - 1
        alpha, beta = self._settings.lrc_alpha, self._settings.lrc_beta
        scores = [
            alpha * (max(references) - found) / most + beta * (last - at) / max(last, 1)
            for at, found in enumerate(references)
        ]
        return max(zip(scores, range(len(running)), running, strict=True), key=lambda entry: entry[:2])[2]
