"""What runs where nothing was tuned, and a few configurations that can win: compiled for GPUs that are not there.

Shipped are the defaults for 16-bit queries with KV in the same dtype or in 8 bits, and for float32 with float32. (Other
pairs, say float32 queries on bf16, are multiplied in float32 whatever the configuration: right, slow, and not held to
this.) The ones that can win are the shapes of publicly tuned H200 tables: wide tiles for one short sequence, narrow
ones for many long ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.tune.compile_pool import CompileJob, Outcome, compile_all
from kvbench.tune.occupancy import occupancy
from kvbench.tune.pages import default_of, fields_of, load_page
from kvbench.tune.shapes import kernel_shape
from kvbench.tune.targets import Target

TARGETS = ("sm_80", "sm_90", "sm_100")
CAN_WIN: dict[str, tuple[Mapping[str, Any], ...]] = {
    "decode": (
        {"tile": 16, "warps": 2, "stages": 3},
        {"tile": 128, "warps": 4, "stages": 3},
    ),
    "prefill": ({"rows": 128, "tile": 32, "warps": 8, "stages": 2},),
}
"""Kernel → fields that differ from `DEFAULT`; compiled for bf16 and 128 elements a row."""
WITH_MATRIX_PRODUCTS = ("decode", "prefill", "mla")
_NARROW = ("bf16", "fp8_e4m3", "int8")


@dataclass(frozen=True, slots=True)
class Shipped:
    """One compile that has to be clean. `has_tensor_cores`: its products are not in float32."""

    kernel: str
    target: Target
    kv_dtype: str
    head_dim: str
    configuration: Mapping[str, Any]
    is_default: bool
    has_tensor_cores: bool
    job: CompileJob


def shipped(kernel: str, target: Target) -> list[Shipped]:
    """The compiles of one kernel for one target."""
    dims = ("128", "256") if kernel in ("decode", "prefill") else ("",)
    dtypes = _NARROW if kernel != "copy" else ("bf16",)
    asked = [(kv, "bf16", dim) for dim in dims for kv in dtypes if kv in target.kv_dtypes]
    if kernel in WITH_MATRIX_PRODUCTS:
        asked.append(("fp32", "fp32", dims[0]))
    found = [_default(kernel, target, *one) for one in asked]
    return found + [_winner(kernel, target, fields) for fields in CAN_WIN.get(kernel, ())]


def _default(kernel: str, target: Target, kv_dtype: str, query_dtype: str, head_dim: str) -> Shipped:
    page = load_page(kernel)
    shape = kernel_shape(kernel, kv_dtype=kv_dtype, query_dtype=query_dtype, head_dim=head_dim or None)
    config = default_of(page, shape)
    job = CompileJob(page.compile_spec(shape, config), target.arch)
    has_tensor_cores = kernel in WITH_MATRIX_PRODUCTS and query_dtype != "fp32"
    dims = f"{shape.k_dim}" if shape.k_dim == shape.v_dim else f"{shape.k_dim}/{shape.v_dim}"
    return Shipped(kernel, target, kv_dtype, dims, fields_of(config), True, has_tensor_cores, job)


def _winner(kernel: str, target: Target, fields: Mapping[str, Any]) -> Shipped:
    page, shape = load_page(kernel), kernel_shape(kernel)
    config = page.Config(**{**fields_of(page.DEFAULT), **fields})
    job = CompileJob(page.compile_spec(shape, config), target.arch)
    has_tensor_cores = kernel in WITH_MATRIX_PRODUCTS
    return Shipped(kernel, target, "bf16", str(shape.k_dim), fields_of(config), False, has_tensor_cores, job)


def compile_shipped(compiles: Sequence[Shipped], *, workers: int | None = None) -> list[Outcome]:
    """Compile them; outcomes in their order."""
    return compile_all([one.job for one in compiles], workers=workers, timeout_s=120.0)


def problems(one: Shipped, outcome: Outcome) -> list[str]:
    """What keeps a compile from being clean; none for one that is."""
    found = outcome.resources
    if found is None:
        return [f"{outcome.status}: {outcome.reason}"]
    limit = one.target.shared_per_block_bytes
    resident = occupancy(found.registers, found.shared_bytes, found.warps, one.target, found.tensor_memory_columns)
    said = {
        f"{found.spill_bytes} bytes are spilled": found.spill_bytes > 0,
        f"{found.shared_bytes} bytes of shared memory are beyond {limit}": found.shared_bytes > limit,
        "no block fits on an SM": resident.blocks == 0,
        "no global load of 16 bytes": found.wide_loads == 0,
        "no tensor core is used": one.has_tensor_cores and found.tensor_core == 0,
    }
    return [what for what, holds in said.items() if holds]
