"""Same answers as Hugging Face `generate`, whatever the engine's settings: greedy, float32, token for token.

Every run is in a pool so small that sequences are preempted, plays its prompts twice (the second time against what
the cache has kept), and checks the invariants after every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import numba
import numpy as np
import pytest
import torch

from kvbench.engine.engine import Engine
from kvbench.engine.job import Job
from kvbench.engine.model import Model
from kvbench.engine.sampling import SamplingParams
from kvbench.engine.telemetry import StepRecord
from kvbench.geometry.memory import block_bytes
from kvbench.spec.engine import EngineSettings
from tests.checkpoints import FAMILIES, MARGIN, prompts_of, reference_greedy, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OUTPUT = 20
POOL_TOKENS = 256
BLOCK_SIZES = (1, 4, 16, 64)
POLICIES = ("static", "continuous", "chunked")
CACHES = ("none", "hash", "hash+host")
BACKENDS = ("torch", "numba")
WHOLE_MATRIX = ("llama", "qwen2", "qwen3")


@dataclass
class Answered:
    model: Model
    prompts: list[list[int]]
    outputs: list[list[int]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices gain nothing from threads, and lose much when test processes share the cores."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Answered]:
    """By family: a checkpoint, ten prompts of which five share a stem, and what `transformers` answers to them."""

    @cache
    def of(family: str) -> Answered:
        folder = write_checkpoint(family, tmp_path_factory.mktemp(family))
        (stem,) = prompts_of([41], seed=1)
        prompts = prompts_of([1, 60, 17, 64, 33], seed=2)
        prompts += [stem + tail for tail in prompts_of([1, 8, 3, 23, 7], seed=3)]
        outputs, margin = reference_greedy(folder, prompts, OUTPUT)
        assert margin > MARGIN
        return Answered(Model.from_pretrained(folder), prompts, outputs)

    return of


@pytest.fixture(scope="module")
def llama(answered: Callable[[str], Answered]) -> Answered:
    return answered("llama")


def settings_of(model: Model, block: int, policy: str, caching: str, backend: str, **more: object) -> EngineSettings:
    size = block_bytes(model.geometry, "fp32", block)
    host = {"offload": "host", "host_memory": size * 2 * POOL_TOKENS // block} if caching == "hash+host" else {}
    return EngineSettings.model_validate(
        {
            "block_size": block,
            "batch_policy": policy,
            "prefix_cache": caching.partition("+")[0],
            "attention": backend,
            "kv_memory": size * POOL_TOKENS // block,
            "max_batch_tokens": 48,
            **host,
            **more,
        }
    )


def combinations() -> Iterator[tuple[str, int, str, str, str]]:
    """Every block size × policy × cache, the backends in turn, for three families; for the variants of a family every
    block size × policy, the caches in turn."""
    for turn, family in enumerate(FAMILIES):
        for index, (block, policy, caching) in enumerate(product(BLOCK_SIZES, POLICIES, CACHES)):
            if family in WHOLE_MATRIX or (index - index // len(CACHES) - turn) % len(CACHES) == 0:
                yield family, block, policy, caching, BACKENDS[(index + index // 9 + turn) % 2]


def answer(engine: Engine, prompts: list[list[int]], output: int = OUTPUT) -> tuple[list[list[int]], list[StepRecord]]:
    steps = []
    for index, prompt in enumerate(prompts):
        engine.add(Job(index, np.array(prompt, np.int32), output, arrival_s=engine.clock.now()))
    while engine.has_work:
        step = engine.step()
        assert step is not None
        steps.append(step)
    outputs = engine.take_outputs()
    return [outputs[index] for index in range(len(prompts))], steps


@pytest.mark.parametrize(("family", "block", "policy", "caching", "backend"), list(combinations()))
def test_greedy_tokens_equal_those_of_transformers(
    answered: Callable[[str], Answered], family: str, block: int, policy: str, caching: str, backend: str
) -> None:
    model, expected = answered(family).model, answered(family).outputs
    engine = Engine(model, settings_of(model, block, policy, caching, backend), check=True)
    first, steps = answer(engine, answered(family).prompts)
    again, more = answer(engine, answered(family).prompts)
    assert first == again == expected
    assert sum(step.preemptions for step in steps) > 0
    assert sum(step.preemptions for step in more) > 0
    hits = sum(step.prefix_cache_hits for step in steps + more)
    assert (hits > 0) == (caching != "none" and block < 64)
    promotions = sum(step.host_promotions for step in steps + more)
    assert (promotions > 0) == (caching == "hash+host")


PAIRS = [
    {"admission": "guaranteed-no-evict", "batch_policy": "continuous", "eviction": "fifo"},
    {"admission": "guaranteed-no-evict", "batch_policy": "static", "prefix_cache": "none"},
    {"admission": "guaranteed-no-evict", "batch_policy": "chunked", "hash_function": "sha256", "max_sequences": 3},
    {"allocator": "contiguous", "batch_policy": "static", "prefix_cache": "none", "kv_memory": "4MiB"},
    {"allocator": "contiguous", "batch_policy": "continuous", "prefix_cache": "none", "kv_memory": "4MiB"},
    {"allocator": "contiguous", "batch_policy": "chunked", "prefix_cache": "none", "kv_memory": "4MiB"},
    {"max_batch_tokens": 1, "batch_policy": "chunked", "eviction": "fifo", "max_sequences": 2},
    {"max_batch_tokens": 1, "batch_policy": "continuous", "block_size": 3},
    {"max_batch_tokens": 7, "batch_policy": "static", "block_size": 128, "max_sequences": 1},
    {"kv_memory": "64MiB", "batch_policy": "continuous", "block_size": 32},
    {"prefix_cache": "radix", "batch_policy": "chunked", "eviction": "lrc-age"},
    {"prefix_cache": "radix", "partial_block_reuse": True, "batch_policy": "continuous"},
    {"partial_block_reuse": True, "eviction": "lfu", "offload": "host", "host_memory": "1MiB", "host_eviction": "arc"},
]


@pytest.mark.parametrize("more", PAIRS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_settings_do_not_change_the_answer_either(llama: Answered, more: dict[str, object], backend: str) -> None:
    chosen = settings_of(llama.model, 16, "chunked", "hash", backend, **more)
    engine = Engine(llama.model, chosen, max_context=96, check=True)
    outputs, steps = answer(engine, llama.prompts)
    assert outputs == llama.outputs
    if chosen.admission == "guaranteed-no-evict" or chosen.allocator == "contiguous":
        assert sum(step.preemptions for step in steps) == 0


def test_reuse_inside_a_block_copies_and_answers_as_before(llama: Answered) -> None:
    """At blocks of 64 no prompt has a whole block in common with another, so all hits are fronts of copied blocks."""
    for index in ("hash", "radix"):
        chosen = settings_of(llama.model, 64, "chunked", index, "torch", partial_block_reuse=True, kv_memory="4MiB")
        engine = Engine(llama.model, chosen, check=True)
        first, _ = answer(engine, llama.prompts)
        again, more = answer(engine, llama.prompts)
        assert first == again == llama.outputs
        hits = sum(step.prefix_cache_hits for step in more)
        assert hits > 0
        assert hits % 64
        assert sum(step.copy_on_write_copies for step in more) > 0


@pytest.mark.parametrize("kv_dtype", ["fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"])
def test_within_a_kv_dtype_the_answer_does_not_depend_on_chunks_hits_blocks_or_preemption(
    llama: Answered, kv_dtype: str
) -> None:
    """K and V are stored first and read as stored, so a prompt in pieces sees what a whole one sees."""
    found = []
    for block, policy, caching in ((16, "continuous", "none"), (4, "chunked", "hash"), (64, "static", "hash+host")):
        chosen = settings_of(llama.model, block, policy, caching, "numba", kv_dtype=kv_dtype)
        engine = Engine(llama.model, chosen, kv_memory_bytes=_pool_bytes(llama.model, kv_dtype, block), check=True)
        outputs, steps = answer(engine, llama.prompts)
        again, _ = answer(engine, llama.prompts)
        assert outputs == again
        assert sum(step.preemptions for step in steps) > 0
        found.append(outputs)
    assert found[0] == found[1] == found[2]


def _pool_bytes(model: Model, kv_dtype: str, block: int) -> int:
    return block_bytes(model.geometry, kv_dtype, block) * POOL_TOKENS // block


def test_seeded_sampling_does_not_depend_on_the_batch(llama: Answered) -> None:
    """Temperature, top-k and top-p with one seed: the same tokens under every policy; another seed, others."""
    sampling = SamplingParams(temperature=0.9, top_k=40, top_p=0.95)
    found = []
    for policy, seed in (("static", 5), ("continuous", 5), ("chunked", 5), ("chunked", 6)):
        engine = Engine(llama.model, settings_of(llama.model, 16, policy, "hash", "torch"), check=True)
        found.append(engine.generate(llama.prompts, OUTPUT, sampling, seed=seed))
    assert found[0] == found[1] == found[2] != found[3]
    assert found[0] != llama.outputs
