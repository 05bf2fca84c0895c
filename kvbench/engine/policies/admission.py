"""How much room a sequence is promised when it is admitted.

Both promise at least all tokens known now. That is the full-prompt gate (E28), and it sets aside what prefills in
flight still have to allocate, so that two half-computed prompts never wait for each other (E29).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvbench.engine.sequence import Sequence


class AdmissionPolicy(Protocol):
    def promise(self, sequence: Sequence) -> int:
        """Length in tokens up to which the sequence may grow without asking again."""
        ...


class MaxUtilization:
    """Pack: room for what is known; outputs compete for the rest, and the last arrived may lose its blocks."""

    def promise(self, sequence: Sequence) -> int:
        return sequence.length


class GuaranteedNoEvict:
    """Room for the declared longest output, so that nobody is ever preempted."""

    def promise(self, sequence: Sequence) -> int:
        return sequence.job.slots_needed
