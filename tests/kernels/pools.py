"""The store's pools as the Triton kernels take them: flat torch tensors and offsets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvbench_kernels.offsets import Offsets
from kvbench_kernels.reference import Rule
from tests.attention.batches import Paged


@dataclass(frozen=True)
class FlatPool:
    data: torch.Tensor
    scales: torch.Tensor | None
    tables: torch.Tensor
    lengths: torch.Tensor
    dims: tuple[int, int, int]
    offsets: Offsets


def flat_pool(case: Paged) -> FlatPool:
    """Layer 0 of the case's store and its batch."""
    layout = case.store.layers[0].layout
    plane = case.store.pool.bytes[0].reshape(-1)
    return FlatPool(
        plane.view(layout.element),
        plane.view(torch.float32) if layout.has_scales else None,
        torch.from_numpy(case.batch.block_tables[0]),
        torch.from_numpy(case.batch.context_lengths),
        (layout.kv_heads, layout.k_dim, layout.v_dim),
        layout.offsets,
    )


def rule_of(case: Paged) -> Rule:
    """The case's rule with static scales folded in as launchers expect them."""
    scales = case.store.tensor_scales
    scale = case.rule.scale_for(case.store.layers[0].layout.k_dim) * (scales.k[0] if scales else 1.0)
    return Rule(scale, case.window, case.rule.soft_cap, case.rule.sinks, scales.v[0] if scales else 1.0)
