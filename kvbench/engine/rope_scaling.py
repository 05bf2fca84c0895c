"""How a config's `rope_scaling` changes the angles of rotary embedding: linear, llama3 and yarn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from kvbench.geometry.model import ModelGeometry

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
FIX = "correct config.json, or use another model"
_LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def rope_type(geometry: ModelGeometry) -> str:
    """The scaling's name; `UsageError` for one that the engine does not compute."""
    scaling = geometry.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPE_TYPES or scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise UsageError(
            f"{geometry.name}: rotary scaling {scaling} is not supported",
            hint=f"the engine computes rope_type {', '.join(ROPE_TYPES)}, over whole heads",
        )
    return str(kind)


def scaled(frequencies: Tensor, geometry: ModelGeometry) -> Tensor:
    """The inverse frequencies `[pairs]` under the config's scaling; `UsageError` when its numbers are missing."""
    kind, scaling = rope_type(geometry), geometry.rope_scaling or {}
    if kind == "linear":
        return frequencies / _numbers(geometry.name, scaling, ("factor",))[0]
    if kind == "llama3":
        return _llama3(frequencies, geometry.name, scaling)
    return _yarn(frequencies, geometry) if kind == "yarn" else frequencies


def length_factor(geometry: ModelGeometry) -> float:
    """What yarn multiplies rotated queries and keys by: `attention_factor`, else from `factor` and the mscales."""
    if rope_type(geometry) != "yarn":
        return 1.0
    scaling = geometry.rope_scaling or {}
    if scaling.get("attention_factor") is not None:
        return _numbers(geometry.name, scaling, ("attention_factor",))[0]
    factor = _yarn_numbers(geometry)[0]
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        own, every = _numbers(geometry.name, scaling, ("mscale", "mscale_all_dim"))
        return mscale(factor, own) / mscale(factor, every)
    return mscale(factor)


def latent_gain(geometry: ModelGeometry) -> float:
    """What DeepSeek multiplies the softmax scale by under yarn: the square of `mscale_all_dim`'s."""
    scaling = geometry.rope_scaling or {}
    if rope_type(geometry) == "default" or not scaling.get("mscale_all_dim"):
        return 1.0
    factor, every = _numbers(geometry.name, scaling, ("factor", "mscale_all_dim"))
    return mscale(factor, every) ** 2


def mscale(factor: float, weight: float = 1.0) -> float:
    """1 + 0.1 · weight · ln(factor), and 1 where nothing is stretched (YaRN, Peng et al. 2023, eq. 22)."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def _llama3(frequencies: Tensor, name: str, scaling: dict[str, Any]) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1 model card)."""
    factor, low, high, trained = _numbers(name, scaling, _LLAMA3_KEYS)
    if not low < high:
        raise UsageError(
            f"{name}: llama3 rotary scaling needs low_freq_factor {low} < high_freq_factor {high}", hint=FIX
        )
    turns = trained * frequencies / (2 * math.pi)
    kept_share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept_share) * frequencies / factor + kept_share * frequencies


def _yarn(frequencies: Tensor, geometry: ModelGeometry) -> Tensor:
    """Pairs that turn often in the trained context are kept, those that turn seldom stretched, a ramp in between
    (YaRN, "NTK-by-parts")."""
    factor, trained, fast, slow = _yarn_numbers(geometry)
    pairs, theta = len(frequencies), geometry.rope_theta
    if theta <= 1.0:
        raise UsageError(f"{geometry.name}: yarn rotary scaling needs rope_theta above 1, found {theta}", hint=FIX)

    def pair_of(turns: float) -> float:
        return pairs * math.log(trained / (turns * 2 * math.pi)) / math.log(theta)

    low, high = pair_of(fast), pair_of(slow)
    if (geometry.rope_scaling or {}).get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    high += 0.001 if low == high else 0.0
    stretched = ((torch.arange(pairs, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies / factor * stretched + frequencies * (1 - stretched)


def _yarn_numbers(geometry: ModelGeometry) -> tuple[float, float, float, float]:
    """factor, trained context, beta_fast, beta_slow; an absent factor is what the context was stretched by."""
    scaling = dict(geometry.rope_scaling or {})
    (trained,) = _numbers(geometry.name, scaling, ("original_max_position_embeddings",))
    if scaling.get("factor") is None:
        scaling["factor"] = geometry.max_context / trained
    for key, usual in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        scaling[key] = scaling.get(key) or usual
    factor, fast, slow = _numbers(geometry.name, scaling, ("factor", "beta_fast", "beta_slow"))
    return factor, trained, fast, slow


def _numbers(name: str, scaling: dict[str, Any], keys: tuple[str, ...]) -> list[float]:
    values = [scaling.get(key) for key in keys]
    for key, value in zip(keys, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UsageError(f"{name}: rotary scaling needs a positive number {key!r}, found {value!r}", hint=FIX)
    return [float(value) for value in values if value is not None]
