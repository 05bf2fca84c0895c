"""Static KV scales: right against numpy, part of the prefix keys, and the same tokens under every other setting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kvbench.engine.alone import foreign_prompt, prefill_alone
from kvbench.engine.calibration import Magnitudes, calibrated, needs_scales
from kvbench.engine.engine import Engine
from kvbench.engine.kvstore.codec import LARGEST
from kvbench.engine.kvstore.layout import ELEMENTS
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.model import Model
from kvbench.geometry.presets import preset
from kvbench.measure.kv_error import kv_error
from kvbench.spec.engine import EngineSettings

PROMPTS = [list(range(5, 45)), list(range(5, 30)), [7, 8, 9], list(range(5, 60))]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.random(preset("tiny-llama"), seed=0)


@pytest.mark.parametrize("percent", [50.0, 90.0, 99.9, 100.0])
def test_a_percentile_is_that_of_numpy_to_the_width_of_a_bin(percent: float) -> None:
    x = torch.randn(40_000) * torch.logspace(-6, 3, 40_000)
    magnitudes = Magnitudes()
    for part in x.split(7_000):
        magnitudes.add(part)
    expected = float(np.percentile(x.abs().numpy(), percent, method="inverted_cdf"))
    assert expected <= magnitudes.percentile(percent) <= expected * (1 + 2**-7)
    assert magnitudes.largest == float(x.abs().max()) == magnitudes.percentile(100.0)


def test_zeros_nothing_and_what_is_not_finite_make_no_bad_scale() -> None:
    magnitudes = Magnitudes()
    assert magnitudes.scale("int8", "tensor-percentile", 99.0) == 1.0
    magnitudes.add(torch.zeros(5))
    assert magnitudes.scale("int8", "tensor-absmax", 99.0) == 1.0
    magnitudes.add(torch.tensor([torch.nan, torch.inf, -2.54]))
    assert magnitudes.scale("int8", "tensor-absmax", 99.0) == pytest.approx(0.02)


class _Kept(KVStore):
    kept: list[tuple[torch.Tensor, torch.Tensor]]

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        self.kept = [*getattr(self, "kept", []), (k.clone(), v.clone())]
        super().write(layer, k, v, slots)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_scales_are_the_largest_magnitudes_of_k_and_v_of_each_layer(model: Model, kv_dtype: str) -> None:
    prompt = foreign_prompt(model, 50)
    stores: list[_Kept] = []

    def make(*args: Any, **more: Any) -> KVStore:
        stores.append(_Kept(*args, **more))
        return stores[0]

    prefill_alone(model, prompt, "fp32", make=make)
    scales = calibrated(model, kv_dtype, "tensor-absmax", 99.9, [prompt])
    assert scales is not None
    most = LARGEST[ELEMENTS[kv_dtype]]
    for layer, parts in enumerate(stores[0].kept):
        for found, x in zip((scales.k[layer], scales.v[layer]), parts, strict=True):
            assert found == pytest.approx(float(x.abs().max()) / most)
    assert (scales.tokens, scales.method) == (50, "tensor-absmax")


def test_only_narrow_dtypes_with_static_scales_are_calibrated(model: Model) -> None:
    assert calibrated(model, "fp32", "tensor-absmax", 99.9) is None
    assert calibrated(model, "int8", "token-head", 99.9) is None
    assert needs_scales("fp8_e5m2", "tensor-percentile")


def test_e78_the_error_of_the_logits_holds_only_with_calibrated_scales(model: Model) -> None:
    """Scales of 1.0, which many engines take for fp8, against calibrated ones: K and V of this model are small enough
    for e4m3's range, so the damage is shown with scales that put them 1,000 times beyond it."""
    calibration = calibrated(model, "fp8_e4m3", "tensor-absmax", 99.9)
    assert calibration is not None
    beyond = TensorScales(tuple(x / 1000 for x in calibration.k), tuple(x / 1000 for x in calibration.v))
    good = kv_error(model, "fp8_e4m3", 16, calibration)["kv_error_rel_rms"]
    assert good < 0.35
    assert kv_error(model, "fp8_e4m3", 16, beyond)["kv_error_rel_rms"] > 3 * good


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3"])
def test_static_scales_cost_a_little_more_error_than_one_per_token_and_head(model: Model, kv_dtype: str) -> None:
    per_row = kv_error(model, kv_dtype, 16)["kv_error_rel_rms"]
    static = kv_error(model, kv_dtype, 16, calibrated(model, kv_dtype, "tensor-absmax", 99.9))["kv_error_rel_rms"]
    assert per_row < static < 0.35


@pytest.mark.parametrize("kv_scales", ["tensor-absmax", "tensor-percentile"])
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e5m2"])
def test_within_static_scales_the_answer_does_not_depend_on_block_size_layout_or_chunks(
    model: Model, kv_dtype: str, kv_scales: str
) -> None:
    found = []
    for more in (
        {"block_size": 16, "batch_policy": "static"},
        {"block_size": 4, "prefix_cache": "hash", "max_batch_tokens": 24},
        {"block_size": 64, "kv_layout": "nhd", "batch_policy": "continuous"},
        {"block_size": 16, "attention": "torch"},
    ):
        settings = EngineSettings.model_validate({"kv_dtype": kv_dtype, "kv_scales": kv_scales, **more})
        engine = Engine(model, settings, kv_memory_bytes=1 << 20, max_context=128, check=True)
        assert engine.store.tensor_scales is not None
        found.append(engine.generate(PROMPTS, 12))
    assert found[0] == found[1] == found[2] == found[3]


def test_other_scales_have_other_prefix_keys(model: Model) -> None:
    """KV that was divided by something else is other KV, also on a tier that outlives the engine."""
    settings = EngineSettings(kv_dtype="int8", kv_scales="tensor-absmax", prefix_cache="hash")
    one = calibrated(model, "int8", "tensor-absmax", 99.9)
    assert one is not None
    other = TensorScales(tuple(2 * x for x in one.k), one.v)
    spaces = [
        Engine(model, settings, kv_memory_bytes=1 << 20, tensor_scales=scales).manager.settings.namespace
        for scales in (one, other, one)
    ]
    assert spaces[0] == spaces[2] != spaces[1]


def test_static_scales_leave_more_room_for_blocks(model: Model) -> None:
    sizes = [
        Engine(model, EngineSettings(kv_dtype="int8", kv_scales=scales), kv_memory_bytes=1 << 20).num_blocks  # type: ignore[arg-type]
        for scales in ("token-head", "tensor-absmax")
    ]
    d = model.geometry.head_dim
    assert sizes[1] / sizes[0] == pytest.approx((d + 4) / d, rel=0.02)
