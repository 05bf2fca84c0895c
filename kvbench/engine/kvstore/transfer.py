"""Whole blocks between device, host, swap area and disk, scales included, in the order that `Transfers` promises.

What the step itself depends on is done when `start` returns. Copies into the host tier of blocks that stay (`store`)
and reads from disk always go on in the background; promotions and swap-ins do when they may overlap, else they are done
at once. On a CPU the background is a thread; on CUDA it is a stream that first waits for the computing stream (a block
may only leave once it is written), with an event behind each batch of copies.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kvbench.cache.transfers import ARRIVALS, COPY_KINDS, Transfers
from kvbench.engine.copies import Outcome
from kvbench.engine.kvstore.block_copies import Copies, Way, copy_blocks
from kvbench.engine.kvstore.jobs import Job, Jobs, StreamCopy
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kvbench.engine.kvstore.disk import DiskFiles


class BlockMover:
    """Copies blocks of one store. `pools` are `[layers, num_blocks + 1, bytes]` on the device, `hosts`
    `[host_blocks + swap_blocks, layers, bytes]` in host memory, the swap area behind the host tier, pinned on CUDA so
    that a copy needs no staging there. `copies` moves the bytes, but on a CPU's background thread torch does."""

    def __init__(
        self,
        pools: list[Tensor],
        hosts: list[Tensor],
        host_blocks: int,
        swap_blocks: int,
        *,
        disk: DiskFiles | None = None,
        disk_blocks: int = 0,
        overlaps: bool = False,
        copies: Copies = copy_blocks,
    ) -> None:
        self._device = pools[0].device
        self._pools = [pool.transpose(0, 1) for pool in pools]
        self._hosts = hosts
        self._host_blocks = host_blocks
        self._disk = disk
        self._overlaps = overlaps
        self._copies = copies
        self._jobs = Jobs()
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._blocks = {
            "device": range(1, pools[0].shape[1]),
            "host": range(host_blocks),
            "swap": range(swap_blocks),
            "disk": range(disk_blocks),
        }
        self._disk_error_told = False

    def start(self, transfers: Transfers) -> Outcome:
        """Begin all copies; `InternalError` for a block that does not exist, before anything is moved."""
        self._check(transfers)
        outcome = Outcome()
        self._demote(transfers, outcome)
        with self._copy_stream():
            for kind in ("offload", "swap_out"):
                self._now(kind, transfers, outcome.done)
            self._later("store", transfers)
            self._bring_up(transfers, outcome)
        self._load(transfers)
        with self._copy_stream():
            self._copy_on_write(transfers, outcome.done)
        return outcome

    def poll(self, *, wait: bool = False) -> Outcome:
        """Background copies that have ended."""
        outcome = Outcome()
        for job in self._jobs.take_ended(wait_for_one=wait):
            (outcome.done if job.work.result() else outcome.failed).add(job.kind, job.here, job.there)
        if self._disk is not None and self._disk.write_error is not None and not self._disk_error_told:
            self._disk_error_told = True
            outcome.disk_error = self._disk.write_error
        return outcome

    def clear(self) -> None:
        """Wait for everything; forget what lies on disk."""
        self._jobs.close()
        if self._disk is not None:
            self._disk.clear()

    def close(self) -> None:
        """No thread runs and no file is left."""
        self._jobs.close()
        if self._disk is not None:
            self._disk.close()

    def _demote(self, transfers: Transfers, outcome: Outcome) -> None:
        """Bytes leave the host blocks here; whether they reach the disk is known later."""
        hosts = [host.numpy() for host in self._hosts]
        pairs = zip(transfers.demote_host, transfers.demote_disk, transfers.demote_keys, strict=True)
        self._jobs.wait_for(("store",), set(transfers.demote_host))
        for block, place, key in pairs:
            work = None if self._disk is None else self._disk.write(place, key, [host[block] for host in hosts])
            if work is None:
                outcome.failed.add("demote", [block], [place])
            else:
                self._jobs.add(Job("demote", [block], [place], work))

    def _bring_up(self, transfers: Transfers, outcome: Outcome) -> None:
        """Promotions and swap-ins."""
        if self._overlaps:
            self._later("promote", transfers)
            self._later("swap_in", transfers)
            return
        started = time.perf_counter()
        self._jobs.wait_for(("store",), set(transfers.promote_host))
        self._now("promote", transfers, outcome.done)
        self._now("swap_in", transfers, outcome.done)
        if outcome.done.promote_host or outcome.done.swap_in_swap:
            outcome.promotion_stall_s = time.perf_counter() - started

    def _load(self, transfers: Transfers) -> None:
        """Disk → device, block by block, by the disk's threads."""
        for place, block, key in zip(transfers.load_disk, transfers.load_device, transfers.load_keys, strict=True):
            if self._disk is None:
                raise InternalError("a block is to be read from disk, but there is no disk tier")

            def deliver(payload: np.ndarray, block: int = block) -> None:
                self._deliver(payload, block)

            self._jobs.add(Job("load", [place], [block], self._disk.read(place, key, deliver)))

    def _deliver(self, payload: np.ndarray, block: int) -> None:
        """On a disk thread: the bytes of one block into the device."""
        with torch.cuda.stream(torch.cuda.Stream(self._device)) if self._stream is not None else nullcontext():
            used = 0
            for pool in self._pools:
                size = pool.shape[1] * pool.shape[2]
                part = torch.from_numpy(payload[used : used + size]).view(pool.shape[1:])
                pool[block].copy_(part)
                used += size
            if self._stream is not None:
                torch.cuda.current_stream(self._device).synchronize()

    def _copy_on_write(self, transfers: Transfers, done: Transfers) -> None:
        if transfers.copy_source:
            self._jobs.wait_for(ARRIVALS, set(transfers.copy_source))
            self._now("copy", transfers, done)

    def _now(self, kind: str, transfers: Transfers, done: Transfers) -> None:
        """One kind, complete on return."""
        here, there = transfers.pairs(kind)
        if here:
            kept = self._copy(kind, here, there, self._copies)
            if self._stream is not None:
                self._stream.synchronize()
            del kept
            done.add(kind, here, there)

    def _later(self, kind: str, transfers: Transfers) -> None:
        """One kind, in the background, behind what was begun before."""
        here, there = transfers.pairs(kind)
        if not here:
            return
        if self._stream is None:
            self._jobs.run(kind, here, there, lambda: self._copy(kind, here, there, copy_blocks))
        else:
            kept = self._copy(kind, here, there, self._copies)
            self._jobs.add(Job(kind, here, there, StreamCopy(self._stream, kept)))

    def _copy(self, kind: str, here: list[int], there: list[int], copies: Copies) -> list[Tensor]:
        """Copy, or put the copy on the current stream; returns what must be kept until it is done."""
        way = _WAYS[kind]
        sources = self._hosts if way == "in" else self._pools
        targets = self._hosts if way == "out" else self._pools
        here = [block + self._host_blocks for block in here] if kind == "swap_in" else here
        there = [block + self._host_blocks for block in there] if kind == "swap_out" else there
        kept: list[Tensor] = []
        for source, target in zip(sources, targets, strict=True):
            kept += copies(source, target, here, there, way)
        return kept

    def _copy_stream(self) -> AbstractContextManager[object]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def _check(self, t: Transfers) -> None:
        for kind, (source, destination) in _PLACES.items():
            here, there = t.pairs(kind)
            if len(here) != len(there):
                raise InternalError(f"{kind} names {len(here)} sources and {len(there)} destinations")
            _check_blocks(kind, here, self._blocks[source])
            _check_blocks(kind, there, self._blocks[destination])


_PLACES = {**COPY_KINDS, "copy": ("device", "device")}
_WAYS: dict[str, Way] = {
    "offload": "out", "store": "out", "swap_out": "out", "promote": "in", "swap_in": "in", "copy": "within"
}  # fmt: skip


def _check_blocks(name: str, blocks: list[int], valid: range) -> None:
    wrong = [block for block in blocks if block not in valid]
    if wrong:
        raise InternalError(f"{name} names block {wrong[0]}; blocks are {valid.start} to {valid.stop - 1}")
