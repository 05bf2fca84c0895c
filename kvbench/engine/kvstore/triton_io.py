"""Write tokens into slots by the Triton kernel; read them back by torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.engine.kvstore.reading_writing import TorchIO

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.engine.kvstore.pool import LayerView


class TritonIO(TorchIO):
    """Imports triton, so make it only where it is used. A slot outside the usable blocks stores nothing: that is how
    rows which pad a batch are written nowhere, and the slots of real tokens are checked when a step is staged."""

    def __init__(self) -> None:
        from kvbench_kernels import write_triton

        self._write = write_triton.write

    def write(self, view: LayerView, k: Tensor, v: Tensor, slots: Tensor) -> None:
        self._write(
            k,
            v,
            view.elements,
            view.scales,
            slots,
            *view.layout.offsets.without_v_stride,
            None if view.k_tensor_scale is None else (view.k_tensor_scale, view.v_tensor_scale or 1.0),
        )
