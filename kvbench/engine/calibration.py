"""Static KV scales from a calibration pass: the magnitudes of K and V over prompts that are nobody's.

K is taken as it is stored, after the rotary embedding. `tensor-absmax` makes the largest magnitude of a layer the
largest number of the dtype; `tensor-percentile` makes a percentile of the magnitudes that number and lets what is
beyond it saturate, so that an outlier does not take the others' precision. A percentile is that of the bin, 0.8 % wide,
in which it falls, rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvbench.engine.alone import foreign_prompt, prefill_alone
from kvbench.engine.kvstore.codec import LARGEST
from kvbench.engine.kvstore.layout import ELEMENTS
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from kvbench.geometry.dtypes import scales_per_token, storage_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.cache.types import Int64s
    from kvbench.engine.model import Model

DEFAULT_TOKENS = 512
"""Length of the one prompt of an engine that is given no scales."""
_BINS = 1 << 15
_BIN_BITS = 16


def needs_scales(kv_dtype: str, kv_scales: str) -> bool:
    """Whether an engine with these settings needs static scales."""
    return storage_dtype(kv_dtype).scale_bytes > 0 and not scales_per_token(kv_scales)


def calibrated(
    model: Model, kv_dtype: str, kv_scales: str, percentile: float, prompts: Iterable[Int64s] | None = None
) -> TensorScales | None:
    """Scales for a narrow KV dtype, from prompts `[tokens]` each prefilled alone with KV in fp32; None when these
    settings need none. Without prompts one of foreign tokens."""
    if not needs_scales(kv_dtype, kv_scales):
        return None
    return observed(model, prompts).scales(kv_dtype, kv_scales, percentile)


def observed(model: Model, prompts: Iterable[Int64s] | None = None) -> Observed:
    """One pass over the prompts `[tokens]`, from which scales of every kind can be had."""
    found = Observed([(Magnitudes(), Magnitudes()) for _ in range(model.geometry.num_layers)])
    for prompt in prompts if prompts is not None else (foreign_prompt(model, DEFAULT_TOKENS),):
        prefill_alone(model, prompt, "fp32", make=lambda *args, **more: _ObservedStore(found.layers, *args, **more))
        found.tokens += len(prompt)
    return found


@dataclass(slots=True)
class Observed:
    """Magnitudes of K and V, layer by layer, over `tokens` tokens."""

    layers: list[tuple[Magnitudes, Magnitudes]]
    tokens: int = 0

    def scales(self, kv_dtype: str, kv_scales: str, percentile: float) -> TensorScales:
        k, v = (tuple(layer[part].scale(kv_dtype, kv_scales, percentile) for layer in self.layers) for part in range(2))
        return TensorScales(k, v, kv_scales, self.tokens)


@dataclass(slots=True)
class Magnitudes:
    """Magnitudes of many numbers by their upper 16 bits as float32, and the largest; what is not finite is left out."""

    counts: Tensor = field(default_factory=lambda: torch.zeros(_BINS, dtype=torch.int64))
    largest: float = 0.0

    def add(self, x: Tensor) -> None:
        sizes = x.detach().float().abs().flatten()
        sizes = sizes[torch.isfinite(sizes)]
        if sizes.numel():
            self.largest = max(self.largest, float(sizes.max()))
            bins = (sizes.contiguous().view(torch.int32) >> _BIN_BITS).long()
            self.counts += torch.bincount(bins, minlength=_BINS).cpu()

    def percentile(self, percent: float) -> float:
        """The upper end of the bin in which it falls, never above the largest; 0 of nothing."""
        total = int(self.counts.sum())
        if total == 0:
            return 0.0
        wanted = percent / 100 * total
        at = int(torch.searchsorted(self.counts.cumsum(0).double(), wanted))
        above = torch.tensor((at + 1) << _BIN_BITS, dtype=torch.int32).view(torch.float32)
        return min(float(above), self.largest)

    def scale(self, kv_dtype: str, kv_scales: str, percentile: float) -> float:
        """A float32 above 0; 1 for numbers that are all zero."""
        most = self.largest if kv_scales == "tensor-absmax" else self.percentile(percentile)
        scale = float(torch.tensor(most) / LARGEST[ELEMENTS[kv_dtype]])
        return scale if scale > 0 else 1.0


class _ObservedStore(KVStore):
    """A store that notes the magnitudes of what it is given."""

    def __init__(self, seen: list[tuple[Magnitudes, Magnitudes]], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._seen = seen

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        for magnitudes, x in zip(self._seen[layer], (k, v), strict=True):
            magnitudes.add(x)
        super().write(layer, k, v, slots)
