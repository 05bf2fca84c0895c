"""The attention kernels of a GPU as something to tune: a page's space, and how many splits a decode is cut into.

The page says which configurations there are and what runs by default. In Triton's interpreter all of this runs on a CPU
too, where its times mean nothing: that is for tests.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from kvbench.engine.attention.triton_configs import SPLITS
from kvbench.errors import UsageError
from kvbench.tune.pages import configurations, default_of, load_page
from kvbench.tune.space import Space

if TYPE_CHECKING:
    from kvbench.tune.space import Value
    from kvbench.tune.triton_batches import PreparedAttention
    from kvbench.tune.tunable import Configuration
    from kvbench_kernels.specs import CompileSpec, KernelShape

SPLIT_COUNTS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
"""0: as many as the decode page's rule makes of batch, context and device"""
LEAST_TOKENS = 64
"""Of a split"""


class DecodeTriton:
    """Tile, warps, stages, head rows and splits of `decode_triton`."""

    name = "decode"
    page = "kvbench_kernels.decode_triton"
    device = "cuda"
    compiler = "triton"
    is_latent = False
    """Whether the kernel is for latent layers, or for all others"""
    has_splits = True

    def space(self, shape: KernelShape, threads: int) -> Space:
        if (shape.kv_heads == 1 and shape.v_dim < shape.k_dim) != self.is_latent:
            other = "prefill or decode" if self.is_latent else "mla"
            raise UsageError(
                f"{self.name} is not the kernel of this layer", hint=f"kvbench tune {other}, or --head-dim"
            )
        found = [asdict(config) for config, reason in configurations(load_page(self.page), shape) if not reason]
        if not self._is_split(shape):
            return Space(tuple(found[0]), tuple(tuple(config.values()) for config in found))
        most = max(1, shape.context // LEAST_TOKENS)
        splits = [count for count in SPLIT_COUNTS if count <= most]
        every = [(*config.values(), count) for config in found for count in splits]
        return Space((*found[0], SPLITS), tuple(every))

    def default(self, shape: KernelShape) -> dict[str, Value]:
        splits: dict[str, Value] = {SPLITS: 0} if self._is_split(shape) else {}
        return {**asdict(default_of(load_page(self.page), shape)), **splits}

    def compile_spec(self, shape: KernelShape, configuration: Configuration) -> CompileSpec | None:
        page = load_page(self.page)
        fields = {name: value for name, value in configuration.items() if name != SPLITS}
        return page.compile_spec(shape, page.Config(**fields))

    def prepare(self, shape: KernelShape, device: str, seed: int) -> PreparedAttention:
        from kvbench.tune.triton_batches import PreparedAttention

        return PreparedAttention(self.page, self.name, shape, device, seed)

    def _is_split(self, shape: KernelShape) -> bool:
        return self.has_splits and shape.query_tokens == 1


class PrefillTriton(DecodeTriton):
    """Rows, tile, warps and stages of `prefill_triton`."""

    name = "prefill"
    page = "kvbench_kernels.prefill_triton"
    has_splits = False


class MlaTriton(DecodeTriton):
    """Rows, tile, warps, stages and, in decode, splits of `mla_triton`."""

    name = "mla"
    page = "kvbench_kernels.mla_triton"
    is_latent = True
