"""Mixture of experts: a router sends every token through a few of many MLPs and weighs what comes back.

Written for being right: one pass over the experts that are hit, in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from kvbench.engine.linear import Linear
from kvbench.engine.mlp import GatedMlp, assemble_gated, clamped_gate
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.engine.parts import Parts
    from kvbench.geometry.model import Experts

Choice = tuple[Tensor, Tensor]
"""Experts `[T, k]` int64 and their weights `[T, k]` float32."""


@dataclass(slots=True)
class Router:
    """`choose` is one of `ROUTERS`; logits and weights are float32 whatever the dtype of the matrices."""

    weight: Tensor
    """`[experts, hidden]` float32"""
    bias: Tensor | None
    """`[experts]` float32"""
    experts: Experts
    choose: Callable[[Tensor, Tensor | None, Experts], Choice]

    def __call__(self, x: Tensor) -> Choice:
        return self.choose(F.linear(x.float(), self.weight), self.bias, self.experts)


@dataclass(slots=True)
class ExpertMlp:
    """Σ over a token's experts of weight · expert(x), plus what all tokens share."""

    router: Router
    experts: Sequence[GatedMlp]
    shared: GatedMlp | None

    def __call__(self, x: Tensor) -> Tensor:
        """`[T, hidden]` → `[T, hidden]` float32."""
        chosen, weights = self.router(x)
        out = torch.zeros(x.shape, device=x.device)
        for index in chosen.unique().tolist():
            token, place = torch.where(chosen == index)
            out.index_add_(0, token, self.experts[index](x[token]).float() * weights[token, place, None])
        return out if self.shared is None else out + self.shared(x)


def _top_k_then_softmax(logits: Tensor, bias: Tensor | None, experts: Experts) -> Choice:
    """gpt-oss: the best logits, weighed among themselves; the bias is part of the logits."""
    best = (logits if bias is None else logits + bias).topk(experts.per_token, dim=-1)
    return best.indices, best.values.softmax(-1)


def _softmax_then_top_k(logits: Tensor, bias: Tensor | None, experts: Experts) -> Choice:
    """DeepSeek-V2: probabilities over all experts; only the groups with the best expert are open."""
    scores = logits.softmax(-1)
    scores = scores.masked_fill(~_open(scores, _grouped(scores, experts).amax(-1), experts), 0.0)
    best = scores.topk(experts.per_token, dim=-1)
    return best.indices, best.values * experts.weight_scale


def _sigmoid_with_correction(logits: Tensor, bias: Tensor | None, experts: Experts) -> Choice:
    """DeepSeek-V3: the correction takes part in choosing, not in weighing; a group counts by its best two."""
    scores = logits.sigmoid()
    ranked = scores if bias is None else scores + bias
    ranked = ranked.masked_fill(~_open(ranked, _grouped(ranked, experts).topk(2).values.sum(-1), experts), -torch.inf)
    chosen = ranked.topk(experts.per_token, dim=-1).indices
    weights = scores.gather(1, chosen)
    if experts.normalises:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * experts.weight_scale


def _grouped(scores: Tensor, experts: Experts) -> Tensor:
    """`[T, groups, experts of a group]`."""
    return scores.unflatten(-1, (experts.groups, -1))


def _open(scores: Tensor, group_scores: Tensor, experts: Experts) -> Tensor:
    """Which experts stand in the best `groups_per_token` groups, bool of the shape of `scores`."""
    best = group_scores.topk(experts.groups_per_token, dim=-1).indices
    is_open = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, best, True)
    return is_open.repeat_interleave(scores.shape[-1] // experts.groups, dim=-1)


ROUTERS: dict[str, Callable[[Tensor, Tensor | None, Experts], Choice]] = {
    "top-k-then-softmax": _top_k_then_softmax,
    "softmax-then-top-k": _softmax_then_top_k,
    "sigmoid-with-correction": _sigmoid_with_correction,
}


def assemble_experts(parts: Parts, prefix: str) -> ExpertMlp:
    """One layer's router and experts from the tensors under `prefix`."""
    experts = parts.geometry.experts
    if experts is None or parts.family.router is None:
        raise InternalError(f"{parts.geometry.name} has no experts")
    is_fused = experts.biased
    router, bias = ("router", "router.bias") if is_fused else ("gate", "gate.e_score_correction_bias")
    has_shared = experts.shared_intermediate_size > 0
    return ExpertMlp(
        router=Router(
            weight=parts.wide(f"{prefix}.{router}.weight"),
            bias=parts.wide(f"{prefix}.{bias}") if experts.router_bias else None,
            experts=experts,
            choose=ROUTERS[parts.family.router],
        ),
        experts=_fused(parts, prefix, experts) if is_fused else _listed(parts, prefix, experts),
        shared=assemble_gated(parts, f"{prefix}.shared_experts") if has_shared else None,
    )


def _listed(parts: Parts, prefix: str, experts: Experts) -> list[GatedMlp]:
    return [assemble_gated(parts, f"{prefix}.experts.{index}") for index in range(experts.routed)]


def _fused(parts: Parts, prefix: str, experts: Experts) -> list[GatedMlp]:
    """gpt-oss stores inputs before outputs, and gate and up in turns."""
    names = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
    stored = [parts.tensor(f"{prefix}.experts.{name}") for name in names]
    gate = clamped_gate(experts.swiglu_alpha, experts.swiglu_limit)
    return [
        GatedMlp(Linear(_apart(up.t()), _apart(up_bias)), Linear(down.t(), down_bias), gate)
        for up, up_bias, down, down_bias in zip(*stored, strict=True)
    ]


def _apart(rows: Tensor) -> Tensor:
    return torch.cat([rows[::2], rows[1::2]])
