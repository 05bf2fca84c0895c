"""A sequence loses its blocks: who, and whether its KV is computed again or waits on the swap area.

Only ever in the middle of a step that is being filled, when somebody who decodes found no block.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from kvbench.engine.policies.victims import spare_restarted
from kvbench.engine.sequence import Mark

if TYPE_CHECKING:
    from kvbench.engine.scheduler import Scheduler
    from kvbench.engine.sequence import Sequence


class Preempting:
    """Moves that make room, over one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def make_room(self) -> None:
        """A decode found no block: finished members of a static batch give way first, then the victim."""
        scheduler = self._scheduler
        if scheduler.held:
            scheduler.free_held()
            return
        prefilling, decoding = scheduler.prefilling, scheduler.decoding.sequences
        if scheduler.branching.searches:
            prefilling, decoding = spare_restarted(prefilling, decoding)
        victim = scheduler.victims.choose(prefilling, decoding)
        if scheduler.num_running == len(victim.together):
            self._fail(victim)
        else:
            self.preempt(victim)

    def preempt(self, victim: Sequence) -> None:
        """The blocks go, prompt and generated tokens wait at their old place in line (E41), computed KV with them when
        it is swapped. Sequences of one group are always recomputed: what they share is not copied apart."""
        scheduler = self._scheduler
        is_swapped = victim.group is None and self._swap_out(victim)
        waiting = victim if is_swapped else self.requeue(victim)
        waiting.preemptions += 1
        waiting.marks.append(Mark("swap" if is_swapped else "recompute", scheduler.step.now_s))
        scheduler.step.preemptions += 1

    def _swap_out(self, victim: Sequence) -> bool:
        """Whether the victim now waits on the swap area."""
        scheduler = self._scheduler
        victim.peak_blocks = max(victim.peak_blocks, scheduler.manager.peak_blocks(victim.table_row))
        blocks = -(-victim.computed // scheduler.manager.settings.block_size) * len(scheduler.manager.settings.groups)
        if not blocks or not scheduler.preemption.prefers_swap(victim.computed, blocks):
            return False
        victim.swapped = scheduler.manager.swap_out(victim.table_row)
        if victim.swapped is None:
            return False
        scheduler.leave(victim)
        victim.stand_up()
        insort(scheduler.swapped, victim, key=lambda other: other.order)
        return True

    def requeue(self, sequence: Sequence) -> Sequence:
        """All rows of the request are given up; the sequence that now waits in line for it."""
        scheduler = self._scheduler
        together = sequence.together
        for one in together:
            scheduler.leave(one)
            scheduler.stand_up(one)
        if sequence.group is not None and sequence.group.search is not None:
            scheduler.branching.preempted(sequence.group)
        scheduler.waiting.push(together[-1])
        return together[-1]

    def _fail(self, sequence: Sequence) -> None:
        """Alone and still out of blocks: preempting itself would bring it back here for ever (E34)."""
        scheduler = self._scheduler
        for member in sequence.together:
            scheduler.leave(member)
            member.error = f"no free block at token {member.length}, and no other sequence to preempt"
            member.finish_reason = "error"
            scheduler.stand_up(member)
            scheduler.step.failed.append(member)
