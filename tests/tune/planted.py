"""A kernel of the tests' own whose configurations are slow, wrong, stuck or deadly as their names say."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

import torch

from kvbench.tune.space import Space
from kvbench_kernels.specs import KernelShape

SHAPE = KernelShape("fp32", "fp32", False, 16, 2, 1, 8, 8, "hnd", batch=2, context=4)
LOG = "KVBENCH_TEST_LAUNCHES"
"""Names a file to which every launch adds its configuration"""


class Planted:
    """`ms` is how long a call takes, `kind` what is wrong with it."""

    name = "planted"
    page = "kvbench_kernels.decode_numba"
    device = "cpu"
    compiler = "numba"
    values: ClassVar[dict[str, tuple[Any, ...]]] = {
        "ms": (2, 4, 8),
        "kind": ("right", "wrong", "half", "hang", "crash", "refuse", "abort"),
    }
    default_ms = 4

    def space(self, shape: KernelShape, threads: int) -> Space:
        return Space.of(self.values, [lambda c: c["kind"] == "right" or c["ms"] == 2])

    def default(self, shape: KernelShape) -> dict[str, Any]:
        return {"ms": self.default_ms, "kind": "right"}

    def compile_spec(self, shape: KernelShape, configuration: Any) -> None:
        return None

    def prepare(self, shape: KernelShape, device: str, seed: int) -> PreparedPlanted:
        return PreparedPlanted()


class Healthy(Planted):
    """Nothing is wrong, and the default is the quickest."""

    values: ClassVar = {"ms": (2, 4, 8), "kind": ("right",)}
    default_ms = 2


class Broken(Planted):
    """The default itself is wrong."""

    def default(self, shape: KernelShape) -> dict[str, Any]:
        return {"ms": 2, "kind": "wrong"}


class PreparedPlanted:
    def __init__(self) -> None:
        self.expected = [torch.ones((4, 8), dtype=torch.float64), torch.ones((1, 8), dtype=torch.float64)]
        self.outputs = [torch.empty((4, 8)), torch.empty((1, 8))]
        self.bytes_per_call = 128

    def compile(self, configuration: Any) -> None:
        if configuration["kind"] == "refuse":
            raise ValueError("no such instruction")

    def launch(self, configuration: Any, batch: int = 0) -> None:
        if LOG in os.environ:
            with Path(os.environ[LOG]).open("a") as file:
                file.write(f"{configuration['ms']} {configuration['kind']}\n")
        kind, out = configuration["kind"], self.outputs[batch]
        if kind == "hang":
            time.sleep(3600)
        if kind == "crash":
            os.abort()
        if kind == "abort":
            os.write(2, b"LLVM ERROR: Cannot select: cvt.pk.f32.fp8\nPLEASE submit a bug report\n")
            os.abort()
        time.sleep(configuration["ms"] / 1e3)
        if kind == "half":
            out[: len(out) // 2] = 1.0
        else:
            out[:] = 1.0
        if kind == "wrong":
            out[-1, -1] += 0.01
