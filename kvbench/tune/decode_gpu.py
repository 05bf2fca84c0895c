"""The GPU's paged decode, `decode_triton`, as something to tune: its page's space, and the number of splits.

Without a CUDA device its configurations can be checked in Triton's interpreter, and not timed.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError
from kvbench.tune.pages import configurations, default_of, load_page
from kvbench.tune.space import Space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.tune.space import Value
    from kvbench.tune.tunable import Configuration
    from kvbench_kernels.specs import CompileSpec, KernelShape

SPLITS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
"""0: as many as the page's own rule makes of batch, context and device"""
LEAST_TOKENS = 64
"""Of a split"""


class DecodeTriton:
    """Tile, warps, stages, head rows and splits of `decode_triton`; latent layers have a kernel of their own."""

    name = "decode"
    page = "kvbench_kernels.decode_triton"
    device = "cuda"
    compiler = "triton"

    def space(self, shape: KernelShape, threads: int) -> Space:
        if shape.kv_heads == 1 and shape.v_dim < shape.k_dim:
            raise UsageError("a latent layer has a kernel of its own", hint="give --head-dim one number")
        page = load_page(self.page)
        found = [asdict(config) for config, reason in configurations(page, shape) if not reason]
        most = max(1, shape.context // LEAST_TOKENS)
        splits = [count for count in SPLITS if count <= most]
        every = [(*config.values(), count) for config in found for count in splits]
        return Space((*found[0], "splits"), tuple(every))

    def default(self, shape: KernelShape) -> dict[str, Value]:
        return {**asdict(default_of(load_page(self.page), shape)), "splits": 0}

    def compile_spec(self, shape: KernelShape, configuration: Configuration) -> CompileSpec | None:
        page = load_page(self.page)
        fields = {name: value for name, value in configuration.items() if name != "splits"}
        return page.compile_spec(shape, page.Config(**fields))

    def prepare(self, shape: KernelShape, device: str, seed: int) -> PreparedDecode:
        return PreparedDecode(shape, device, seed)


class PreparedDecode:
    """A filled pool, and tables, lengths and queries of its batches on the device."""

    def __init__(self, shape: KernelShape, device: str, seed: int) -> None:
        import torch

        from kvbench.tune.one_layer import bytes_per_call
        from kvbench.tune.pools import QUERY_DTYPES, fill
        from kvbench_kernels import decode_triton

        pool = fill(shape, device, seed)
        dtype = QUERY_DTYPES[shape.query_dtype]
        self._shape, self._pool, self._page = shape, pool, decode_triton
        self._queries = [b.queries.to(dtype) for b in pool.batches]
        self._tables = [torch.from_numpy(b.tables).to(device) for b in pool.batches]
        self._lengths = [torch.from_numpy(b.lengths).to(device) for b in pool.batches]
        self._sinks = None if pool.sinks is None else pool.sinks.to(device)
        self._longest = [int(b.lengths.max()) for b in pool.batches]
        self.outputs: Sequence[Any] = [
            torch.empty((len(b.lengths), shape.query_heads, shape.v_dim), dtype=dtype, device=device)
            for b in pool.batches
        ]
        self.expected: Sequence[Any] = [b.expected for b in pool.batches]
        self.bytes_per_call = bytes_per_call(shape)
        is_cuda = device == "cuda"
        self._processors = torch.cuda.get_device_properties(0).multi_processor_count if is_cuda else 1

    def compile(self, configuration: Configuration) -> None:
        """Triton compiles at the first launch; what its compiler raises tells it from a failed launch."""

    def launch(self, configuration: Configuration, batch: int = 0) -> None:
        from kvbench.tune.one_layer import CAP, WINDOW
        from kvbench_kernels.triton_runtime import NO_WINDOW

        shape, view = self._shape, self._pool.store.layers[0]
        layout = view.layout
        fields: dict[str, Any] = dict(configuration)
        splits = fields.pop("splits")
        config = self._page.Config(**fields)
        seen = min(self._longest[batch], WINDOW) if shape.has_window else self._longest[batch]
        self._page.decode(
            self._queries[batch],
            view.elements,
            view.scales,
            self._tables[batch],
            self._lengths[batch],
            self._sinks,
            self.outputs[batch],
            WINDOW if shape.has_window else NO_WINDOW,
            self._pool.scale * (view.k_tensor_scale or 1.0),
            CAP if shape.has_cap else 0.0,
            view.v_tensor_scale or 1.0,
            layout.kv_heads,
            layout.k_dim,
            layout.v_dim,
            layout.block_size,
            layout.block_elements,
            layout.v_base,
            layout.v_stride,
            layout.block_scales,
            layout.k_scale_base,
            layout.v_scale_base,
            layout.head_rows,
            layout.token_rows,
            splits
            or self._page.splits_for(
                len(self._lengths[batch]), shape.query_heads, shape.kv_heads, seen, self._processors, config
            ),
            config,
        )
