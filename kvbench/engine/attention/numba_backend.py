"""The CPU device's own backend: decode walks the block table without gathering; prefill is gather + SDPA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvbench.engine.attention.grouped import causal_attention
from kvbench.engine.attention.rule import PLAIN, ScoreRule
from kvbench.engine.attention.staging import stage
from kvbench.tuned.key import layer_label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.layout import BlockLayout
    from kvbench.engine.kvstore.pool import LayerView
    from kvbench.engine.kvstore.store import KVStore


_NO_SINKS = np.empty(0, np.float32)


class NumbaAttention:
    """Paged decode by `kvbench_kernels.decode_numba`; imports numba when it is made."""

    name = "numba"
    stores_by_triton = False

    def __init__(self, tuned: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """`tuned`: label of a layer group (`tuned.key.layer_label`) → fields of a `decode_config.Config`."""
        from kvbench_kernels import decode_config, decode_numba, runtime

        self._default = decode_config.DEFAULT
        self._tuned = {label: decode_config.Config(**fields) for label, fields in (tuned or {}).items()}
        self._configs: dict[int, Any] = {}
        self._kernel, self._parts, self._arguments = decode_numba.decode, runtime.parts, decode_numba.arguments
        self._no_window: int = decode_numba.NO_WINDOW

    def prepare(self, batch: StepBatch, store: KVStore) -> None:
        self._staged = stage(batch, store)
        count = self._staged.num_decodes
        self._lengths = self._staged.lengths[:count]
        self._tables = [tables[:count] for tables in self._staged.tables]
        self._rows = [torch.from_numpy(tables) for tables in self._staged.tables]

    def attend(self, layer: int, q: Tensor, store: KVStore, rule: ScoreRule = PLAIN) -> Tensor:
        staged, view, group = self._staged, store.layers[layer], store.group_of_layer[layer]
        window = staged.windows[group]
        out = torch.empty((*q.shape[:2], view.layout.v_dim))
        if staged.num_decodes:
            self._decode(q[: staged.num_decodes], view, group, rule, out)
            if view.v_tensor_scale is not None:
                out[: staged.num_decodes] *= view.v_tensor_scale
        for piece in staged.pieces:
            rows = slice(piece.start, piece.end)
            k, v = store.gather(layer, self._rows[group][piece.sequence], piece.length, piece.first_seen(window))
            out[rows] = causal_attention(q[rows], k, v, rule, window, is_latent=view.layout.is_latent)
        return out.to(q.dtype)

    def _decode(self, q: Tensor, view: LayerView, group: int, rule: ScoreRule, out: Tensor) -> None:
        layout, window = view.layout, self._staged.windows[group]
        row = layout.k_dim if layout.is_latent else layout.k_dim + layout.v_dim
        config = self._configs.get(group) or self._configured(group, layout, window)
        self._kernel(
            q.float().contiguous().numpy(),
            view.flat,
            view.flat_scales,
            self._tables[group],
            self._lengths,
            _NO_SINKS if rule.sinks is None else rule.sinks.numpy(),
            out.numpy(),
            self._no_window if window is None else window,
            rule.scale_for(layout.k_dim) * (view.k_tensor_scale or 1.0),
            rule.soft_cap,
            layout.kv_heads,
            layout.k_dim,
            layout.v_dim,
            *layout.offsets,
            *self._arguments(config, self._parts(self._staged.decode_tokens[group] * layout.kv_heads * row)),
        )

    def _configured(self, group: int, layout: BlockLayout, window: int | None) -> Any:
        """The group's configuration, looked up once."""
        kind = "latent" if layout.is_latent else "full" if window is None else "window"
        label = layer_label(kind, layout.kv_heads, layout.k_dim, layout.v_dim)
        self._configs[group] = self._tuned.get(label, self._default)
        return self._configs[group]
