"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): K and V of all heads are up-projections of one low-rank
vector a token, and that vector is what the cache keeps, with one rotated key that all heads share.

The up-projection of K is absorbed into the queries and that of V into the output, so attention runs over the latent
rows themselves, as one KV head whose V is the front of its K, in decode and in prefill alike:

    q_h · k_h = q_nope_h · (U_h c) + q_rope_h · k_rope = (U_hᵀ q_nope_h) · c + q_rope_h · k_rope
    Σ_t p_t (W_h c_t) = W_h Σ_t p_t c_t
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvbench.engine.attention.rule import ScoreRule
from kvbench.engine.linear import Linear
from kvbench.engine.rope import pair_neighbours, rotate_
from kvbench.engine.rope_scaling import latent_gain

if TYPE_CHECKING:
    from kvbench.engine.norm import RmsNorm
    from kvbench.engine.parts import Parts
    from kvbench.geometry.model import LatentShape

NORM_EPS = 1e-6
"""Of the norms over low ranks: no config says it."""


@dataclass(slots=True)
class LatentQuery:
    """hidden → query_heads · (nope + rope), by way of a low rank where `down` is there."""

    down: Linear | None
    norm: RmsNorm | None
    up: Linear

    def __call__(self, x: Tensor) -> Tensor:
        if self.down is None or self.norm is None:
            return self.up(x)
        return self.up(self.norm(self.down(x).float()).to(x.dtype))


@dataclass(slots=True)
class LatentAttention:
    """One layer. Rotary pairs are neighbours in the last `rope` rows of each head and of `kv_down`."""

    query_heads: int
    rank: int
    nope: int
    query: LatentQuery
    kv_down: Linear
    """hidden → rank + rope"""
    kv_norm: RmsNorm
    key_up: Tensor
    """U `[query_heads, nope, rank]`"""
    value_up: Tensor
    """W transposed, `[query_heads, rank, v_head_dim]`"""
    out: Linear
    rule: ScoreRule
    is_local: bool = False

    def project(self, x: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `[T, hidden]` → Q `[T, query_heads, rank + rope]`, K `[T, 1, rank + rope]`, and V with no elements."""
        q = self.query(x).unflatten(-1, (self.query_heads, -1))
        down = self.kv_down(x)
        latent = self.kv_norm(down[:, : self.rank].float()).to(x.dtype)
        turned = torch.cat([q[..., self.nope :], down[:, None, self.rank :]], dim=1).float()
        rotate_(turned, rotations)
        turned = turned.to(x.dtype)
        absorbed = torch.bmm(q[..., : self.nope].transpose(0, 1), self.key_up).transpose(0, 1)
        k = torch.cat([latent[:, None], turned[:, self.query_heads :]], dim=-1)
        return torch.cat([absorbed, turned[:, : self.query_heads]], dim=-1), k, k[..., :0]

    def output(self, attended: Tensor) -> Tensor:
        """`[T, query_heads, rank]` → `[T, hidden]`."""
        values = torch.bmm(attended.transpose(0, 1), self.value_up).transpose(0, 1)
        return self.out(values.flatten(1))


def assemble_latent(parts: Parts, shape: LatentShape, prefix: str) -> LatentAttention:
    """One layer's attention from the tensors under `prefix`."""
    g = parts.geometry
    up = parts.tensor(f"{prefix}.kv_b_proj.weight").unflatten(0, (g.query_heads, -1))
    width = shape.qk_nope_head_dim + shape.qk_rope_head_dim
    return LatentAttention(
        query_heads=g.query_heads,
        rank=shape.kv_lora_rank,
        nope=shape.qk_nope_head_dim,
        query=_query(parts, shape, prefix),
        kv_down=_turned(parts, f"{prefix}.kv_a_proj_with_mqa", 1, shape.qk_rope_head_dim),
        kv_norm=parts.norm(f"{prefix}.kv_a_layernorm", NORM_EPS),
        key_up=up[:, : shape.qk_nope_head_dim].contiguous(),
        value_up=up[:, shape.qk_nope_head_dim :].transpose(1, 2).contiguous(),
        out=parts.linear(f"{prefix}.o_proj"),
        rule=ScoreRule(scale=width**-0.5 * latent_gain(g)),
    )


def _query(parts: Parts, shape: LatentShape, prefix: str) -> LatentQuery:
    heads, rope = parts.geometry.query_heads, shape.qk_rope_head_dim
    if shape.q_lora_rank is None:
        return LatentQuery(None, None, _turned(parts, f"{prefix}.q_proj", heads, rope))
    down, norm = parts.linear(f"{prefix}.q_a_proj"), parts.norm(f"{prefix}.q_a_layernorm", NORM_EPS)
    return LatentQuery(down, norm, _turned(parts, f"{prefix}.q_b_proj", heads, rope))


def _turned(parts: Parts, name: str, heads: int, rope: int) -> Linear:
    """A projection whose last `rope` rows of each head are rotated: rotary pairs side by side, as V2 stores them."""

    def rows(tensor: Tensor) -> Tensor:
        if parts.geometry.rope_interleaved:
            return tensor
        by_head = tensor.unflatten(0, (heads, -1))
        tail = torch.stack([pair_neighbours(head, rope) for head in by_head[:, -rope:]])
        return torch.cat([by_head[:, :-rope], tail], dim=1).flatten(0, 1)

    bias = rows(parts.tensor(f"{name}.bias")) if parts.has(f"{name}.bias") else None
    return Linear(rows(parts.tensor(f"{name}.weight")), bias)
