"""Attention with K and V heads of their own (MHA, GQA, MQA): from the normed residual stream to Q, K, V and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvbench.engine.attention.rule import ScoreRule
from kvbench.engine.linear import Linear
from kvbench.engine.norm import RmsNorm
from kvbench.engine.rope import pair_neighbours, rotate_

if TYPE_CHECKING:
    from kvbench.engine.parts import Parts


@dataclass(slots=True)
class HeadsAttention:
    """One layer. `is_local` layers rotate by the angles of window layers."""

    query_heads: int
    kv_heads: int
    head_dim: int
    qkv: Linear
    """hidden → (query_heads + 2 · kv_heads) · head_dim, Q and K with rotary pairs as neighbours"""
    qk_norm: RmsNorm | None
    """A weight per head of Q and K, `[query_heads + kv_heads, head_dim]` (qwen3, gemma3)"""
    out: Linear
    rule: ScoreRule
    is_local: bool

    def project(self, x: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `[T, hidden]` → Q `[T, query_heads, d]`, K and V `[T, kv_heads, d]`, rotated, in the dtype of x."""
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        qk, v = qkv[:, : -self.kv_heads], qkv[:, -self.kv_heads :]
        wide = qk.float()
        if self.qk_norm is not None:
            wide = self.qk_norm(wide)
        rotate_(wide, rotations)
        qk = wide.to(qkv.dtype)
        return qk[:, : self.query_heads], qk[:, self.query_heads :], v

    def output(self, attended: Tensor) -> Tensor:
        """`[T, query_heads, d]` → `[T, hidden]`."""
        return self.out(attended.flatten(1))


def assemble_heads(parts: Parts, prefix: str, layer: int) -> HeadsAttention:
    """One layer's attention from the tensors under `prefix`."""
    g = parts.geometry
    is_windowed = any(group.window is not None and layer in group.layers for group in g.groups)
    rule = ScoreRule(
        scale=(g.query_scalar or g.head_dim) ** -0.5,
        soft_cap=g.score_cap or 0.0,
        sinks=parts.wide(f"{prefix}.sinks") if g.attention_sinks else None,
    )
    return HeadsAttention(
        query_heads=g.query_heads,
        kv_heads=g.kv_heads,
        head_dim=g.head_dim,
        qkv=_qkv(parts, prefix),
        qk_norm=_qk_norm(parts, prefix) if g.qk_norm else None,
        out=parts.linear(f"{prefix}.o_proj"),
        rule=rule,
        is_local=g.rope_local_theta is not None and is_windowed,
    )


def _qkv(parts: Parts, prefix: str) -> Linear:
    d = parts.geometry.head_dim

    def joined(kind: str) -> Tensor:
        q, k, v = (parts.tensor(f"{prefix}.{x}_proj.{kind}") for x in "qkv")
        return torch.cat([pair_neighbours(q, d), pair_neighbours(k, d), v])

    return Linear(joined("weight"), joined("bias") if parts.geometry.attention_bias else None)


def _qk_norm(parts: Parts, prefix: str) -> RmsNorm:
    g = parts.geometry
    rows = [
        pair_neighbours(parts.norm_weight(f"{prefix}.{x}_norm"), g.head_dim).expand(heads, -1)
        for x, heads in (("q", g.query_heads), ("k", g.kv_heads))
    ]
    return RmsNorm(torch.cat(rows), g.rms_norm_eps)
