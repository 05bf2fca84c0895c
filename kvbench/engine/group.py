"""One request as several sequences: n samples of a prompt, or the beams of a search.

The prompt is prefilled once, by the root. With its first token the root is joined by the others, forked from its row;
until then it stands for all of them and takes their seats. Afterwards samples go their own ways: each is preempted,
admitted again and finished by itself. Beams stay together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.engine.beams import BeamSearch
from kvbench.engine.sequence import Sequence

if TYPE_CHECKING:
    from kvbench.engine.job import Job


@dataclass(slots=True, eq=False)
class Group:
    """`members` in the order of their samples; the last one is the root, so that it writes last into what the fork
    shares, and in place."""

    members: list[Sequence]
    search: BeamSearch | None = None
    is_spread: bool = False
    """Whether the members have rows of their own."""
    peak_blocks: int = 0
    """Most different blocks held at once."""
    error: str | None = None

    @property
    def root(self) -> Sequence:
        return self.members[-1]

    @property
    def active(self) -> list[Sequence]:
        """The sequences that exist at the moment."""
        return self.members if self.is_spread else [self.root]

    @property
    def width(self) -> int:
        return len(self.members)

    @property
    def is_over(self) -> bool:
        return all(member.finish_reason is not None for member in self.active)

    @property
    def seats(self) -> int:
        """Seats that an active member takes."""
        return 1 if self.is_spread else self.width

    def outputs(self) -> list[list[int]]:
        """The samples' tokens, or the search's hypotheses, best first."""
        if self.search is not None:
            return [found.tokens for found in self.search.hypotheses]
        return [member.output for member in self.active]

    def begin_again(self) -> None:
        """Beams that lost their blocks search again from the prompt: a search has one right result."""
        for member in self.members:
            if member is not self.root:
                member.forget_output()
        self.root.forget_output()
        self.is_spread = False
        if self.search is not None:
            self.search.restart()


def sequence_of(job: Job) -> Sequence:
    """The sequence that is queued for this job; the root of a group where it asks for several."""
    if job.width == 1:
        return Sequence(job, job.sample)
    members = [Sequence(job, job.sample + at) for at in range(job.width)]
    group = Group(members)
    if job.beams is not None:
        group.search = BeamSearch(job.beams, job.max_tokens, job.stop_tokens)
    for member in members:
        member.group = group
    return group.root
