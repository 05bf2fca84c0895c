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
from kvbench.engine.attention.triton_configs import Launch, launch_of
from kvbench.errors import CannotRunError
from kvbench.tuned.kernels import DECODE, KERNELS, LATENT_DECODE, PREFILL
from kvbench.tuned.key import layer_label, prefill_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.layout import BlockLayout
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
        """`tuned`: label of a layer group (`tuned.key.layer_label`), in prefill after `prefill`, → fields of its
        kernel's `Config`, in decode with `splits` (0: by the page's rule). `UsageError`, when the first step comes to
        the group, for one that its kernel cannot run."""
        from kvbench_kernels import decode_triton, mla_triton, prefill_triton, triton_launches, triton_runtime

        self._decode_heads, self._prefill_heads, self._latent = (
            decode_triton.decode,
            prefill_triton.prefill,
            mla_triton.mla,
        )
        self._shape_of = triton_launches.shape_of
        self._is_interpreted = triton_runtime.INTERPRETED
        self._no_window = triton_runtime.NO_WINDOW
        self.name = "triton-interpreted" if self._is_interpreted else "triton"
        self._tuned = dict(tuned or {})
        self._launches: dict[tuple[str, int], Launch] = {}
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
        launch = self._launch(LATENT_DECODE if layout.is_latent else DECODE, q, group, view, arguments)
        seen = min(rows.longest, window or rows.longest)
        splits = launch.splits_for(len(rows.lengths), q.shape[1], layout.kv_heads, seen, _processors(q.device))
        chosen = {"splits": splits, "config": launch.config}
        common = {"tables": rows.tables[group], "lengths": rows.lengths, "out": out, **chosen, **arguments}
        if layout.is_latent:
            self._latent(q, starts=None, **common)
        else:
            self._decode_heads(q, **common)

    def _prefill(
        self, q: Tensor, out: Tensor, rows: Pieces, group: int, view: LayerView, arguments: dict[str, Any]
    ) -> None:
        common = {"tables": rows.tables[group], "lengths": rows.lengths, "starts": rows.starts, "out": out, **arguments}
        if view.layout.is_latent:
            self._latent(q, **common)
        else:
            self._prefill_heads(q, **common, config=self._launch(PREFILL, q, group, view, arguments).config)

    def _launch(self, work: str, q: Tensor, group: int, view: LayerView, arguments: dict[str, Any]) -> Launch:
        """The group's tuned launch, looked up and checked once; the default's where there is none."""
        found = self._launches.get((work, group))
        if found is None:
            fields = self._tuned.get(self._label(work, group, view.layout))
            found = Launch() if fields is None else self._tuned_launch(work, fields, q, group, view, arguments)
            self._launches[work, group] = found
        return found

    def _label(self, work: str, group: int, layout: BlockLayout) -> str:
        kind = "latent" if layout.is_latent else "full" if self._windows[group] is None else "window"
        label = layer_label(kind, layout.kv_heads, layout.k_dim, layout.v_dim)
        return prefill_label(label) if work == PREFILL else label

    def _tuned_launch(
        self, work: str, fields: Mapping[str, Any], q: Tensor, group: int, view: LayerView, arguments: dict[str, Any]
    ) -> Launch:
        layout, has_window = view.layout, self._windows[group] is not None
        sizes = (layout.kv_heads, layout.k_dim, layout.v_dim, layout.block_size)
        tokens = 0 if work == PREFILL else 1
        shape = self._shape_of(q, view.elements, view.scales, *sizes, has_window, arguments["cap"] > 0, tokens)
        return launch_of(KERNELS["triton"][work].page, fields, shape)

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
            **layout.offsets._asdict(),
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


@lru_cache
def _processors(device: torch.device) -> int:
    """Multiprocessors; one where the interpreter runs program after program."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
