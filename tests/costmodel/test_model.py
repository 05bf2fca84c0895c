"""The cost model: features against a walk over every query, seconds against the formula, more never costs less."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.cache.transfers import COPY_KINDS
from kvbench.costmodel.features import step_features
from kvbench.costmodel.model import CostModel, decode_kernel_s
from kvbench.costmodel.profiles import virtual_device, virtual_device_names
from kvbench.costmodel.roofline import roofline
from kvbench.errors import UsageError
from kvbench.geometry.memory import kv_bytes_per_token
from kvbench.geometry.presets import preset, preset_names
from kvbench.geometry.weights import active_parameter_count, weight_bytes
from kvbench.measure.kernel_geometry import one_layer
from kvbench.spec.suite import KernelSettings

RATES = roofline(virtual_device("h100")).rates


def naive(start: int, count: int, window: int | None, block_size: int) -> tuple[int, int, int]:
    """(context, pairs, blocks) of one sequence, token by token."""
    seen: set[int] = set()
    pairs = 0
    for position in range(start, start + count):
        first = 0 if window is None else max(0, position - window + 1)
        seen |= set(range(first, position + 1))
        pairs += position + 1 - first
    return len(seen), pairs, len({position // block_size for position in seen})


def cost_of(name: str, *, weight_dtype: str = "bf16", kv_dtype: str = "bf16", block_size: int = 16) -> CostModel:
    return CostModel(preset(name), RATES, weight_dtype=weight_dtype, kv_dtype=kv_dtype, block_size=block_size)


@pytest.mark.parametrize("seed", range(20))
def test_features_are_those_of_a_walk_over_every_query(seed: int) -> None:
    rng = np.random.default_rng(seed)
    block_size = int(rng.integers(1, 9))
    windows = (None, int(rng.integers(1, 12)))
    decodes, prefills = rng.integers(0, 5, 2)
    starts = rng.integers(0, 40, decodes + prefills).astype(np.int32)
    counts = np.concatenate([np.ones(decodes, np.int32), rng.integers(1, 20, prefills).astype(np.int32)])
    found = step_features(starts, counts, int(decodes), 3, windows, block_size)
    for at, window in enumerate(windows):
        walked = [naive(int(s), int(c), window, block_size) for s, c in zip(starts, counts, strict=True)]
        assert found.decode_context[at] == sum(w[0] for w in walked[:decodes])
        assert found.prefill_context[at] == sum(w[0] for w in walked[decodes:])
        assert found.prefill_pairs[at] == sum(w[1] for w in walked[decodes:])
        assert found.blocks[at] == sum(w[2] for w in walked)
    assert (found.sequences, found.tokens) == (decodes + prefills, int(counts.sum()))


def test_a_decode_step_of_one_long_sequence_is_its_bytes_over_the_bandwidth() -> None:
    geometry, length = preset("llama-3.1-8b"), 100_000
    cost = cost_of("llama-3.1-8b")
    seconds = cost.step_s(cost.features(np.array([length - 1]), np.array([1]), 1, 1))
    embedding = geometry.vocab_size * geometry.hidden_size * 2  # looked up, not read
    read = weight_bytes(geometry, "bf16") - embedding + (length + 1) * float(kv_bytes_per_token(geometry, "bf16"))
    walk = 32 * 8 * -(-length // 16) * RATES.block_s
    overhead = RATES.step_s + 32 * RATES.layer_s + RATES.sequence_s
    assert seconds == pytest.approx(read / (0.8 * 3.35e12) + walk + overhead, rel=1e-12)


def test_a_large_prefill_is_its_flops_over_the_tensor_rate() -> None:
    geometry, length = preset("llama-3.1-8b"), 8192
    cost = cost_of("llama-3.1-8b")
    seconds = cost.step_s(cost.features(np.array([0]), np.array([length]), 0, 1))
    head = geometry.vocab_size * geometry.hidden_size
    norms = 65 * geometry.hidden_size
    linear = 2 * length * (active_parameter_count(geometry) - head - norms) + 2 * head
    attention = 32 * 2 * 32 * (128 + 128) * (length * (length + 1) // 2)
    write = length * float(kv_bytes_per_token(geometry, "bf16")) / (0.8 * 3.35e12)
    walk = 32 * 8 * length // 16 * RATES.block_s
    overhead = RATES.step_s + 32 * RATES.layer_s + RATES.sequence_s
    expected = linear / (0.6 * 989.4e12) + attention / (0.45 * 989.4e12) + write + walk + overhead
    assert seconds == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("steps", [1, 37])
def test_a_run_of_decode_steps_costs_bit_for_bit_what_its_steps_cost(name: str, steps: int) -> None:
    cost = cost_of(name, block_size=7)
    lengths = np.random.default_rng(1).integers(1, 5000, 13)
    singly = [cost.step_s(cost.features(lengths + at - 1, np.ones(13, np.int32), 13, 13)) for at in range(steps)]
    assert cost.decode_run_s(lengths, steps).tolist() == singly


@pytest.mark.parametrize("name", preset_names())
def test_more_of_anything_never_costs_less(name: str) -> None:
    cost = cost_of(name)

    def seconds(starts: list[int], counts: list[int], decodes: int) -> float:
        return cost.step_s(cost.features(np.array(starts), np.array(counts), decodes, len(starts)))

    base = seconds([100, 0], [1, 50], 1)
    assert base < seconds([100, 100, 0], [1, 1, 50], 2)
    assert base < seconds([100, 0], [1, 500], 1)
    assert base <= seconds([5000, 0], [1, 50], 1)


def test_kv_dtype_block_size_and_transfers_show_in_the_cost() -> None:
    starts, counts = np.full(64, 4000), np.ones(64, np.int32)
    costs = {
        key: (model := cost_of("llama-3.1-8b", kv_dtype=key[0], block_size=key[1])).step_s(
            model.features(starts, counts, 64, 64)
        )
        for key in (("bf16", 16), ("int8", 16), ("fp32", 16), ("bf16", 4), ("bf16", 64))
    }
    assert costs["int8", 16] < costs["bf16", 16] < costs["fp32", 16]
    assert costs["bf16", 64] < costs["bf16", 16] < costs["bf16", 4]
    model = cost_of("llama-3.1-8b")
    block = 16 * float(kv_bytes_per_token(preset("llama-3.1-8b"), "bf16"))
    assert model.copies_s("promote", 10) == pytest.approx(20e-6 + 10 * block / (0.8 * 64e9))
    assert all(model.copies_s(kind, 0) == 0.0 for kind in COPY_KINDS)
    assert model.copies_s("load", 10) > model.copies_s("swap_in", 10) > model.copies_s("copy", 10)


def test_scales_outside_the_blocks_are_not_read() -> None:
    """int8: a float32 per token and head within the block, or one per layer outside it; both by bytes over rates."""
    geometry, tokens = preset("llama-3.1-8b"), 64 * 4000
    starts, counts = np.full(64, 3999), np.ones(64, np.int32)
    priced = {
        scales: CostModel(geometry, RATES, weight_dtype="bf16", kv_dtype="int8", block_size=16, kv_scales=scales)
        for scales in ("token-head", "tensor-absmax", "tensor-percentile")
    }
    seconds = {scales: cost.step_s(cost.features(starts, counts, 64, 64)) for scales, cost in priced.items()}
    assert seconds["tensor-absmax"] == seconds["tensor-percentile"]
    scale_bytes = 2 * 4 * 8 * 32
    saved = (tokens + 64) * scale_bytes / RATES.kv_bytes
    assert seconds["token-head"] - seconds["tensor-absmax"] == pytest.approx(saved, rel=1e-9)
    block = 16 * 2 * 128 * 8 * 32
    assert priced["tensor-absmax"].block_bytes == block
    assert priced["token-head"].block_bytes == block + 16 * scale_bytes
    moved = (
        priced["token-head"].copies_s("promote", 5) - priced["tensor-absmax"].copies_s("promote", 5)
    ) * RATES.host_bytes
    assert moved == pytest.approx(5 * 16 * scale_bytes, rel=1e-9)


def test_few_tokens_read_few_experts() -> None:
    """DeepSeek-V3: one token reads 8 of 256 experts a layer, a thousand read nearly all."""
    cost = cost_of("deepseek-v3")
    one, many = (cost.step_s(cost.features(np.zeros(n, np.int64), np.ones(n, np.int32), n, n)) for n in (1, 1000))
    whole = weight_bytes(preset("deepseek-v3"), "bf16") / RATES.weight_bytes
    assert one < 0.1 * whole < 0.9 * whole < many


@pytest.mark.parametrize("name", virtual_device_names())
def test_every_device_has_rates_and_serves_every_model(name: str) -> None:
    rates = roofline(virtual_device(name)).rates
    cost = CostModel(preset("llama-3.1-70b"), rates, weight_dtype="bf16", kv_dtype="bf16", block_size=16)
    assert 0 < cost.step_s(cost.features(np.array([10]), np.array([1]), 1, 1)) < 60


@pytest.mark.parametrize("name", ["24GiB", "h1000", "", "abacus"])
def test_a_device_without_rates_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        virtual_device(name)


def test_a_decode_kernel_is_one_layer_of_a_step() -> None:
    kernel = KernelSettings(batch=8, context=1024, query_heads=32, kv_heads=8, head_dim=128, kv_dtype="bf16")
    seconds = decode_kernel_s(one_layer(kernel), RATES, kv_dtype="bf16", block_size=16, batch=8, context=1024)
    read = 8 * 1024 * 2 * 8 * 128 * 2 / (0.8 * 3.35e12)
    assert seconds == pytest.approx(RATES.layer_s + read + 8 * 64 * 8 * RATES.block_s)
