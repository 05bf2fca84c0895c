"""Whole blocks between device and host, scales included, in the order offload, promote, copy.

On CUDA the copies run on their own stream, which first waits for the computing stream (a block may only leave once it
is written); the call returns when they are done, so nothing can read a block that is half there or reuse a source that
is still being read. Overlap with the forward pass is given up for that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.types import Transfers


@dataclass(frozen=True, slots=True)
class TransferResult:
    """Bytes moved, and the time that promotions took (the step waits for them)."""

    offload_bytes: int
    promote_bytes: int
    copy_bytes: int
    promotion_stall_s: float


class BlockMover:
    """Copies blocks of one store. `pools` are `[layers, num_blocks + 1, bytes]` on the device, `hosts`
    `[host_blocks, layers, bytes]` in host memory, pinned on CUDA so that a copy needs no staging there."""

    def __init__(self, pools: list[Tensor], hosts: list[Tensor]) -> None:
        self._device = pools[0].device
        self._device_blocks = pools[0].shape[1] - 1
        self._host_blocks = hosts[0].shape[0] if hosts else 0
        self._block_bytes = sum(pool.shape[0] * pool.shape[2] for pool in pools)
        self._pools = [pool.transpose(0, 1) for pool in pools]
        self._hosts = hosts
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    def move(self, transfers: Transfers) -> TransferResult:
        """Carry out all copies; `InternalError` for a block that does not exist, before anything is moved."""
        self._check(transfers)
        with self._copy_stream():
            self._copy(self._pools, self._hosts, transfers.offload_device, transfers.offload_host)
            started = time.perf_counter()
            self._copy(self._hosts, self._pools, transfers.promote_host, transfers.promote_device)
            stall = time.perf_counter() - started if transfers.promote_host else 0.0
            self._copy(self._pools, self._pools, transfers.copy_source, transfers.copy_destination)
        return TransferResult(
            offload_bytes=len(transfers.offload_device) * self._block_bytes,
            promote_bytes=len(transfers.promote_host) * self._block_bytes,
            copy_bytes=len(transfers.copy_source) * self._block_bytes,
            promotion_stall_s=stall,
        )

    def _copy_stream(self) -> AbstractContextManager[object]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def _copy(self, sources: list[Tensor], targets: list[Tensor], here: list[int], there: list[int]) -> None:
        """One list of one kind; complete on return."""
        if not here:
            return
        for source, target in zip(sources, targets, strict=True):
            copy_blocks(source, target, here, there)
        if self._stream is not None:
            self._stream.synchronize()

    def _check(self, t: Transfers) -> None:
        device, host = range(1, self._device_blocks + 1), range(self._host_blocks)
        pairs = (
            ("offload", t.offload_device, device, t.offload_host, host),
            ("promote", t.promote_host, host, t.promote_device, device),
            ("copy", t.copy_source, device, t.copy_destination, device),
        )
        for name, sources, source_ids, targets, target_ids in pairs:
            if len(sources) != len(targets):
                raise InternalError(f"{name} names {len(sources)} sources and {len(targets)} destinations")
            _check_blocks(name, sources, source_ids)
            _check_blocks(name, targets, target_ids)


def copy_blocks(source: Tensor, target: Tensor, here: list[int], there: list[int]) -> None:
    """`target[there] = source[here]` for tensors `[blocks, layers, bytes]`, either of them on either device.

    One plain copy per block on a CPU: torch's indexed copies of bytes were 10 to 50 times slower there.
    """
    if source.is_cuda and target.is_cuda:
        target[torch.tensor(there, device=target.device)] = source[torch.tensor(here, device=source.device)]
    elif source.is_cuda:
        staged = source[torch.tensor(here, device=source.device)]
        for row, block in enumerate(there):
            target[block].copy_(staged[row], non_blocking=True)
    elif target.is_cuda:
        staged = torch.empty((len(here), *source.shape[1:]), dtype=source.dtype, device=target.device)
        for row, block in enumerate(here):
            staged[row].copy_(source[block], non_blocking=True)
        target[torch.tensor(there, device=target.device)] = staged
    else:
        from_blocks, to_blocks = source.numpy(), target.numpy()
        for block, place in zip(here, there, strict=True):
            to_blocks[place] = from_blocks[block]


def _check_blocks(name: str, blocks: Sequence[int], valid: range) -> None:
    wrong = [block for block in blocks if block not in valid]
    if wrong:
        raise InternalError(f"{name} names block {wrong[0]}; blocks are {valid.start} to {valid.stop - 1}")
