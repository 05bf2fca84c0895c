"""Re-blocking in the middle of a run: no token changes, and what it cost is on record."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.engine.engine import Engine
from kvbench.engine.model import Model
from kvbench.engine.reblocking import NoRoomError
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.presets import preset
from kvbench.spec.engine import EngineSettings
from tests.engine.fakes import fake_engine, honest_output, job, run

PROMPTS = [list(range(5, 45)), list(range(5, 42)), [7, 8, 9], list(range(5, 60)), list(range(90, 99)), [3] * 33]
OUTPUT = 16


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.random(preset("tiny-llama"), seed=0)


def engine_of(model: Model, kv_memory_bytes: int = 1 << 20, **settings: Any) -> Engine:
    chosen = EngineSettings.model_validate({"block_size": 16, "prefix_cache": "hash", "max_sequences": 4, **settings})
    return Engine(model, chosen, kv_memory_bytes=kv_memory_bytes, max_context=128, check=True)


FORMS: list[dict[str, Any]] = [
    {"kv_dtype": "fp32"},
    {"kv_dtype": "bf16", "kv_layout": "nhd"},
    {"kv_dtype": "int8"},
    {"kv_dtype": "fp8_e4m3", "kv_layout": "nhd"},
    {"kv_dtype": "fp8_e5m2", "kv_scales": "tensor-absmax"},
    {"kv_dtype": "int8", "attention": "torch"},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(form.values()))
def test_greedy_tokens_are_the_same_with_re_blocking_in_the_middle(model: Model, form: dict[str, Any]) -> None:
    """Blocks of 16 become 32, 4 and 16 again while requests run; scales in the blocks come along."""
    expected = engine_of(model, **form).generate(PROMPTS, OUTPUT)
    engine = engine_of(model, **form)
    sizes = {5: 32, 9: 4, 14: 16, 20: 8}

    def step() -> Any:
        if engine.steps in sizes and engine.manager.settings.block_size != sizes[engine.steps]:
            engine.reblock(sizes[engine.steps])
        return plain_step()

    plain_step, engine.step = engine.step, step  # type: ignore[method-assign]
    assert engine.generate(PROMPTS, OUTPUT) == expected
    assert [record.block_size for record in engine.reblocks] == [32, 4, 16, 8]
    assert all(record.moved_bytes > 0 and record.seconds > 0 for record in engine.reblocks)
    assert all(0 < record.staging_bytes < record.moved_bytes for record in engine.reblocks)
    assert engine.generate(PROMPTS, OUTPUT) == expected, "what is cached by now is right as well"


@pytest.mark.parametrize(("size", "to"), [(16, 32), (32, 16), (4, 64)])
def test_a_setting_re_blocks_once_when_requests_have_finished(model: Model, size: int, to: int) -> None:
    expected = engine_of(model, block_size=size).generate(PROMPTS, OUTPUT)
    engine = engine_of(model, block_size=size, reblock_to=to, reblock_after=2)
    before = engine.num_blocks
    assert engine.generate(PROMPTS, OUTPUT) == expected
    (record,) = engine.reblocks
    assert (record.old_block_size, record.block_size) == (size, to)
    assert engine.num_blocks * to <= before * size
    assert before * size - engine.num_blocks * to <= 2 * to, "the null block may cost one, rounding another"
    engine.reset()
    assert engine.num_blocks == before
    assert (engine.manager.settings.block_size, engine.reblocks) == (size, [])
    assert engine.generate(PROMPTS, OUTPUT) == expected


def test_there_and_back_loses_no_block(model: Model) -> None:
    engine = engine_of(model)
    before = engine.num_blocks
    for size in (256, 16, 1, 16):
        engine.reblock(size)
    assert engine.num_blocks == before


@pytest.mark.parametrize("manager", ["real"])
@pytest.mark.parametrize("caching", ["none", "hash", "radix"])
@pytest.mark.parametrize(("size", "to"), [(4, 8), (4, 16), (8, 2), (16, 4), (3, 9)])
def test_the_oracle_answers_as_without(size: int, to: int, caching: str, manager: str) -> None:
    """A device whose KV is the token ids, read back through the block tables, in a pool small enough to preempt."""
    jobs = [job(at, [*range(10), *[at] * (at % 7)], 3 + at % 9) for at in range(14)]
    engine = fake_engine(
        96 // size, manager=manager, block_size=size, prefix_cache=caching, max_sequences=5, max_batch_tokens=24,
        reblock_to=to, reblock_after=5,
    )  # fmt: skip
    run(engine, *jobs)
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in jobs}
    (record,) = engine.reblocks
    assert record.block_size == engine.manager.settings.block_size == to


def test_without_room_it_waits_until_a_request_has_ended() -> None:
    """Four rows of 3 tokens in four blocks of 4; two blocks of 8 hold two of them."""
    engine = fake_engine(4, manager="real", reblock_to=8, reblock_after=1, max_sequences=4)
    jobs = [job(at, 2, output=1 + at) for at in range(4)]
    run(engine, *jobs)
    (record,) = engine.reblocks
    assert record.refusals == 1
    assert engine.take_outputs() == {one.request_id: honest_output(one) for one in jobs}


def test_a_refusal_says_what_is_missing_and_changes_nothing(model: Model) -> None:
    engine = fake_engine(4, manager="real", max_sequences=4)
    for at in range(4):
        engine.add(job(at, 2, output=2))
    engine.step()
    with pytest.raises(NoRoomError, match="2 are missing"):
        engine.reblock(8)
    assert (engine.manager.settings.block_size, engine.reblocks) == (4, [])
    run(engine)
    with pytest.raises(UsageError, match="cannot become blocks of 6"):
        engine.reblock(6)
    naive = fake_engine(4, manager="naive")
    with pytest.raises(CannotRunError, match="paged pool"):
        naive.reblock(8)
    host = engine_of(model, offload="host", host_memory=1 << 20)
    with pytest.raises(CannotRunError, match="host tier"):
        host.reblock(32)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"reblock_to": 16}, "multiple of block_size"),
        ({"reblock_to": 24}, "multiple of block_size"),
        ({"reblock_to": 32, "allocator": "contiguous"}, "paged"),
        ({"reblock_to": 32, "prefix_cache": "hash", "offload": "host", "host_memory": 1 << 20}, "lower tier"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_way_out(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        EngineSettings.model_validate(settings)
