"""The GPU's backend: decode, prefill and latent attention by the Triton kernels, which walk the block tables.

Tables, lengths and the starts of prefill pieces cross to the device once a step, in one copy. On a CPU the kernels run
in Triton's interpreter, thousands of times slower: that is for tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvbench.engine.attention.rule import PLAIN, ScoreRule
from kvbench.engine.attention.staging import stage
from kvbench.errors import CannotRunError
from kvbench.tuned.key import layer_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.pool import LayerView
    from kvbench.engine.kvstore.store import KVStore

_ALIGNED = 4
"""int32 numbers in 16 bytes, where every part of a staged copy begins: an address that is no multiple of 16 would be
another variant of the kernel."""


@dataclass(slots=True)
class Rows:
    """Decodes of one launch, on the device: `tables` int32 `[S, width]` for each group, `lengths` int32 `[S]`.
    `longest`: tokens of the longest context that there can be."""

    tables: list[Tensor]
    lengths: Tensor
    longest: int


@dataclass(slots=True)
class Pieces:
    """Prefill pieces of one launch: rows [starts[i], starts[i + 1]) of theirs are the last tokens of context i."""

    tables: list[Tensor]
    lengths: Tensor
    starts: Tensor


class TritonAttention:
    """Imports triton when it is made; `CannotRunError` where its kernels cannot run."""

    stores_by_triton = True

    def __init__(self, tuned: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """`tuned`: label of a layer group (`tuned.key.layer_label`) → fields of a decode `Config`, and `splits`, 0 for
        the page's own rule."""
        from kvbench_kernels import decode_triton, mla_triton, prefill_triton, triton_runtime

        self._decode_heads, self._splits_for = decode_triton.decode, decode_triton.splits_for
        self._prefill_heads, self._latent = prefill_triton.prefill, mla_triton.mla
        self._is_interpreted = triton_runtime.INTERPRETED
        self._no_window = triton_runtime.NO_WINDOW
        self.name = "triton-interpreted" if self._is_interpreted else "triton"
        self._tuned = {label: _configured(decode_triton.Config, fields) for label, fields in (tuned or {}).items()}
        self._decodes: Rows | None = None
        self._pieces: Pieces | None = None
        self._windows: tuple[int | None, ...] = ()

    def prepare(self, batch: StepBatch, store: KVStore) -> None:
        staged = stage(batch, store)
        count = staged.num_decodes
        starts = batch.query_starts[count:] - batch.query_starts[count]
        parts = [staged.lengths[:count], staged.lengths[count:], starts]
        parts += [tables[:count] for tables in staged.tables] + [tables[count:] for tables in staged.tables]
        decode_lengths, piece_lengths, piece_starts, *tables = to_device(parts, store.device)
        groups = len(tables) // 2
        longest = int(staged.lengths[:count].max(initial=0))
        self.use(
            store,
            Rows(tables[:groups], decode_lengths, longest) if count else None,
            Pieces(tables[groups:], piece_lengths, piece_starts) if staged.pieces else None,
        )

    def use(self, store: KVStore, decodes: Rows | None, pieces: Pieces | None = None) -> None:
        """Attend to these from now on: decodes are the first rows of q, pieces the rest."""
        if store.device.type == "cpu" and not self._is_interpreted:
            raise CannotRunError(
                "the Triton kernels were loaded for a GPU, and this store is in host memory",
                hint='set TRITON_INTERPRET=1 before the start, or attention = "numba"',
            )
        self._decodes, self._pieces = decodes, pieces
        self._windows = tuple(piece.group.window for piece in store.pieces)

    def attend(self, layer: int, q: Tensor, store: KVStore, rule: ScoreRule = PLAIN) -> Tensor:
        view, group = store.layers[layer], store.group_of_layer[layer]
        out = torch.empty((*q.shape[:2], view.layout.v_dim), dtype=q.dtype, device=q.device)
        arguments = self._arguments(view, self._windows[group], rule)
        count = 0 if self._decodes is None else len(self._decodes.lengths)
        if self._decodes is not None:
            self._decode(q[:count], out[:count], self._decodes, group, view, arguments)
        if self._pieces is not None:
            self._prefill(q[count:], out[count:], self._pieces, group, view, arguments)
        return out

    def _decode(
        self, q: Tensor, out: Tensor, rows: Rows, group: int, view: LayerView, arguments: dict[str, Any]
    ) -> None:
        layout, window = view.layout, self._windows[group]
        seen = min(rows.longest, window or rows.longest)
        shape = (len(rows.lengths), q.shape[1], layout.kv_heads, seen, _processors(q.device))
        label = layer_label("full" if window is None else "window", layout.kv_heads, layout.k_dim, layout.v_dim)
        if label in self._tuned and not layout.is_latent:
            config, splits = self._tuned[label]
            arguments = {**arguments, "config": config}
            splits = splits or self._splits_for(*shape, config)
        else:
            splits = self._splits_for(*shape)
        common = {"tables": rows.tables[group], "lengths": rows.lengths, "out": out, "splits": splits, **arguments}
        if view.layout.is_latent:
            self._latent(q, starts=None, **common)
        else:
            self._decode_heads(q, **common)

    def _prefill(
        self, q: Tensor, out: Tensor, rows: Pieces, group: int, view: LayerView, arguments: dict[str, Any]
    ) -> None:
        launch = self._latent if view.layout.is_latent else self._prefill_heads
        launch(q, tables=rows.tables[group], lengths=rows.lengths, starts=rows.starts, out=out, **arguments)

    def _arguments(self, view: LayerView, window: int | None, rule: ScoreRule) -> dict[str, Any]:
        """What every launch takes; a static scale of K goes into the score's, V's onto the result."""
        layout = view.layout
        return {
            "data": view.elements,
            "scales": view.scales,
            "sinks": rule.sinks,
            "window": self._no_window if window is None else window,
            "scale": rule.scale_for(layout.k_dim) * (view.k_tensor_scale or 1.0),
            "cap": rule.soft_cap,
            "v_scale": view.v_tensor_scale or 1.0,
            "kv_heads": layout.kv_heads,
            "k_dim": layout.k_dim,
            "v_dim": layout.v_dim,
            "block_size": layout.block_size,
            "block_elements": layout.block_elements,
            "v_base": layout.v_base,
            "v_stride": layout.v_stride,
            "block_scales": layout.block_scales,
            "k_scale_base": layout.k_scale_base,
            "v_scale_base": layout.v_scale_base,
            "head_rows": layout.head_rows,
            "token_rows": layout.token_rows,
        }


def to_device(parts: Sequence[NDArray[np.int32]], device: torch.device) -> list[Tensor]:
    """int32 arrays as tensors of the device, in one copy; each begins on a multiple of 16 bytes."""
    starts = np.cumsum([0, *(-(-part.size // _ALIGNED) * _ALIGNED for part in parts)])
    packed = np.zeros(starts[-1], np.int32)
    for part, start in zip(parts, starts, strict=False):
        packed[start : start + part.size] = part.reshape(-1)
    there = torch.from_numpy(packed).to(device)
    return [
        there[start : start + part.size].view(part.shape) for part, start in zip(parts, starts.tolist(), strict=False)
    ]


def _configured(make: Any, fields: Mapping[str, Any]) -> tuple[Any, int]:
    """A page's configuration, and the number of splits."""
    return make(**{name: value for name, value in fields.items() if name != "splits"}), int(fields.get("splits", 0))


@lru_cache
def _processors(device: torch.device) -> int:
    """Multiprocessors; one where the interpreter runs program after program."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
