"""Named tensors, fetched from a source and made into norms and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from kvbench.engine.families import FAMILIES
from kvbench.engine.linear import Linear
from kvbench.engine.norm import RmsNorm
from kvbench.engine.tensor_shapes import tensor_shapes

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry


class TensorSource(Protocol):
    """Where weights come from."""

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of that name and shape, on the wanted device, in any float dtype."""
        ...


class Parts:
    """What the layers of one model are put together from; matrices in `dtype`."""

    def __init__(self, geometry: ModelGeometry, source: TensorSource, dtype: torch.dtype) -> None:
        self.geometry, self.family, self.dtype = geometry, FAMILIES[geometry.family], dtype
        self._source, self._shapes = source, tensor_shapes(geometry)

    def has(self, name: str) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> Tensor:
        return self._source(name, self._shapes[name]).to(self.dtype)

    def wide(self, name: str) -> Tensor:
        """In float32."""
        return self._source(name, self._shapes[name]).float()

    def norm_weight(self, name: str) -> Tensor:
        """What the norm multiplies by, float32."""
        return self.wide(f"{name}.weight") + self.family.norm_offset

    def norm(self, name: str, eps: float | None = None) -> RmsNorm:
        return RmsNorm(self.norm_weight(name), self.geometry.rms_norm_eps if eps is None else eps)

    def linear(self, *names: str) -> Linear:
        """The projections of these names one after the other."""
        weight = torch.cat([self.tensor(f"{name}.weight") for name in names])
        biases = [self.tensor(f"{name}.bias") for name in names if self.has(f"{name}.bias")]
        return Linear(weight, torch.cat(biases) if biases else None)
