"""What a Triton kernel is compiled for: the shape of the work, and one configuration's compile in plain words.

No triton here: a page describes its compiles, and whoever compiles them (in a child process, for a device that need
not be there) reads the description.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class KernelShape:
    """One kernel's work: dtypes by the store's names (`bf16`, `fp8_e4m3`, …), dims in elements per row, `batch`
    sequences of `context` tokens each, `query_tokens` of every sequence attending (1 in decode).

    `layout` is `hnd` (a block holds its tokens head by head) or `nhd`. A latent layer has one KV head and a V that is
    the front of its K: `v_dim` < `k_dim`.
    """

    query_dtype: str
    kv_dtype: str
    has_block_scales: bool
    block_size: int
    query_heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    layout: Literal["hnd", "nhd"]
    batch: int
    context: int
    has_window: bool = False
    has_sinks: bool = False
    has_cap: bool = False
    query_tokens: int = 1


@dataclass(frozen=True)
class CompileSpec:
    """One compile: `function` (a `triton.jit` function) of `module`.

    `signature` names every argument in order with Triton's type (`*bf16`, `i32`, `fp32`, or `constexpr`); `constexprs`
    gives the values of those that are constants; `divisible_by_16` names the pointers and integers that the launcher
    promises to be multiples of 16 (without it vector loads are lost). What varies from launch to launch, as the number
    of splits does, is an argument and not part of this.
    """

    module: str
    function: str
    signature: dict[str, str]
    constexprs: dict[str, Any]
    divisible_by_16: tuple[str, ...]
    num_warps: int
    num_stages: int
