"""Every weight matrix of a model by shape, counted exactly: totals, what one token passes, and bytes by dtype.

The shapes are those of the published checkpoints (Hugging Face names). Vision towers and multi-token-prediction
modules are not counted: no KV cache is served from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from kvbench.geometry.dtypes import storage_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.geometry.model import Experts, LatentShape, ModelGeometry

Part = Literal["embedding", "attention", "mlp", "norm", "head"]

QUANTISED = frozenset({"fp8_e4m3", "fp8_e5m2", "int8", "int4"})
INT4_GROUP = 128
"""Inputs that share one scale in int4 weights, the usual choice of GPTQ and AWQ checkpoints."""


@dataclass(frozen=True, slots=True)
class Weight:
    """`copies` equal tensors of `rows × columns` (a vector has one column); `active` of them are used per token.

    `is_linear` marks the matrices that weight quantisation replaces; embeddings, the output head, routers, norms and
    biases keep 16 bits in published quantised checkpoints.
    """

    name: str
    part: Part
    rows: int
    columns: int
    copies: int
    active: int
    is_linear: bool

    @property
    def elements(self) -> int:
        return self.rows * self.columns * self.copies

    @property
    def active_elements(self) -> int:
        return self.rows * self.columns * self.active


def weights_of(g: ModelGeometry) -> tuple[Weight, ...]:
    """The inventory of one model, or of one rank when `g` comes from `split`."""
    attention = _latent_attention(g, g.latent) if g.latent else _attention(g)
    return (*_ends(g), *attention, *_norms(g), *_mlp(g))


def parameter_count(g: ModelGeometry) -> int:
    """Number of weights, tied embeddings once."""
    return sum(w.elements for w in weights_of(g))


def active_parameter_count(g: ModelGeometry) -> int:
    """Weights that one token is multiplied with: its own experts, and no input embedding, which is a look-up."""
    return sum(w.active_elements for w in weights_of(g))


def with_parameters(g: ModelGeometry) -> ModelGeometry:
    """The geometry with `parameters` and `active_parameters` filled in."""
    return replace(g, parameters=parameter_count(g), active_parameters=active_parameter_count(g))


def weight_bytes(g: ModelGeometry, dtype: str) -> int:
    """Bytes of all weights stored as `dtype`, scales included.

    fp8 and int8: linear layers one byte an element and one float32 scale per output row. int4: half a byte and one
    16-bit scale per row and group of 128 inputs. Everything else of a quantised model stays at 16 bits.
    """
    return sum(weight_bytes_by_part(g, dtype).values())


def weight_bytes_by_part(g: ModelGeometry, dtype: str) -> dict[Part, int]:
    """`weight_bytes` by embedding, attention, mlp, norm and head; parts sum to the whole."""
    name = storage_dtype(dtype).name
    parts: dict[Part, int] = {}
    for w in weights_of(g):
        parts[w.part] = parts.get(w.part, 0) + _bytes(w, name)
    return parts


def _bytes(w: Weight, dtype: str) -> int:
    per_element = storage_dtype(dtype).bytes_per_element
    if dtype not in QUANTISED:
        return int(w.elements * per_element)
    if not w.is_linear:
        return w.elements * 2
    row = _round_up(w.columns * per_element) + _row_scale_bytes(w.columns, dtype)
    return row * w.rows * w.copies


def _row_scale_bytes(columns: int, dtype: str) -> int:
    return 2 * -(-columns // INT4_GROUP) if dtype == "int4" else 4


def _round_up(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _matrix(name: str, part: Part, rows: int, columns: int, copies: int, active: int | None = None) -> Weight:
    return Weight(name, part, rows, columns, copies, copies if active is None else active, is_linear=True)


def _plain(name: str, part: Part, rows: int, columns: int, copies: int, active: int | None = None) -> Weight:
    return Weight(name, part, rows, columns, copies, copies if active is None else active, is_linear=False)


def _ends(g: ModelGeometry) -> Iterator[Weight]:
    yield _plain("embed_tokens", "embedding", g.vocab_size, g.hidden_size, 1, active=int(g.tie_word_embeddings))
    if not g.tie_word_embeddings:
        yield _plain("lm_head", "head", g.vocab_size, g.hidden_size, 1)


def _attention(g: ModelGeometry) -> Iterator[Weight]:
    n, q, kv = g.num_layers, g.query_heads * g.head_dim, g.kv_heads * g.head_dim
    for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
        yield _matrix(name, "attention", rows, g.hidden_size, n)
        if g.attention_bias:
            yield _plain(f"{name}.bias", "attention", rows, 1, n)
    yield from _output(g, q)
    if g.attention_sinks:
        yield _plain("sinks", "attention", g.query_heads, 1, n)


def _latent_attention(g: ModelGeometry, latent: LatentShape) -> Iterator[Weight]:
    n, hidden = g.num_layers, g.hidden_size
    q_rows = g.query_heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    down = [("kv_a_proj_with_mqa", latent.kv_lora_rank + latent.qk_rope_head_dim)]
    if latent.q_lora_rank is None:
        yield _matrix("q_proj", "attention", q_rows, hidden, n)
    else:
        down.append(("q_a_proj", latent.q_lora_rank))
        yield _matrix("q_b_proj", "attention", q_rows, latent.q_lora_rank, n)
        yield _plain("q_a_layernorm", "norm", latent.q_lora_rank, 1, n)
    for name, rows in down:
        yield _matrix(name, "attention", rows, hidden, n)
        if g.attention_bias:
            yield _plain(f"{name}.bias", "attention", rows, 1, n)
    yield _plain("kv_a_layernorm", "norm", latent.kv_lora_rank, 1, n)
    up = g.query_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    yield _matrix("kv_b_proj", "attention", up, latent.kv_lora_rank, n)
    yield from _output(g, g.query_heads * latent.v_head_dim)


def _output(g: ModelGeometry, columns: int) -> Iterator[Weight]:
    yield _matrix("o_proj", "attention", g.hidden_size, columns, g.num_layers)
    if g.output_bias:
        yield _plain("o_proj.bias", "attention", g.hidden_size, 1, g.num_layers)


def _norms(g: ModelGeometry) -> Iterator[Weight]:
    yield _plain("layernorm", "norm", g.hidden_size, 1, g.norms_per_layer * g.num_layers + 1)
    if g.qk_norm:
        yield _plain("q_norm, k_norm", "norm", g.head_dim, 1, 2 * g.num_layers)


def _mlp(g: ModelGeometry) -> Iterator[Weight]:
    dense = g.num_layers if g.experts is None else g.experts.first_layer
    if dense:
        yield from _gated_mlp("mlp", g.hidden_size, g.intermediate_size, dense, dense, g.mlp_bias)
    if g.experts is not None:
        yield from _expert_mlp(g, g.experts, g.num_layers - dense)


def _expert_mlp(g: ModelGeometry, experts: Experts, layers: int) -> Iterator[Weight]:
    yield _plain("router", "mlp", experts.routed, g.hidden_size, layers)
    if experts.router_bias:
        yield _plain("router.bias", "mlp", experts.routed, 1, layers)
    copies, active = layers * experts.routed, layers * experts.per_token
    yield from _gated_mlp("experts", g.hidden_size, experts.intermediate_size, copies, active, experts.biased)
    if experts.shared_intermediate_size:
        inner = experts.shared_intermediate_size
        yield from _gated_mlp("shared_experts", g.hidden_size, inner, layers, layers, g.mlp_bias)


def _gated_mlp(name: str, hidden: int, inner: int, copies: int, active: int, biased: bool) -> Iterator[Weight]:
    yield _matrix(f"{name}.gate_up", "mlp", 2 * inner, hidden, copies, active)
    yield _matrix(f"{name}.down", "mlp", hidden, inner, copies, active)
    if biased:
        yield _plain(f"{name}.gate_up.bias", "mlp", 2 * inner, 1, copies, active)
        yield _plain(f"{name}.down.bias", "mlp", hidden, 1, copies, active)
