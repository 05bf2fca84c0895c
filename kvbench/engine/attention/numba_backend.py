"""The CPU device's own backend: decode walks the block table without gathering; prefill is gather + SDPA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from kvbench.engine.attention.grouped import causal_attention
from kvbench.engine.attention.staging import stage

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.pool import LayerView
    from kvbench.engine.kvstore.store import KVStore


class NumbaAttention:
    """Paged decode by `kvbench_kernels.decode_numba`; imports numba when it is made."""

    name = "numba"

    def __init__(self) -> None:
        from kvbench_kernels import decode_numba, runtime

        self._kernel, self._parts = decode_numba.decode, runtime.parts

    def prepare(self, batch: StepBatch, store: KVStore) -> None:
        self._staged = stage(batch, store)
        count = self._staged.num_decodes
        self._lengths = self._staged.lengths[:count]
        self._tables = [tables[:count] for tables in self._staged.tables]
        self._rows = [torch.from_numpy(tables) for tables in self._staged.tables]

    def attend(self, layer: int, q: Tensor, store: KVStore) -> Tensor:
        staged, view, group = self._staged, store.layers[layer], store.group_of_layer[layer]
        out = torch.empty((*q.shape[:2], view.layout.v_dim))
        if staged.num_decodes:
            self._decode(q[: staged.num_decodes], view, self._tables[group], out)
        for piece in staged.pieces:
            k, v = store.gather(layer, self._rows[group][piece.sequence], piece.length)
            out[piece.start : piece.end] = causal_attention(q[piece.start : piece.end], k, v)
        return out.to(q.dtype)

    def _decode(
        self, q: Tensor, view: LayerView, tables: np.ndarray[tuple[int, int], np.dtype[np.int32]], out: Tensor
    ) -> None:
        layout = view.layout
        elements = self._staged.decode_tokens * layout.kv_heads * (layout.k_dim + layout.v_dim)
        self._kernel(
            q.float().contiguous().numpy(),
            view.flat,
            view.flat_scales,
            tables,
            self._lengths,
            out.numpy(),
            layout.kv_heads,
            layout.k_dim,
            layout.v_dim,
            layout.block_size,
            layout.block_elements,
            layout.v_base,
            layout.block_scales,
            layout.k_scale_base,
            layout.v_scale_base,
            self._parts(elements),
        )
