"""The arithmetic of a block size against loops over every token of every request, and closed formulas."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from kvbench.analysis.advice.arithmetic import BLOCK_SIZES, BlockRow, block_table
from kvbench.analysis.advice.blocks import held_blocks, most_blocks
from kvbench.analysis.advice.lengths import LengthSample
from kvbench.analysis.advice.memory import DeviceMemory, KvMemory
from kvbench.cache.types import CacheGroup, CacheSettings
from kvbench.cache.windows import Windows
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.budget import Load
from kvbench.geometry.lengths import parse_lengths
from kvbench.geometry.memory import pool_layout
from kvbench.geometry.model import ModelGeometry
from kvbench.geometry.resolve import resolve_model
from kvbench.geometry.sizing import Question, answer

LLAMA = resolve_model("llama-3.1-8b")
LOAD = Load(max_sequences=256, max_batch_tokens=2048, max_context=8192)


def _windowed(name: str, window: int) -> ModelGeometry:
    """The model with a window so short that small samples leave it."""
    g = resolve_model(name)
    groups = tuple(replace(group, window=window) if group.window else group for group in g.groups)
    return replace(g, groups=groups)


MODELS = {
    "full": LLAMA,
    "window": _windowed("mistral-7b-v0.1", 13),
    "hybrid": _windowed("gemma-3-12b", 21),
    "latent": resolve_model("deepseek-v3"),
}


def _sample(inputs: list[int], outputs: list[int]) -> LengthSample:
    return LengthSample(np.array(inputs), np.array(outputs), "lengths", "trace", len(inputs))


def _random_sample(seed: int, count: int = 15, longest: int = 120) -> LengthSample:
    rng = random.Random(seed)
    return _sample(*([rng.randint(1, longest) for _ in range(count)] for _ in range(2)))


def _only(rows: list[BlockRow]) -> BlockRow:
    assert len(rows) == 1
    return rows[0]


def _naive(sample: LengthSample, g: ModelGeometry, block: int) -> dict[str, float]:
    """Every step of every request, with the set of blocks that hold a position which the step reads."""
    layout = pool_layout(g, "bf16", block)
    steps = end_waste = life_waste = end_tokens = life_tokens = life_blocks = end_blocks = 0
    needed_bytes = 0.0
    for prompt, output in zip(sample.inputs.tolist(), sample.outputs.tolist(), strict=True):
        for stored in range(prompt, prompt + output):
            steps += 1
            slots = len({position // block for position in range(stored)}) * block
            life_waste += slots - stored
            life_tokens += stored
            for piece in layout.pieces:
                window = piece.group.window or stored
                read = range(max(0, stored - window), stored)
                life_blocks += len({position // block for position in read})
                needed_bytes += len(read) * piece.used_bytes / block
        end_waste += slots - stored
        end_tokens += stored
        end_blocks += layout.sequence_blocks(stored)
    count = len(sample)
    return {
        "end_waste_slots": end_waste / count,
        "end_waste_share": end_waste / end_tokens,
        "life_waste_slots": life_waste / steps,
        "life_waste_share": life_waste / life_tokens,
        "life_unused_bytes_share": 1 - needed_bytes / (life_blocks * layout.block_bytes),
        "end_blocks": end_blocks / count,
        "life_blocks": life_blocks / steps,
    }


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("block", [1, 4, 7, 16, 64, 256])
def test_waste_and_blocks_are_those_of_a_loop_over_every_token(model: str, block: int) -> None:
    g = MODELS[model]
    for seed in range(2):
        sample = _random_sample(seed)
        row = _only(block_table(sample, KvMemory(g, 8 << 30, LOAD), block_sizes=[block]))
        for name, value in _naive(sample, g, block).items():
            assert getattr(row, name) == pytest.approx(value, rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("model", MODELS)
def test_capacity_is_the_most_sequences_whose_mean_blocks_fit(model: str) -> None:
    g, sample = MODELS[model], _random_sample(7)
    for row in block_table(sample, KvMemory(g, 3 << 30, LOAD)):
        assert row.num_blocks == (3 << 30) // row.block_bytes
        assert row.end_sequences * row.end_blocks <= row.num_blocks * (1 + 1e-12)
        assert (row.end_sequences + 1) * row.end_blocks > row.num_blocks
        assert row.life_sequences * row.life_blocks <= row.num_blocks * (1 + 1e-12)
        assert (row.life_sequences + 1) * row.life_blocks > row.num_blocks
        assert row.end_tokens == pytest.approx(row.end_sequences * sample.stored.mean(), abs=1)
        assert row.sequences == min(row.life_sequences, LOAD.max_sequences)
        assert row.limited_by == ("memory" if row.life_sequences <= LOAD.max_sequences else "max_sequences")


@pytest.mark.parametrize(
    ("name", "per_token"), [("llama-3.1-8b", 131_072), ("llama-2-7b", 524_288), ("deepseek-v3", 70_272)]
)
def test_bytes_per_token_and_block_are_the_known_ones(name: str, per_token: int) -> None:
    memory = KvMemory(resolve_model(name), 8 << 30, Load(max_context=4096))
    for row in block_table(_sample([100], [2]), memory):
        assert row.kv_bytes_per_token == per_token
        assert row.block_bytes == per_token * row.block_size


def test_a_gibibyte_holds_one_sequence_of_8192_tokens_of_llama_3() -> None:
    sample = _sample([8192], [1])
    memory = KvMemory(LLAMA, 16 << 30, replace(LOAD, max_context=16_384))
    for row in block_table(sample, memory):
        assert (row.end_sequences, row.life_sequences, row.end_tokens) == (16, 16, 131_072)
        assert row.end_waste_slots == row.life_waste_slots == row.life_unused_bytes_share == 0


@pytest.mark.parametrize("block", BLOCK_SIZES)
def test_mean_tail_waste_of_evenly_spread_lengths_is_half_a_block_less_half(block: int) -> None:
    lengths = list(range(1, 4 * block + 1))
    row = _only(block_table(_sample(lengths, [1] * len(lengths)), KvMemory(LLAMA, 1 << 30, LOAD), block_sizes=[block]))
    assert row.end_waste_slots == (block - 1) / 2
    assert row.end_waste_share == pytest.approx((block - 1) / (2 * np.mean(lengths)))
    life = _only(block_table(_sample([1], [4 * block]), KvMemory(LLAMA, 1 << 30, LOAD), block_sizes=[block]))
    assert (life.end_waste_slots, life.life_waste_slots) == (0, (block - 1) / 2)


def test_narrow_dtypes_carry_their_scales_in_the_block_or_beside_it() -> None:
    rows = {
        (dtype, scales): _only(
            block_table(
                _sample([50], [9]), KvMemory(LLAMA, 1 << 30, LOAD), block_sizes=[16], kv_dtype=dtype, kv_scales=scales
            )
        )
        for dtype, scales in [("fp8_e4m3", "token-head"), ("fp8_e4m3", "tensor-absmax"), ("bf16", "token-head")]
    }
    assert rows["fp8_e4m3", "tensor-absmax"].block_bytes * 2 == rows["bf16", "token-head"].block_bytes
    assert rows["fp8_e4m3", "token-head"].kv_bytes_per_token == 65_536 + 32 * 8 * 2 * 4


@pytest.mark.parametrize("tp", [1, 4])
def test_a_devices_pool_is_that_of_size(tp: int) -> None:
    question = Question(
        model=LLAMA, memory_bytes=80 << 30, lengths=tuple(parse_lengths("1500")), tp=tp, headroom_bytes=8 << 30,
        block_sizes=(16, 64), load=LOAD,
    )  # fmt: skip
    pools = answer(question)["pools"]
    rows = block_table(_sample([1000], [501]), DeviceMemory(question), block_sizes=[64, 16])
    for row, pool in zip(rows, pools, strict=True):
        same = ("block_size", "block_bytes", "num_blocks", "pool_bytes", "table_bytes")
        assert {name: getattr(row, name) for name in same} == {name: pool[name] for name in same}
        assert row.end_sequences == pool["lengths"][0]["sequences"]
        assert row.end_waste_slots == pool["lengths"][0]["tail_waste_slots"]


def test_a_device_without_room_for_a_block_is_refused_with_the_arithmetic() -> None:
    question = Question(model=LLAMA, memory_bytes=8 << 30, lengths=(), load=LOAD)
    with pytest.raises(CannotRunError, match="does not fit"):
        block_table(_sample([10], [2]), DeviceMemory(question))


def test_kv_memory_that_holds_no_block_is_refused_with_the_sizes() -> None:
    with pytest.raises(CannotRunError, match=r"1\.00 MiB of KV hold no block of 16 tokens, which takes 2\.00 MiB"):
        block_table(_sample([10], [2]), KvMemory(LLAMA, 1 << 20, LOAD), block_sizes=[8, 16])


def test_requests_longer_than_the_context_are_refused_and_counted() -> None:
    sample = _sample([10, 9000, 8191], [10, 1, 2])
    with pytest.raises(UsageError, match=r"2 requests \(66.67%\) are longer than the context of 8,192"):
        block_table(sample, KvMemory(LLAMA, 1 << 30, LOAD))


def test_requests_that_the_whole_pool_cannot_hold_are_counted() -> None:
    sample = _sample([100, 40, 41], [1, 1, 1])
    row = _only(block_table(sample, KvMemory(LLAMA, 10 * 4 * 131_072, LOAD), block_sizes=[4]))
    assert (row.num_blocks, row.too_long_requests) == (10, 2)


@pytest.mark.parametrize("window", [1, 5, 16, 33])
@pytest.mark.parametrize("block", [1, 4, 16])
def test_blocks_held_are_what_the_books_keep_and_cap(window: int, block: int) -> None:
    g = _windowed("gemma-3-12b", window)
    layout = pool_layout(g, "bf16", block)
    groups = tuple(CacheGroup(window=piece.group.window) for piece in layout.pieces)
    books = Windows(CacheSettings(block, 100, 4, 256, groups=groups, step_tokens=1))
    lengths = np.arange(1, 100)
    held = [
        sum(-(-t // block) - books.first_block(group, t - 1) for group in range(len(groups))) for t in lengths.tolist()
    ]
    assert held_blocks(layout, lengths).tolist() == held
    assert most_blocks(layout, lengths).tolist() == [books.most_blocks(t) for t in lengths.tolist()]
    assert (held_blocks(layout, lengths) <= most_blocks(layout, lengths)).all()


def test_long_lives_are_exact() -> None:
    first, steps, block = 1_000_000, 500, 7
    memory = KvMemory(LLAMA, 1 << 40, replace(LOAD, max_context=1 << 21))
    row = _only(block_table(_sample([first] * 3, [steps] * 3), memory, block_sizes=[block]))
    assert row.life_blocks == sum(-(-t // block) for t in range(first, first + steps)) / steps


def test_a_length_that_no_model_serves_is_refused() -> None:
    with pytest.raises(UsageError, match="longer than any model"):
        block_table(_sample([1 << 30], [1]), KvMemory(LLAMA, 1 << 30, replace(LOAD, max_context=1 << 31)))
