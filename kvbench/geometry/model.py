"""What a model's KV cache looks like: layer groups, heads, and the rest that decides bytes and speed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

GroupKind = Literal["full", "window", "latent"]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that cache alike.

    `full` and `window` keep K (`kv_heads × k_head_dim`) and V (`kv_heads × v_head_dim`) per token;
    `latent` (MLA) keeps one vector of `k_head_dim` = kv_lora_rank + qk_rope_head_dim elements, `kv_heads` 1 and
    `v_head_dim` 0, for K and V together. `window` is the number of tokens a query sees, itself included.
    """

    kind: GroupKind
    layers: tuple[int, ...]
    kv_heads: int
    k_head_dim: int
    v_head_dim: int
    window: int | None = None

    @property
    def elements_per_token_and_layer(self) -> int:
        return self.kv_heads * (self.k_head_dim + self.v_head_dim)


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Multi-head latent attention: the low ranks and the head dims on both sides of the up-projection.

    `q_lora_rank` None projects the queries directly.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture-of-experts MLP in every layer from `first_layer` on; the layers before it are dense.

    `intermediate_size` is one routed expert's; `shared_intermediate_size` that of all shared experts together, 0
    for none. `biased` experts carry bias vectors; `router_bias` is one number per expert.

    A token takes its experts from the best `groups_per_token` of `groups` equal groups. Their weights are scaled by
    `weight_scale`, after being divided by their sum if `normalises`. `swiglu_alpha` and `swiglu_limit` are the clamped
    gate's of gpt-oss.
    """

    routed: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    first_layer: int = 0
    biased: bool = False
    router_bias: bool = False
    groups: int = 1
    groups_per_token: int = 1
    weight_scale: float = 1.0
    normalises: bool = False
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """A decoder-only transformer by its numbers; torch-free.

    `family` is the Hugging Face `model_type`. `rope_scaling` is the dict of `config.json` as it stands, None for plain
    rotary embeddings; `rope_local_theta` is the base of window layers where it differs.
    `rope_interleaved`: checkpoints pair element 2i with 2i + 1, not i with i + d/2.
    `query_scalar`: scores are divided by its root, None for the head size. `score_cap` and `logit_cap` make of a score
    or a logit x: cap · tanh(x / cap).
    `attention_bias` is a bias on q, k and v, `output_bias` one on o: qwen2 has the first without the second.
    `parameters` is the exact weight count (`geometry/weights.py`), `active_parameters` those one token passes.
    """

    name: str
    family: str
    source: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    groups: tuple[LayerGroup, ...]
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = field(default=None, hash=False)
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_sinks: bool = False
    norms_per_layer: int = 2
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    rope_local_theta: float | None = None
    rope_interleaved: bool = False
    query_scalar: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    latent: LatentShape | None = None
    experts: Experts | None = None
    parameters: int | None = None
    active_parameters: int | None = None

    @property
    def attention_mode(self) -> str:
        """mha, gqa, mqa or mla, with `+window` where some layer has one."""
        if any(g.kind == "latent" for g in self.groups):
            mode = "mla"
        elif self.kv_heads == self.query_heads:
            mode = "mha"
        else:
            mode = "mqa" if self.kv_heads == 1 else "gqa"
        return mode + ("+window" if any(g.kind == "window" for g in self.groups) else "")


def single_layer(
    name: str, source: str, group: LayerGroup, query_heads: int, max_context: int, latent: LatentShape | None = None
) -> ModelGeometry:
    """One attention layer and nothing else, for those who time or tune a kernel."""
    return ModelGeometry(
        name=name,
        family="llama",
        source=source,
        num_layers=1,
        hidden_size=query_heads * group.k_head_dim,
        intermediate_size=1,
        query_heads=query_heads,
        kv_heads=group.kv_heads,
        head_dim=group.k_head_dim,
        vocab_size=1,
        max_context=max_context,
        groups=(group,),
        latent=latent,
    )
