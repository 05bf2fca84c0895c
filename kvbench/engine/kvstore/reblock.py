"""Re-cutting a pool in its own memory: plane by plane, what is kept goes through a staging buffer.

A plane is one layer of every block. Its kept units are copied out of the old blocks, then into the new ones, which lie
in the same bytes; so beside the pool there is never more than the kept part of one plane. The pool never grows: it
holds as many new blocks as fit into what its old blocks had, and the null block, which is larger when blocks are, may
cost one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.cache.reblock import Moves
    from kvbench.engine.kvstore.pool import LayerView


def take_units(view: LayerView, moves: Moves, unit: int) -> list[Tensor]:
    """Copies of the units that leave a layer's old blocks, `[n, kv_heads, unit, …]` for each part."""
    return [_taken(part, moves.source, moves.source_unit, unit) for part in _parts(view)]


def put_units(view: LayerView, moves: Moves, unit: int, taken: list[Tensor]) -> None:
    """Put them where they belong in the layer's new blocks."""
    for part, staged in zip(_parts(view), taken, strict=True):
        units = part.unflatten(2, (-1, unit))
        if part.is_cuda:
            at = torch.from_numpy(moves.target).to(part.device), torch.from_numpy(moves.target_unit).to(part.device)
            units[at[0], :, at[1]] = staged
        else:
            units.numpy()[moves.target, :, moves.target_unit] = staged.numpy()


def _taken(part: Tensor, blocks: np.ndarray, units: np.ndarray, unit: int) -> Tensor:
    cut = part.unflatten(2, (-1, unit))
    if part.is_cuda:
        at = torch.from_numpy(blocks).to(part.device), torch.from_numpy(units).to(part.device)
        found: Tensor = cut[at[0], :, at[1]]
        return found
    return torch.from_numpy(cut.numpy()[blocks, :, units])


def _parts(view: LayerView) -> list[Tensor]:
    """K, V and their scales as whole numbers of the same width, which every device can index; a latent layer's V is
    part of its K."""
    parts = [view.k, view.k_scale] if view.layout.is_latent else [view.k, view.v, view.k_scale, view.v_scale]
    return [_as_bits(part) for part in parts if part is not None]


def _as_bits(part: Tensor) -> Tensor:
    return part.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[part.element_size()])
