"""Re-blocking a live engine: the books first, then what lies in the blocks, and what it cost. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kvbench.cache.reblock import commit_reblock, plan_reblock
from kvbench.errors import CannotRunError

if TYPE_CHECKING:
    from kvbench.cache.reblock import ReblockPlan
    from kvbench.cache.types import CacheManager
    from kvbench.engine.clock import Clock


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """What the memory of a runner holds at another block size."""

    num_blocks: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Reblocked:
    """Bytes copied into new blocks, and the most that lay in a staging buffer meanwhile."""

    moved_bytes: int
    staging_bytes: int


@runtime_checkable
class Reblocks(Protocol):
    """A runner whose blocks can be cut anew, in the memory that they have."""

    def sizes_at(self, block_size: int) -> BlockSizes:
        """What the memory holds in blocks of this size; reads only."""
        ...

    def reblock(self, plan: ReblockPlan) -> Reblocked:
        """Carry out `plan.moves` and go on with the new blocks."""
        ...


@dataclass(frozen=True, slots=True)
class ReblockRecord:
    """One re-blocking. `step` is the first step with the new size, `seconds` from planning to the last copied byte.
    `kept_tokens` and `dropped_tokens` of contents that could be looked up before; `refusals` are attempts before this
    one that found no room."""

    step: int
    old_block_size: int
    block_size: int
    num_blocks: int
    block_bytes: int
    t_s: float
    seconds: float
    moved_bytes: int
    staging_bytes: int
    kept_tokens: int
    dropped_tokens: int
    refusals: int = 0


class NoRoomError(CannotRunError):
    """Rows and promises do not fit into the memory at the new block size; nothing has changed."""


def reblock(
    manager: CacheManager, runner: object, block_size: int, clock: Clock, step: int, refusals: int
) -> ReblockRecord:
    """Go on with blocks of `block_size` tokens in the same memory.

    `NoRoomError` when what runs does not fit then, `UsageError` or `CannotRunError` for what can never be; in all these
    cases nothing has changed.
    """
    if not isinstance(runner, Reblocks):
        raise CannotRunError("this engine cannot be re-blocked", hint='leave reblock_to out, or use clock = "wall"')
    started, old = clock.now(), manager.settings.block_size
    sizes = runner.sizes_at(block_size)
    plan = plan_reblock(manager, block_size, sizes.num_blocks)
    if not plan.fits:
        raise NoRoomError(
            f"{sizes.num_blocks} blocks of {block_size} tokens cannot hold what runs now: {plan.shortfall_blocks} are "
            "missing",
            hint="try again when sequences have finished, or raise kv_memory",
        )
    commit_reblock(manager, plan)
    done = runner.reblock(plan)
    return ReblockRecord(
        step=step,
        old_block_size=old,
        block_size=block_size,
        num_blocks=sizes.num_blocks,
        block_bytes=sizes.block_bytes,
        t_s=started,
        seconds=clock.now() - started,
        moved_bytes=done.moved_bytes,
        staging_bytes=done.staging_bytes,
        kept_tokens=plan.kept_tokens,
        dropped_tokens=plan.dropped_tokens,
        refusals=refusals,
    )
