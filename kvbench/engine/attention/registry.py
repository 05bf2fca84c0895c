"""The attention backends by name.

A new backend is one more line in `_BACKENDS`; which one a device picks by default stands in `engine/automatic.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from kvbench.engine.attention.rule import PLAIN, ScoreRule
from kvbench.engine.automatic import automatic_attention, why_not_triton
from kvbench.errors import CannotRunError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.store import KVStore

_BACKENDS = {
    "torch": "kvbench.engine.attention.torch_backend:TorchAttention",
    "numba": "kvbench.engine.attention.numba_backend:NumbaAttention",
    "triton": "kvbench.engine.attention.triton_backend:TritonAttention",
}
_DEVICES = {"numba": ("cpu",)}
"""Devices that a backend is bound to; those not named run anywhere."""
_TUNABLE = ("numba", "triton")
Tuned = Mapping[str, Mapping[str, Any]]


class AttentionBackend(Protocol):
    """Reads K and V as they are stored; those of the step's own tokens are written before `attend` is called."""

    name: str
    stores_by_triton: bool
    """Whether the store should write and copy by the Triton kernels too"""

    def prepare(self, batch: StepBatch, store: KVStore) -> None:
        """Once per step: check and stage block tables and lengths. `InternalError` for a block that does not exist."""
        ...

    def attend(self, layer: int, q: Tensor, store: KVStore, rule: ScoreRule = PLAIN) -> Tensor:
        """q `[T, query_heads, k_dim]` → `[T, query_heads, v_dim]` in q's dtype; causal, within the window of the
        layer's group if it has one, and a sequence of context length 0 gives zeros. Table entries of blocks wholly
        before the window are not looked at."""
        ...


def attention_backend(name: str, device: str | torch.device, tuned: Tuned | None = None) -> AttentionBackend:
    """A new backend; `auto` is numba on a CPU, Triton on CUDA. `CannotRunError` where the named one does not run.
    `tuned`: label of a layer group → a configuration of the backend's kernel, as `kvbench tune` found it; `UsageError`
    for a backend that has none."""
    kind = torch.device(device).type
    chosen = automatic_attention(kind) if name == "auto" else name
    if chosen not in _BACKENDS:
        raise UsageError(f"unknown attention backend {name!r}", hint=f"one of auto, {', '.join(_BACKENDS)}")
    if kind not in _DEVICES.get(chosen, (kind,)):
        raise CannotRunError(f"attention backend {chosen} does not run on {kind}", hint='set attention = "auto"')
    if chosen == "triton" and (reason := why_not_triton(kind)) is not None:
        raise CannotRunError(f"attention backend triton does not run here: {reason}", hint='set attention = "auto"')
    module, _, attribute = _BACKENDS[chosen].partition(":")
    make = getattr(import_module(module), attribute)
    if tuned and chosen not in _TUNABLE:
        raise UsageError(f"attention backend {chosen} has no tuned configurations", hint="leave `tuned` out")
    return cast("AttentionBackend", make(tuned) if tuned else make())
