"""The GPU's attention kernels in Triton's interpreter: two configurations each, and one whose output is wrong."""

from __future__ import annotations

from typing import Any, ClassVar

from kvbench.tune.space import Space
from kvbench.tune.triton_tunable import DecodeTriton, MlaTriton, PrefillTriton
from kvbench_kernels.specs import KernelShape

WRONG_STAGES = 1
"""A configuration with as many stages is the planted one: the last row of its output is of another size."""


class Interpreted:
    """Before a kernel among its bases: runs on the CPU, with a small space."""

    device = "cpu"
    other: ClassVar[dict[str, Any]]

    def space(self, shape: KernelShape, threads: int) -> Space:
        default = self.default(shape)  # type: ignore[attr-defined]
        wrong = {**default, "tile": 16, "stages": WRONG_STAGES}
        other = {name: value for name, value in self.other.items() if name in default}
        rows = [default, {**default, **other}, wrong]
        return Space(tuple(default), tuple(tuple(row.values()) for row in rows))

    def prepare(self, shape: KernelShape, device: str, seed: int) -> Any:
        prepared = super().prepare(shape, device, seed)  # type: ignore[misc]
        launch = prepared.launch

        def planted(configuration: Any, batch: int = 0) -> None:
            launch(configuration, batch)
            if configuration["stages"] == WRONG_STAGES:
                prepared.outputs[batch][-1, -1] *= 1.5

        prepared.launch = planted
        return prepared


class Decode(Interpreted, DecodeTriton):
    other: ClassVar = {"tile": 16, "splits": 2}


class Prefill(Interpreted, PrefillTriton):
    other: ClassVar = {"rows": 16, "tile": 16}


class Mla(Interpreted, MlaTriton):
    other: ClassVar = {"tile": 16, "splits": 2}
