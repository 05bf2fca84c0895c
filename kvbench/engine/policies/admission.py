"""Who is admitted, and how much room a sequence is promised when it is.

All promise at least all tokens known now. That is the full-prompt gate (E28), and it sets aside what prefills in
flight still have to allocate, so that two half-computed prompts never wait for each other (E29). Whatever a policy
would like to keep free, a request is admitted when nobody runs: otherwise it would wait for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvbench.cache.types import CacheManager, Plan
    from kvbench.engine.decodes import DecodeSet
    from kvbench.engine.schedule import Schedule
    from kvbench.engine.sequence import Sequence
    from kvbench.spec.engine import EngineSettings

LONGEST_ESTIMATE = 4096
"""`adaptive`: a declared output counts at most so many tokens (SGLang's CLIP_MAX_NEW_TOKENS_ESTIMATION)."""


class Running(Protocol):
    """Who runs; the scheduler stands behind it."""

    prefilling: list[Sequence]
    decoding: DecodeSet

    @property
    def num_running(self) -> int: ...


class AdmissionPolicy(Protocol):
    """Who is admitted, and what it is promised."""

    def promise(self, sequence: Sequence) -> int:
        """Length in tokens up to which the sequence may grow without asking again."""
        ...

    def admits(self, sequence: Sequence, plan: Plan, running: Running) -> bool:
        """Whether a plan that fits the pool may be carried out."""
        ...

    def observe(self, step: Schedule, running: Running) -> None:
        """A step has been scheduled."""
        ...


class MaxUtilization:
    """Pack: room for what is known; outputs compete for the rest, and somebody may lose its blocks."""

    def __init__(self, manager: CacheManager, settings: EngineSettings) -> None:
        self.manager = manager  # its sizes change when it is re-blocked
        self.settings = settings

    def promise(self, sequence: Sequence) -> int:
        return sequence.length

    def admits(self, sequence: Sequence, plan: Plan, running: Running) -> bool:
        return True

    def observe(self, step: Schedule, running: Running) -> None:
        """Nothing here depends on what happened."""


class GuaranteedNoEvict(MaxUtilization):
    """Room for the declared longest output, so that nobody is ever preempted."""

    def promise(self, sequence: Sequence) -> int:
        return sequence.job.slots_needed


class Watermark(MaxUtilization):
    """Pack, but leave a share of the pool for the outputs of those who run: after an admission at least
    ⌊watermark · blocks⌋ blocks must be left (cached ones that nobody owns count as left)."""

    def admits(self, sequence: Sequence, plan: Plan, running: Running) -> bool:
        kept = int(self.settings.watermark * self.manager.settings.num_blocks)
        return plan.spare_blocks >= kept or running.num_running == 0


class Adaptive(MaxUtilization):
    """Expect of those who run a share of their declared outputs, and learn the share: SGLang's new-token ratio.

    With r(s) = min(declared output not yet produced, 4096), a newcomer is admitted when, after its prompt, the pool has
    room for share · Σ r(s) over all who run, and its own r. The share begins at `adaptive_initial`, falls in every step
    that decodes by (initial − floor) / decay_steps down to `adaptive_floor`, and after a preemption it rises to
    (Σ produced + ahead · n) / (Σ declared + 1) of the n sequences that still run, if that is more; it is never above 1.
    When nobody runs it begins again.
    """

    def __init__(self, manager: CacheManager, settings: EngineSettings) -> None:
        super().__init__(manager, settings)
        self.share = settings.adaptive_initial
        self._decay = (settings.adaptive_initial - settings.adaptive_floor) / settings.adaptive_decay_steps

    def admits(self, sequence: Sequence, plan: Plan, running: Running) -> bool:
        if running.num_running == 0:
            self.share = self.settings.adaptive_initial
            return True
        expected = self.share * self._left(running) + _left(sequence)
        sizes = self.manager.settings
        return plan.spare_blocks >= len(sizes.groups) * -(-expected // sizes.block_size)

    def observe(self, step: Schedule, running: Running) -> None:
        if step.preemptions:
            self.share = max(self.share, min(1.0, self._observed(running)))
        elif step.num_decodes:
            self.share = max(self.settings.adaptive_floor, self.share - self._decay)

    def _left(self, running: Running) -> int:
        decoding = running.decoding.tokens_left().clip(max=LONGEST_ESTIMATE)
        return int(decoding.sum()) + sum(map(_left, running.prefilling))

    def _observed(self, running: Running) -> float:
        sequences = [*running.prefilling, *running.decoding.sequences]
        produced = sum(sequence.output_tokens for sequence in sequences)
        declared = sum(sequence.job.max_tokens for sequence in sequences)
        return (produced + self.settings.adaptive_ahead * len(sequences)) / (declared + 1)


def _left(sequence: Sequence) -> int:
    """Of all outputs that it stands for."""
    return sequence.seats * min(sequence.job.max_tokens - sequence.output_tokens, LONGEST_ESTIMATE)
