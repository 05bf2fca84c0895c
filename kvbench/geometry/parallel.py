"""Tensor parallelism: what one rank holds."""

from __future__ import annotations

from dataclasses import replace

from kvbench.errors import UsageError
from kvbench.geometry.model import Experts, LayerGroup, ModelGeometry
from kvbench.geometry.weights import with_parameters


def split(g: ModelGeometry, tp: int) -> ModelGeometry:
    """The geometry that one of `tp` equal ranks holds, weights counted.

    Query heads, MLP columns and the vocabulary are divided (columns and vocabulary rounded up). KV heads are divided
    while there are enough of them, and beyond that each is replicated on tp ÷ kv_heads ranks. A latent cache, the
    low-rank down-projections, routers and norms are whole on every rank.
    Raises `UsageError` when heads do not divide.
    """
    if tp < 1:
        raise UsageError(f"tensor parallel size {tp} is not positive", hint="1 for a model on one device")
    if tp == 1:
        return g
    if g.query_heads % tp:
        raise UsageError(
            f"{g.query_heads} query heads of {g.name} do not divide among {tp} ranks",
            hint=f"tensor parallel sizes that do: {_divisors(g.query_heads)}",
        )
    rank = replace(
        g,
        query_heads=g.query_heads // tp,
        kv_heads=_heads_per_rank(g.kv_heads, tp, g.name),
        intermediate_size=_share(g.intermediate_size, tp),
        vocab_size=_share(g.vocab_size, tp),
        groups=tuple(_split_group(group, tp, g.name) for group in g.groups),
        experts=_split_experts(g.experts, tp) if g.experts else None,
    )
    return with_parameters(rank)


def kv_replication(g: ModelGeometry, tp: int) -> int:
    """How many ranks hold each KV head (the whole latent cache, for MLA): 1 means that KV is divided fully."""
    return tp // g.kv_heads if tp > g.kv_heads else 1


def _split_group(group: LayerGroup, tp: int, name: str) -> LayerGroup:
    return replace(group, kv_heads=_heads_per_rank(group.kv_heads, tp, name))


def _heads_per_rank(kv_heads: int, tp: int, name: str) -> int:
    if kv_heads % tp and tp % kv_heads:
        raise UsageError(
            f"{kv_heads} KV heads of {name} neither divide among {tp} ranks nor replicate evenly",
            hint="take a tensor parallel size that divides the KV heads, or a multiple of them",
        )
    return max(1, kv_heads // tp)


def _split_experts(experts: Experts, tp: int) -> Experts:
    return replace(
        experts,
        intermediate_size=_share(experts.intermediate_size, tp),
        shared_intermediate_size=_share(experts.shared_intermediate_size, tp),
    )


def _share(size: int, tp: int) -> int:
    return -(-size // tp)


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)
