"""The CPU's paged decode, `decode_numba`, as something to tune."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError
from kvbench.tune.space import Space
from kvbench_kernels import decode_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.tune.space import Value
    from kvbench.tune.tunable import Configuration
    from kvbench_kernels.specs import CompileSpec, KernelShape


class DecodeNumba:
    """Split, tile and threads of `decode_numba`."""

    name = "decode_numba"
    page = "kvbench_kernels.decode_numba"
    device = "cpu"
    compiler = "numba"

    def space(self, shape: KernelShape, threads: int) -> Space:
        if shape.query_tokens != 1:
            raise UsageError("decode has one query token per sequence", hint="leave --query-tokens out")
        if shape.query_dtype != "fp32":
            raise UsageError(
                f"decode_numba computes with fp32 queries, not {shape.query_dtype}", hint="--query-dtype fp32"
            )
        values = decode_config.space(threads if _is_parallel(shape) else 1)
        return Space.of(values, [lambda found: decode_config.allowed(found) is None])

    def default(self, shape: KernelShape) -> dict[str, Value]:
        return asdict(decode_config.DEFAULT)

    def compile_spec(self, shape: KernelShape, configuration: Configuration) -> CompileSpec | None:
        return None

    def prepare(self, shape: KernelShape, device: str, seed: int) -> PreparedDecode:
        return PreparedDecode(shape, seed)


def _is_parallel(shape: KernelShape) -> bool:
    """Whether a call is worth more than one thread at all."""
    from kvbench_kernels.runtime import PARALLEL_ELEMENTS

    return shape.batch * shape.context * shape.kv_heads * (shape.k_dim + shape.v_dim) >= PARALLEL_ELEMENTS


class PreparedDecode:
    """A filled pool and the kernel's arguments for its two batches."""

    def __init__(self, shape: KernelShape, seed: int) -> None:
        import torch

        from kvbench.tune.one_layer import bytes_per_call
        from kvbench.tune.pools import fill
        from kvbench_kernels import decode_numba, runtime

        pool = fill(shape, "cpu", seed)
        self._shape, self._pool, self._kernel, self._parts = shape, pool, decode_numba, runtime.parts
        self.outputs: Sequence[Any] = [
            torch.empty((len(b.lengths), shape.query_heads, shape.v_dim)) for b in pool.batches
        ]
        v_scale = pool.store.layers[0].v_tensor_scale or 1.0  # the engine multiplies by it afterwards
        self.expected: Sequence[Any] = [b.expected / v_scale for b in pool.batches]
        self.bytes_per_call = bytes_per_call(shape)

    def compile(self, configuration: Configuration) -> None:
        """A launch without sequences compiles the variant and computes nothing."""
        self._call(configuration, 0, count=0)

    def launch(self, configuration: Configuration, batch: int = 0) -> None:
        self._call(configuration, batch)

    def _call(self, configuration: Configuration, batch: int, count: int | None = None) -> None:
        import numpy as np

        from kvbench.tune.one_layer import CAP, WINDOW

        config = decode_config.Config(**configuration)  # type: ignore[arg-type]
        shape, pool, part = self._shape, self._pool, slice(0, count)
        view, own = pool.store.layers[0], pool.batches[batch]
        layout, lengths = view.layout, own.lengths[part]
        sinks = np.empty(0, np.float32) if pool.sinks is None else pool.sinks.numpy()
        row = layout.k_dim if layout.is_latent else layout.k_dim + layout.v_dim
        self._kernel.decode(
            own.queries[part].numpy(),
            view.flat,
            view.flat_scales,
            own.tables[part],
            lengths,
            sinks,
            self.outputs[batch][part].numpy(),
            WINDOW if shape.has_window else self._kernel.NO_WINDOW,
            pool.scale * (view.k_tensor_scale or 1.0),
            CAP if shape.has_cap else 0.0,
            layout.kv_heads,
            layout.k_dim,
            layout.v_dim,
            *layout.offsets,
            *self._kernel.arguments(config, self._parts(int(lengths.sum()) * layout.kv_heads * row)),
        )
