"""A kernel's page in small, with one configuration of every fate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvbench_kernels.specs import CompileSpec, KernelShape


@dataclass(frozen=True)
class Config:
    tile: int = 64
    stages: int = 3
    unused: int = 0
    lanes: int = 1


DEFAULT = Config()
SPACE: dict[str, tuple[Any, ...]] = {"tile": (16, 64, 512), "stages": (3,), "unused": (0, 1), "lanes": (1, 2)}


def allowed(shape: KernelShape, config: Config) -> str | None:
    if shape.k_dim % 16:
        return f"rows of {shape.k_dim} elements"
    return "16 tokens do not fill two lanes" if config.tile == 16 and config.lanes == 2 else None


def compile_spec(shape: KernelShape, config: Config) -> CompileSpec:
    """`lanes` is for the launch alone."""
    kv = {"bf16": "bf16", "fp8_e5m2": "fp8e5", "fp8_e4m3": "fp8e4nv", "int8": "i8"}[shape.kv_dtype]
    constants = {"TILE": config.tile, "D": shape.k_dim, "UNUSED": config.unused}
    return CompileSpec(
        module="tests.tune.small_kernels",
        function="scores",
        signature={"k": f"*{kv}", "q": "*bf16", "out": "*fp32", "n": "i32"} | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        divisible_by_16=("k", "q", "out", "n"),
        num_warps=4,
        num_stages=config.stages,
    )
