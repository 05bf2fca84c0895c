"""Kernels small enough to compile in a moment, and some that are planted to go wrong in the compiler."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scores(k, q, out, n, TILE: tl.constexpr, D: tl.constexpr, UNUSED: tl.constexpr):  # noqa: N803
    """out[t] = k_t · q for 16 queries at once, tile by tile: vector loads, a loop that can be pipelined, a dot."""
    rows = tl.arange(0, TILE)
    dims = tl.arange(0, D)
    queries = tl.arange(0, 16)
    loaded_q = tl.load(q + queries[:, None] * D + dims[None, :])
    for first in range(0, n, TILE):
        tile = tl.load(k + (first + rows)[:, None] * D + dims[None, :])
        product = tl.dot(loaded_q, tl.trans(tile.to(loaded_q.dtype)))
        tl.store(out + queries[:, None] * n + (first + rows)[None, :], product)


# Triton follows the globals that a kernel uses into what it calls; what is imported within, it leaves alone.


@triton.constexpr_function
def _sleep_for_ever():
    from time import sleep

    sleep(3600)


@triton.constexpr_function
def _abort():
    from os import abort, write

    write(2, b"%0 = tt.get_program_id x : i32\n" * 300 + b"LLVM ERROR: Cannot select: cvt.pk.f32.fp8\n")
    abort()


@triton.constexpr_function
def _exit():
    from os import _exit

    _exit(3)


@triton.jit
def planted(out, FAULT: tl.constexpr):  # noqa: N803
    """A kernel whose compilation hangs, aborts, ends the process or fails, or does none of this."""
    if FAULT == "hang":
        _sleep_for_ever()
    if FAULT == "abort":
        _abort()
    if FAULT == "exit":
        _exit()
    if FAULT == "small dot":
        some = tl.zeros((16, 8), tl.float16)
        tl.store(out, tl.sum(tl.dot(some, tl.trans(some))))
    if FAULT == "name":
        tl.store(out, there_is_no_such_thing)  # noqa: F821
    tl.store(out, 1.0)
