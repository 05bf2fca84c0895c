"""The engine around its loop: memory, limits, the Python door."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from kvbench.engine.engine import Engine
from kvbench.engine.memory import free_host_bytes
from kvbench.engine.model import Model
from kvbench.engine.sampling import SamplingParams
from kvbench.engine.telemetry import StepRecord
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.memory import block_bytes
from kvbench.geometry.presets import preset
from kvbench.spec.engine import EngineSettings
from tests.engine.fakes import by_id, job

GEOMETRY = preset("tiny-llama")
BLOCK = block_bytes(GEOMETRY, "fp32", 16)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.random(GEOMETRY, seed=1)


def settings(**more: object) -> EngineSettings:
    return EngineSettings.model_validate({"block_size": 16, "kv_memory": 64 * BLOCK, "attention": "torch", **more})


def test_memory_is_cut_into_whole_blocks_and_never_exceeds_what_was_given(model: Model) -> None:
    engine = Engine(model, settings(kv_memory=10 * BLOCK + BLOCK - 1))
    assert (engine.num_blocks, engine.store.num_blocks, engine.store.block_bytes) == (10, 10, BLOCK)
    engine = Engine(model, settings(), kv_memory_bytes=3 * BLOCK)
    assert engine.num_blocks == 3
    assert engine.manager.stats().blocks_total == 3


def test_memory_for_not_even_one_block_is_refused_with_the_arithmetic(model: Model) -> None:
    with pytest.raises(CannotRunError, match=rf"1 blocks of 16 tokens × {BLOCK} bytes \(tiny-llama, fp32\)"):
        Engine(model, settings(kv_memory=BLOCK - 1))
    Engine(model, settings(kv_memory=BLOCK))


def test_a_contiguous_pool_below_one_reservation_is_refused(model: Model) -> None:
    wanted = settings(allocator="contiguous", max_context=128, kv_memory=7 * BLOCK)
    with pytest.raises(CannotRunError, match="too small for one reservation of the maximum: 8 blocks"):
        Engine(model, wanted)
    engine = Engine(model, wanted, kv_memory_bytes=8 * BLOCK)
    assert len(engine.generate([[1, 2, 3]], 4)[0]) == 4


def test_a_host_tier_below_one_block_is_refused(model: Model) -> None:
    with pytest.raises(CannotRunError, match="holds no block"):
        Engine(model, settings(prefix_cache="hash", offload="host", host_memory=BLOCK - 1))
    engine = Engine(model, settings(prefix_cache="hash", offload="host", host_memory=5 * BLOCK + 7))
    assert engine.manager.stats().host_blocks_total == engine.store.host_blocks == 5


def test_auto_memory_takes_no_more_than_is_free_or_useful(model: Model) -> None:
    engine = Engine(model, settings(kv_memory="auto", max_sequences=2, max_context=100))
    assert engine.num_blocks == 2 * 7
    assert free_host_bytes() > 0


@pytest.mark.parametrize("wanted", [0, GEOMETRY.max_context + 1])
def test_a_context_beyond_the_model_is_refused(model: Model, wanted: int) -> None:
    with pytest.raises(UsageError, match="outside 1 to"):
        Engine(model, settings(), max_context=wanted)


def test_the_context_limit_rejects_longer_requests(model: Model) -> None:
    engine = Engine(model, settings(), max_context=32)
    engine.add(job(0, 30, output=3))
    engine.add(job(1, 30, output=2))
    while engine.has_work:
        engine.step()
    records = by_id(engine)
    assert [records[i].finish_reason for i in range(2)] == ["rejected", "length"]


def test_weights_of_another_dtype_than_asked_for_are_refused(model: Model) -> None:
    with pytest.raises(UsageError, match="weight_dtype is bf16, but the model was loaded as fp32"):
        Engine(model, settings(weight_dtype="bf16"))


def test_generate_answers_in_the_order_of_the_prompts_and_stops_at_stop_tokens(model: Model) -> None:
    engine = Engine(model, settings())
    prompts = [[1, 5, 9], list(range(50)), [7]]
    together = engine.generate(prompts, 8)
    alone = [engine.generate([prompt], 8)[0] for prompt in prompts]
    assert together == alone
    assert [len(output) for output in together] == [8, 8, 8]
    first_stop = together[0].index(together[0][3])
    assert engine.generate([prompts[0]], 8, stop_tokens=[together[0][3]])[0] == together[0][: first_stop + 1]
    assert engine.generate([], 8) == []


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[]], "list of one or more integer token ids"),
        ([[1.5, 2.0]], "list of one or more integer token ids"),
        ([["a"]], "list of one or more integer token ids"),
        ([[[1, 2]]], "list of one or more integer token ids"),
        ([[1, -1]], "outside the vocabulary"),
        ([[1, 2**40]], "outside the vocabulary"),
        ([[GEOMETRY.vocab_size]], "outside the vocabulary"),
        ([[1], list(range(1025))], "prompt 1: 1025 input \\+ 4 output tokens can never fit"),
    ],
)
def test_a_bad_prompt_is_a_usage_error_and_leaves_the_engine_idle(
    model: Model, prompts: list[list[int]], message: str
) -> None:
    engine = Engine(model, settings())
    with pytest.raises(UsageError, match=message):
        engine.generate(prompts, 4)
    assert not engine.has_work
    engine.check_invariants()
    assert len(engine.generate([[1, 2]], 4)[0]) == 4


def test_an_absurd_output_length_is_refused_before_anything_is_allocated(model: Model) -> None:
    with pytest.raises(UsageError, match="exceed the maximum context"):
        Engine(model, settings()).generate([[1]], 10**15)


def test_an_interrupt_stops_generate_between_two_steps(model: Model) -> None:
    engine = Engine(model, settings())
    step = engine.step

    def step_and_interrupt() -> StepRecord | None:
        os.kill(os.getpid(), signal.SIGINT)
        return step()

    engine.step = step_and_interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.generate([[1, 2, 3]], 8)
    engine.step = step  # type: ignore[method-assign]
    engine.check_invariants()
    assert len(engine.generate([[1, 2, 3]], 8)[0]) == 8


def test_a_seed_gives_the_same_sampled_answer_every_time(model: Model) -> None:
    engine = Engine(model, settings())
    answers = [engine.generate([[1, 2], [3]], 12, SamplingParams(temperature=1.0), seed=s) for s in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_max_tokens_below_one_is_a_usage_error(model: Model) -> None:
    with pytest.raises(UsageError, match="max_tokens is 0"):
        Engine(model, settings()).generate([[1]], 0)


def test_a_reset_forgets_the_cache_and_the_answers_stay(model: Model) -> None:
    engine = Engine(model, settings(prefix_cache="hash"))
    first = engine.generate([list(range(64))], 4)
    assert engine.manager.stats().blocks_cached > 0
    engine.reset()
    stats = engine.manager.stats()
    assert (stats.blocks_cached, stats.prefix_cache_queries, engine.steps) == (0, 0, 0)
    assert engine.generate([list(range(64))], 4) == first


def test_the_books_of_the_engine_import_without_torch() -> None:
    modules = "batch clock job loop prepare recorder scheduler sequence serve telemetry memory invariants sampling"
    code = (
        "import sys; sys.modules['torch'] = None\n"
        + "".join(f"import kvbench.engine.{name}\n" for name in modules.split())
        + "from kvbench.engine.policies.registry import *\n"
        + "import kvbench.engine.duplicates\n"
        + "[batch_policy(n) for n in BATCH_POLICIES]; [order_of(n, None) for n in ORDERS]\n"
        + "import kvbench.engine.policies.admission, kvbench.engine.policies.victims\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
