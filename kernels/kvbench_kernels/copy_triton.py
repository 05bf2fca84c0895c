"""Whole blocks on the GPU: copy-on-write batches, and gather and scatter between scattered blocks and one buffer.

    block_copy     pool[targets[i], plane] = pool[sources[i], plane]      for every pair i and plane, in one launch
    block_gather   staged[i, plane] = pool[blocks[i], plane]
    block_scatter  pool[blocks[i], plane] = staged[i, plane]

Offload gathers what leaves into one buffer, which then crosses to the host in one copy a run of neighbouring host
blocks; promotion is the other way round. A block is bytes here: K, V and scales go along, whatever they are.

pool and staged are uint8 `[blocks, planes, bytes]`, in any order of the first two axes (the store's pool is planes of
blocks, turned), the last one dense; indices int64 `[n]`, 0 ≤ index < blocks, checked by the caller; n may be 0. The
bytes of a plane's block, its strides and the memory's address are multiples of 16, as the store's layout has them
(`ValueError` otherwise), so that every thread moves 16 bytes at a time. Offsets are 64-bit.

`block_copy` runs its pairs in no order: no target is a source or a target twice (`ordered_runs` cuts a list where it
is). Nothing but the targets' bytes is written.

One program moves `vectors` · 16 bytes of one plane of one block. Reference: the three lines above, by torch. Never
timed: no GPU has run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from kvbench_kernels.specs import CompileSpec

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench_kernels.specs import KernelShape

VECTOR = 16
"""Bytes that one thread moves at a time, as four 32-bit words."""


@dataclass(frozen=True)
class Config:
    """`vectors` of 16 bytes per program, a power of two; `warps` that move them."""

    vectors: int = 512
    warps: int = 4


DEFAULT = Config()
SPACE: dict[str, tuple[Any, ...]] = {"vectors": (32, 64, 128, 256, 512, 1024, 2048), "warps": (1, 2, 4, 8)}


@triton.jit
def _copy(
    source,
    target,
    sources,
    targets,
    source_block,
    source_plane,
    target_block,
    target_plane,
    vectors,
    HAS_SOURCES: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    VECTORS: tl.constexpr,
):
    """Strides and `vectors` count 16 bytes; ×4 here, so that the compiler sees offsets and masks as whole vectors."""
    pair = tl.program_id(0).to(tl.int64)
    plane = tl.program_id(1).to(tl.int64)
    here = pair
    if HAS_SOURCES:
        here = tl.load(sources + pair).to(tl.int64)
    there = pair
    if HAS_TARGETS:
        there = tl.load(targets + pair).to(tl.int64)
    words = tl.program_id(2) * (VECTORS * 4) + tl.arange(0, VECTORS * 4)
    mask = words < vectors * 4
    from_words = source + (here * source_block + plane * source_plane) * 4
    to_words = target + (there * target_block + plane * target_plane) * 4
    tl.store(to_words + words, tl.load(from_words + words, mask=mask), mask=mask)


def block_copy(pool: Tensor, sources: Tensor, targets: Tensor, config: Config = DEFAULT) -> None:
    """Copies within one pool; one target for every source."""
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets")
    _launch(pool, pool, sources, targets, len(sources), config)


def block_gather(pool: Tensor, blocks: Tensor, staged: Tensor, config: Config = DEFAULT) -> None:
    """Scattered blocks into `staged` `[n, planes, bytes]`."""
    _check_staged(staged, blocks)
    _launch(pool, staged, blocks, None, len(blocks), config)


def block_scatter(staged: Tensor, pool: Tensor, blocks: Tensor, config: Config = DEFAULT) -> None:
    """`staged` `[n, planes, bytes]` into scattered blocks."""
    _check_staged(staged, blocks)
    _launch(staged, pool, None, blocks, len(blocks), config)


def ordered_runs(sources: list[int], targets: list[int]) -> list[tuple[int, int]]:
    """Ranges of the pairs that may each run in any order, such that one range after the other gives what the pairs in
    their order give."""
    runs: list[tuple[int, int]] = []
    start, read, written = 0, set[int](), set[int]()
    for at, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if source in written or target in written or target in read:
            runs.append((start, at))
            start, read, written = at, set(), set()
        read.add(source)
        written.add(target)
    return [*runs, (start, len(sources))] if sources else []


def _check_staged(staged: Tensor, blocks: Tensor) -> None:
    if len(staged) < len(blocks):
        raise ValueError(f"{len(blocks)} blocks do not fit into a buffer of {len(staged)}")


def _launch(
    source: Tensor, target: Tensor, sources: Tensor | None, targets: Tensor | None, pairs: int, config: Config
) -> None:
    if source.shape[1:] != target.shape[1:]:
        raise ValueError(f"blocks of {tuple(source.shape[1:])} and of {tuple(target.shape[1:])} planes and bytes")
    planes, size = source.shape[1:]
    if pairs == 0 or planes == 0 or size == 0:
        return
    here, there = _words(source), _words(target)
    vectors = size // VECTOR
    _copy[(pairs, planes, triton.cdiv(vectors, config.vectors))](
        here,
        there,
        here if sources is None else sources,
        there if targets is None else targets,
        here.stride(0) // 4,
        here.stride(1) // 4,
        there.stride(0) // 4,
        there.stride(1) // 4,
        vectors,
        HAS_SOURCES=sources is not None,
        HAS_TARGETS=targets is not None,
        VECTORS=config.vectors,
        num_warps=config.warps,
    )


def _words(blocks: Tensor) -> Tensor:
    """The same bytes as 32-bit words; `ValueError` where whole vectors cannot be moved."""
    strides = blocks.stride()
    is_whole = blocks.shape[2] % VECTOR == 0 and strides[0] % VECTOR == 0 and strides[1] % VECTOR == 0
    if blocks.dtype != torch.uint8 or strides[2] != 1 or not is_whole or blocks.data_ptr() % VECTOR:
        raise ValueError(
            f"blocks of {blocks.dtype} {tuple(blocks.shape)} with strides {strides} are not rows of {VECTOR} bytes"
        )
    return blocks.view(torch.int32)


def allowed(shape: KernelShape, config: Config) -> str | None:
    """Why a configuration is not worth compiling; None when it is. The work's shape does not matter."""
    if config.vectors < config.warps * 32:
        return f"{config.warps} warps have nothing to do with {config.vectors} vectors"
    if config.vectors > config.warps * 32 * 16:
        return f"{config.vectors} vectors are more than 16 for each thread of {config.warps} warps"
    return None


def compile_spec(shape: KernelShape, config: Config) -> CompileSpec:
    """`block_copy`; the other two leave out one list of indices."""
    strides = ("source_block", "source_plane", "target_block", "target_plane", "vectors")
    constants = {"HAS_SOURCES": True, "HAS_TARGETS": True, "VECTORS": config.vectors}
    return CompileSpec(
        module="kvbench_kernels.copy_triton",
        function="_copy",
        signature={
            "source": "*i32",
            "target": "*i32",
            "sources": "*i64",
            "targets": "*i64",
            **dict.fromkeys(strides, "i32"),
            **dict.fromkeys(constants, "constexpr"),
        },
        constexprs=constants,
        divisible_by_16=("source", "target", "sources", "targets"),
        num_warps=config.warps,
        num_stages=1,
    )
