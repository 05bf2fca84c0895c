"""What the scheduler does for requests of several sequences: seats, forks, beams dealt anew, a search preempted whole.

Nothing here runs for a request of one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.forking import request_blocks
from kvbench.cache.windows import most_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kvbench.cache.types import Int64s
    from kvbench.engine.beams import BeamSearch
    from kvbench.engine.group import Group
    from kvbench.engine.job import Job
    from kvbench.engine.schedule import Schedule
    from kvbench.engine.scheduler import Scheduler
    from kvbench.engine.sequence import Sequence


@dataclass(slots=True)
class BeamStep:
    """One search in one step: its logits are rows [first, first + rows) of those that are sampled from."""

    group: Group
    search: BeamSearch
    first: int
    rows: int
    tokens: list[int] = field(default_factory=list)
    """First tokens of the beams, in the step that computes the prompt"""


class Branching:
    """Moves for groups, over one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.reserved_seats = 0
        """Seats that roots hold for members who are not there yet"""
        self.searches = 0
        """Beam searches that wait or run"""

    def added(self, group: Group) -> None:
        self.searches += group.search is not None

    def ended(self, group: Group) -> None:
        self.searches -= group.search is not None

    def reason_to_reject(self, job: Job) -> str | None:
        """Why so many sequences can never be served; samples that were admitted one by one could be, a search or a
        promise of room for all could not."""
        scheduler, sizes = self._scheduler, self._scheduler.manager.settings
        if job.width > scheduler.max_sequences:
            return f"{job.width} sequences of one request exceed max_sequences, which is {scheduler.max_sequences}"
        if sizes.allocator != "paged":
            return f"{job.width} sequences of one request share blocks, which a {sizes.allocator} allocator cannot"
        if job.beams is not None and scheduler.speculation is not None:
            return "a beam search keeps several continuations, and speculation drafts one: no drafts go with beams"
        if job.beams is None and scheduler.settings.admission != "guaranteed-no-evict":
            return None
        most = request_blocks(sizes, job.width, len(job.prompt), job.slots_needed)
        if most <= sizes.num_blocks:
            return None
        return f"{job.width} sequences of one request may hold {most} blocks, the pool has {sizes.num_blocks}"

    def fork_blocks(self, sequence: Sequence, promise: int) -> int:
        """Blocks to promise to a root for those who will be forked from it; no more than the pool has."""
        group, books = sequence.group, self._scheduler.manager
        if group is None or group.is_spread or sequence.job.max_tokens == 1:
            return 0
        wanted = (group.width - 1) * books.fork_blocks(sequence.length, _first_growth(sequence, promise))
        own = most_blocks(books.settings, max(promise, sequence.length))
        return max(0, min(wanted, books.settings.num_blocks - own))

    def whole_groups(self, limit: int | None) -> int | None:
        """The largest number of decoding sequences up to `limit` that cuts no search in two; a search that alone is
        larger runs whole."""
        decoding = self._scheduler.decoding.sequences
        if limit is None or limit >= len(decoding) or limit == 0:
            return limit
        return self.whole_groups_within(limit) or len(decoding[0].together)

    def whole_groups_within(self, limit: int) -> int:
        """The same, 0 when a search comes first and is larger."""
        decoding = self._scheduler.decoding.sequences
        group = decoding[limit].group if limit < len(decoding) else None
        return limit if group is None or group.search is None else decoding.index(group.members[0])

    def note_beams(self, step: Schedule) -> None:
        """Which searches advance in this step, and where their logits are."""
        at, step.beams = 0, []
        sampling = step.sampling_sequences
        while at < len(sampling):
            group = sampling[at].group
            rows = 1
            if group is not None and group.search is not None:
                rows = len(group.active)
                step.beams.append(BeamStep(group, group.search, at, rows))
            at += rows

    def advance_beams(self, step: Schedule, sampled: NDArray[np.int64]) -> None:
        """Deal the beams of every search anew and put their next tokens into `sampled`; those of a search that has
        only its root so far are kept for `first_tokens`."""
        for beams, (ids, log_probabilities) in zip(step.beams, step.candidates, strict=True):
            parents, tokens = beams.search.advance([m.output for m in beams.group.active], ids, log_probabilities)
            if beams.search.is_over:
                continue
            if beams.group.is_spread:
                self._deal(beams.group, parents)
                sampled[beams.first : beams.first + beams.rows] = tokens
            else:
                beams.tokens = tokens.tolist()

    def first_tokens(self, step: Schedule, sampled: Iterable[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Every sampler with its first token; roots are joined by their members here."""
        found: list[tuple[Sequence, int]] = []
        dealt = {id(beams.group): beams.tokens for beams in step.beams if beams.tokens}
        for sequence, token in sampled:
            group = sequence.group
            tokens = dealt.get(id(group))
            if group is not None and not group.is_spread and (group.search is None or tokens):
                self._spread(group)
            found += [(sequence, token)] if group is None or not tokens else zip(group.members, tokens, strict=True)
        return found

    def take_over(self, step: Schedule) -> list[Sequence]:
        """Sequences of searches that are over and whose beams have not come to their longest output."""
        found = []
        for beams in step.beams:
            if beams.search.is_over:
                found += [member for member in beams.group.active if member.finish_reason is None]
                reason = "stop" if beams.search.best.tokens[-1] in beams.group.root.job.stop_tokens else "length"
                for member in beams.group.active:
                    member.finish_reason = reason
        for sequence in found:
            self._scheduler.decoding.remove(sequence)
        return found

    def preempted(self, group: Group) -> None:
        """A search without blocks goes back to its prompt; its beams are computed again as well."""
        root = group.root
        root.recomputed_tokens += group.width * max(0, root.length - 1 - len(root.job.prompt))
        group.begin_again()

    def _spread(self, group: Group) -> None:
        """The prompt is computed: the others get rows that share its blocks, and the seats that the root kept."""
        scheduler, root = self._scheduler, group.root
        promise = _first_growth(root, scheduler.admission.promise(root))
        for member in group.members[:-1]:
            member.content = root.content.copy()
            member.join(scheduler.manager.fork(root.table_row, member.content, promise), root)
            scheduler.prefilling.append(member)
        self.reserved_seats -= group.width - 1
        group.is_spread = True

    def _deal(self, group: Group, parents: Int64s) -> None:
        """Member i goes on from where member `parents[i]` is; a parent that lives on keeps its own place."""
        members = group.members
        found = [members[parent].content for parent in parents.tolist()]
        contents = [found[at] if parents[at] == at else found[at].copy() for at in range(len(members))]
        rows = np.array([member.table_row for member in members], np.int32)
        self._scheduler.manager.reorder(rows, parents.astype(np.int32), contents)
        for member, content in zip(members, contents, strict=True):
            member.content = content

    def note_blocks(self, group: Group) -> None:
        """Keep the most different blocks that the group has held; called before a member leaves."""
        books = self._scheduler.manager
        rows = [member.row for member in group.active if member.row is not None]
        width = -(-books.settings.max_context // books.settings.block_size)
        blocks = 0
        for pieces in range(len(books.settings.groups)):
            table = books.table(np.array(rows, np.int32), width, pieces)
            blocks += len(np.unique(table[table > 0]))
        group.peak_blocks = max(group.peak_blocks, blocks)


def _first_growth(root: Sequence, promise: int) -> int:
    """A fork is promised at least the place of its own first token."""
    return max(promise, root.length + 1)
