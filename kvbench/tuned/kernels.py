"""Which kernel an attention backend runs for which work: what a tuned configuration can be for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench_kernels.specs import KernelShape

DECODE, LATENT_DECODE, PREFILL, LATENT_PREFILL = "decode", "latent decode", "prefill", "latent prefill"


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """Its name for `kvbench tune`, the module with its page, and its compiler."""

    name: str
    page: str
    compiler: str


_NUMBA = TunedKernel("decode_numba", "kvbench_kernels.decode_numba", "numba")
KERNELS = {
    "numba": {DECODE: _NUMBA, LATENT_DECODE: _NUMBA},
    "triton": {
        DECODE: TunedKernel("decode", "kvbench_kernels.decode_triton", "triton"),
        LATENT_DECODE: TunedKernel("mla", "kvbench_kernels.mla_triton", "triton"),
        PREFILL: TunedKernel("prefill", "kvbench_kernels.prefill_triton", "triton"),
    },
}
"""Attention backend → work → kernel; work that is missing runs by defaults"""


def work_of(shape: KernelShape) -> str:
    """One row of queries a sequence is a decode; one KV head whose V is the front of its K is latent."""
    is_latent = shape.kv_heads == 1 and shape.v_dim < shape.k_dim
    if shape.query_tokens == 1:
        return LATENT_DECODE if is_latent else DECODE
    return LATENT_PREFILL if is_latent else PREFILL


def kernel_of(backend: str, shape: KernelShape) -> TunedKernel | None:
    """What the backend runs for a shape, None where nothing of it is tuned."""
    return KERNELS.get(backend, {}).get(work_of(shape))


def backends_of(kernel: str) -> list[str]:
    """The backends that run a kernel."""
    return [backend for backend, works in KERNELS.items() if kernel in {found.name for found in works.values()}]
