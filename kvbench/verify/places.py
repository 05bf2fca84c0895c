"""The oracle's memory: device, host, disk and swap area, and copies between them that take their time and fail."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvbench.cache.transfers import COPY_KINDS, MUST_BE_DONE, Transfers
from kvbench.engine.copies import Outcome
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping

POISON = 0xDEAD
"""What no position's number is: memory that was never written, or must not be read."""

COPY_FAULTS = ("late", "failed", "torn", "corrupted")
"""What can happen to a copy. All but `late` are reported as failed, as checksums and drivers report them."""

_PLACES = {"source": "device", "destination": "device"}


@dataclass(slots=True)
class Planes:
    """Two numbers per slot `[blocks, block_size]`: the position's number of chain.py, and its token. A copy that
    forgets a part of a block shows."""

    links: NDArray[np.uint64]
    tokens: NDArray[np.int64]

    @classmethod
    def of(cls, blocks: int, block_size: int) -> Planes:
        shape = (blocks, block_size)
        return cls(np.full(shape, POISON, np.uint64), np.full(shape, -1, np.int64))

    def wipe(self) -> None:
        self.links[:] = POISON
        self.tokens[:] = -1


class Block(NamedTuple):
    """The contents of one block, taken out of the planes."""

    links: NDArray[np.uint64]
    tokens: NDArray[np.int64]


@dataclass(slots=True)
class UnderWay:
    """A copy that has begun. `contents` is None while its source is itself still being written."""

    kind: str
    source: int
    destination: int
    ends: int
    fault: str | None
    contents: Block | None


@dataclass
class Places:
    """`sizes` are blocks by place. Copies that need not be done at once end up to `lag` polls later, in any order; the
    next copies suffer what stands in `faults`."""

    sizes: Mapping[str, int]
    block_size: int
    lag: int = 0
    seed: int = 0
    faults: deque[str] = field(default_factory=deque)
    polls: int = 0

    def __post_init__(self) -> None:
        self.planes = {place: Planes.of(blocks, self.block_size) for place, blocks in self.sizes.items()}
        self._random = random.Random(self.seed)
        self._under_way: list[UnderWay] = []
        self._keys: dict[int, bytes] = {}
        """Disk block → digest of what its file must hold"""

    def start(self, transfers: Transfers) -> Outcome:
        self._check_keys(transfers)
        outcome = Outcome()
        for kind in COPY_KINDS:
            for source, destination in zip(*transfers.pairs(kind), strict=True):
                self._begin(kind, source, destination, outcome)
        return outcome

    def poll(self, *, wait: bool = False) -> Outcome:
        self.polls += 1
        due = [copy for copy in self._under_way if copy.ends <= self.polls]
        if wait and not due and self._under_way:
            due = [min(self._under_way, key=lambda copy: copy.ends)]
        outcome = Outcome()
        for copy in due:
            self._under_way.remove(copy)
            self._end(copy, outcome)
        return outcome

    def wipe(self) -> None:
        self._under_way.clear()
        for planes in self.planes.values():
            planes.wipe()

    def _begin(self, kind: str, source: int, destination: int, outcome: Outcome) -> None:
        here, there = self._ends_of(kind)
        writer = self._writer_of(here, source)
        copy = UnderWay(kind, source, destination, self.polls, self._next_fault(), None)
        if writer is None:
            copy.contents = self._read(here, source)
        may_wait = kind not in MUST_BE_DONE or kind == "demote"
        late = self.lag + (3 if copy.fault == "late" else 0)
        if writer is not None or (may_wait and late):
            copy.ends = max(self.polls + self._random.randint(1, max(1, late)), writer.ends if writer else 0)
            self._put(there, destination, self._rubbish())
            self._under_way.append(copy)
        else:
            self._end(copy, outcome)

    def _end(self, copy: UnderWay, outcome: Outcome) -> None:
        here, there = self._ends_of(copy.kind)
        now = self._read(here, copy.source)
        contents = copy.contents or now
        if copy.kind not in MUST_BE_DONE and not np.array_equal(now.links, contents.links):
            raise InternalError(f"the source of a {copy.kind}, block {copy.source}, was written while it was read")
        fails = copy.fault in ("failed", "torn", "corrupted")
        self._put(there, copy.destination, self._spoiled(contents, copy.fault) if fails else contents)
        sources, destinations = (outcome.failed if fails else outcome.done).pairs(copy.kind)
        sources.append(copy.source)
        destinations.append(copy.destination)

    def _next_fault(self) -> str | None:
        return self.faults.popleft() if self.faults else None

    def _spoiled(self, contents: Block, fault: str | None) -> Block:
        links = contents.links.copy()
        if fault == "corrupted":
            links[self._random.randrange(self.block_size)] ^= np.uint64(1 << self._random.randrange(64))
        else:
            links[self.block_size // 2 if fault == "torn" else 0 :] = POISON
        return Block(links, contents.tokens)

    def _rubbish(self) -> Block:
        return Block(np.full(self.block_size, POISON, np.uint64), np.full(self.block_size, -1, np.int64))

    def _read(self, place: str, block: int) -> Block:
        planes = self.planes[place]
        return Block(planes.links[block].copy(), planes.tokens[block].copy())

    def _put(self, place: str, block: int, contents: Block) -> None:
        planes = self.planes[place]
        planes.links[block], planes.tokens[block] = contents

    def _writer_of(self, place: str, block: int) -> UnderWay | None:
        writers = (copy for copy in self._under_way if self._ends_of(copy.kind)[1] == place)
        return next((copy for copy in writers if copy.destination == block), None)

    def _ends_of(self, kind: str) -> tuple[str, str]:
        source, destination = COPY_KINDS[kind]
        return _PLACES.get(source, source), _PLACES.get(destination, destination)

    def _check_keys(self, transfers: Transfers) -> None:
        """A file is asked for by the digest that it was written with (E75)."""
        for block, key in zip(transfers.demote_disk, transfers.demote_keys, strict=True):
            self._keys[block] = key
        for block, key in zip(transfers.load_disk, transfers.load_keys, strict=True):
            if self._keys.get(block) != key:
                raise InternalError(f"disk block {block} is read for other contents than it was written for")
