"""Buffers of a Triton attention kernel for trials, and its launches on them."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from kvbench.engine.attention.triton_configs import launch_of
from kvbench.tune.one_layer import CAP, WINDOW, bytes_per_call
from kvbench.tune.pools import QUERY_DTYPES, Batch, fill
from kvbench_kernels.triton_runtime import NO_WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.engine.attention.triton_configs import Launch
    from kvbench.tune.tunable import Configuration
    from kvbench_kernels.specs import KernelShape


class PreparedAttention:
    """A filled pool, and queries, tables, lengths and starts of its two batches on the device."""

    def __init__(self, page: str, launcher: str, shape: KernelShape, device: str, seed: int) -> None:
        self._shape, self._page, self._kernel = shape, page, getattr(import_module(page), launcher)
        self._takes = frozenset(signature(self._kernel).parameters)
        self._launches: dict[tuple[Any, ...], Launch] = {}
        self._pool = pool = fill(shape, device, seed)
        dtype = QUERY_DTYPES[shape.query_dtype]
        self._inputs = [self._input(batch, dtype, device) for batch in pool.batches]
        self._longest = [int(batch.lengths.max()) for batch in pool.batches]
        self.outputs: Sequence[Any] = [
            torch.empty((*batch.queries.shape[:2], shape.v_dim), dtype=dtype, device=device) for batch in pool.batches
        ]
        self.expected: Sequence[Any] = [batch.expected for batch in pool.batches]
        self.bytes_per_call = bytes_per_call(shape)
        is_cuda = torch.device(device).type == "cuda"
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count if is_cuda else 1
        self._fixed = self._layer(device)

    def compile(self, configuration: Configuration) -> None:
        """Triton compiles at the first launch; its errors say that they are the compiler's."""
        self._launch(configuration)

    def launch(self, configuration: Configuration, batch: int = 0) -> None:
        self._kernel(
            **self._inputs[batch],
            out=self.outputs[batch],
            **self._fixed,
            **self._chosen(self._launch(configuration), batch),
        )

    def _launch(self, configuration: Configuration) -> Launch:
        """Made once: a call that is timed should not check it again."""
        key = tuple(configuration.items())
        if key not in self._launches:
            self._launches[key] = launch_of(self._page, configuration, self._shape)
        return self._launches[key]

    def _chosen(self, launch: Launch, batch: int) -> dict[str, Any]:
        if not self._is_split:
            return {"config": launch.config}
        shape, count = self._shape, len(self._pool.batches[batch].lengths)
        seen = min(self._longest[batch], WINDOW) if shape.has_window else self._longest[batch]
        splits = launch.splits_for(count, shape.query_heads, shape.kv_heads, seen, self._processors)
        return {"config": launch.config, "splits": splits}

    @property
    def _is_split(self) -> bool:
        """A decode; what has more queries is not cut."""
        return "splits" in self._takes and self._shape.query_tokens == 1

    def _input(self, batch: Batch, dtype: torch.dtype, device: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "q": batch.queries.to(dtype),
            "tables": torch.from_numpy(batch.tables).to(device),
            "lengths": torch.from_numpy(batch.lengths).to(device),
        }
        if "starts" in self._takes:
            found["starts"] = None if self._is_split else torch.from_numpy(batch.starts).to(device)
        return found

    def _layer(self, device: str) -> dict[str, Any]:
        """What is the same for every launch: the pool, its layout, and the rules of the layer."""
        view, shape = self._pool.store.layers[0], self._shape
        layout = view.layout
        return {
            "data": view.elements,
            "scales": view.scales,
            "sinks": None if self._pool.sinks is None else self._pool.sinks.to(device),
            "window": WINDOW if shape.has_window else NO_WINDOW,
            "scale": self._pool.scale * (view.k_tensor_scale or 1.0),
            "cap": CAP if shape.has_cap else 0.0,
            "v_scale": view.v_tensor_scale or 1.0,
            "kv_heads": layout.kv_heads,
            "k_dim": layout.k_dim,
            "v_dim": layout.v_dim,
            **layout.offsets._asdict(),
        }
