"""The bytes of whole blocks from one place to another: by torch anywhere, by the Triton kernels on CUDA.

Both put the copy on the current stream and return the buffers that must live until it is done. A list's pairs are
independent of each other, as `Transfers` promises, except that a copy within the pool may be given in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Way = Literal["within", "out", "in"]
"""Within the device's pool, from it into host memory, or from there into it."""
Copies = Callable[[Tensor, Tensor, list[int], list[int], Way], list[Tensor]]
"""`target[there] = source[here]` for tensors `[blocks, layers, bytes]`."""

STAGING_BYTES = 64 << 20
"""Most that is staged on the device at once."""


def copy_blocks(source: Tensor, target: Tensor, here: list[int], there: list[int], way: Way) -> list[Tensor]:
    """One plain copy per block on a CPU: torch's indexed copies of bytes were 10 to 50 times slower there."""
    if not source.is_cuda and not target.is_cuda:
        from_blocks, to_blocks = source.numpy(), target.numpy()
        for block, place in zip(here, there, strict=True):
            to_blocks[place] = from_blocks[block]
        return []
    if way == "within":
        target[torch.tensor(there, device=target.device)] = source[torch.tensor(here, device=source.device)]
        return []
    if way == "out":
        staged = source[torch.tensor(here, device=source.device)]
        for row, block in enumerate(there):
            target[block].copy_(staged[row], non_blocking=True)
        return [staged]
    staged = torch.empty((len(here), *source.shape[1:]), dtype=source.dtype, device=target.device)
    for row, block in enumerate(here):
        staged[row].copy_(source[block], non_blocking=True)
    target[torch.tensor(there, device=target.device)] = staged
    return [staged]


class TritonCopies:
    """Scattered blocks of the pool in one launch; between pool and host through one staging buffer on the device, with
    one copy for every run of neighbouring host blocks."""

    def __init__(self) -> None:
        from kvbench_kernels import copy_triton

        self._kernels = copy_triton

    def __call__(self, source: Tensor, target: Tensor, here: list[int], there: list[int], way: Way) -> list[Tensor]:
        if way == "within":
            return self._within(target, here, there)
        pool, host = (source, target) if way == "out" else (target, source)
        blocks, places = (here, there) if way == "out" else (there, here)
        order = sorted(range(len(places)), key=places.__getitem__)
        return self._staged(pool, host, [blocks[at] for at in order], [places[at] for at in order], way)

    def _within(self, pool: Tensor, here: list[int], there: list[int]) -> list[Tensor]:
        kept = []
        for start, end in self._kernels.ordered_runs(here, there):
            sources, targets = (_indices(blocks[start:end], pool) for blocks in (here, there))
            self._kernels.block_copy(pool, sources, targets)
            kept += [sources, targets]
        return kept

    def _staged(self, pool: Tensor, host: Tensor, blocks: list[int], places: list[int], way: Way) -> list[Tensor]:
        """In batches that fit the buffer, which the stream's own order lets them share."""
        batch = max(1, min(len(blocks), STAGING_BYTES // max(1, pool[0].numel())))
        buffer = torch.empty((batch, *pool.shape[1:]), dtype=pool.dtype, device=pool.device)
        kept = [buffer]
        for start in range(0, len(blocks), batch):
            own, at = _indices(blocks[start : start + batch], pool), places[start : start + batch]
            staged = buffer[: len(at)]
            if way == "out":
                self._kernels.block_gather(pool, own, staged)
            for first, end in neighbours(at):
                there = slice(at[first], at[first] + end - first)
                if way == "out":
                    host[there].copy_(staged[first:end], non_blocking=True)
                else:
                    staged[first:end].copy_(host[there], non_blocking=True)
            if way == "in":
                self._kernels.block_scatter(staged, pool, own)
            kept.append(own)
        return kept


def neighbours(blocks: list[int]) -> list[tuple[int, int]]:
    """Ranges of a list in which every number is the one before plus one."""
    cuts = [at for at in range(1, len(blocks)) if blocks[at] != blocks[at - 1] + 1]
    return list(zip([0, *cuts], [*cuts, len(blocks)], strict=True)) if blocks else []


def _indices(blocks: list[int], pool: Tensor) -> Tensor:
    return torch.tensor(blocks, dtype=torch.int64, device=pool.device)
