"""One answer under every setting, with real tensors and faults: whatever keeps, moves, loses or brings back KV, greedy
float32 tokens are those that Hugging Face `generate` gives.

Settings are drawn from all that a suite can name. Two copies in a hundred fail and leave NaN behind, cached blocks are
forgotten at random, requests are given up, and a third of the engines change their block size in the middle.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kvbench.cache.paged import PagedManager
from kvbench.cache.transfers import ARRIVALS, Transfers
from kvbench.engine.engine import Engine
from kvbench.engine.job import Job
from kvbench.engine.model import Model
from kvbench.errors import KvbenchError
from kvbench.geometry.memory import block_bytes
from kvbench.spec.engine import EngineSettings
from kvbench.verify.draw import draw_settings
from tests.checkpoints import MARGIN, prompts_of, reference_greedy, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.engine.copies import Outcome

OUTPUT = 14
POOL_TOKENS = 192
FAULTS = 0.02
ENGINES = 30
WIDE = {"kv_dtype": "fp32", "weight_dtype": "fp32", "host_memory": "64KiB", "disk_memory": "64KiB"}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Model, list[list[int]], list[list[int]]]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = write_checkpoint("llama", tmp_path_factory.mktemp("llama"))
    (stem,) = prompts_of([37], seed=11)
    prompts = prompts_of([1, 60, 17, 33], seed=12) + [stem + tail for tail in prompts_of([1, 8, 3, 23], seed=13)]
    outputs, margin = reference_greedy(folder, prompts, OUTPUT)
    assert margin > MARGIN
    yield Model.from_pretrained(folder), prompts, outputs
    torch.set_num_threads(threads)


def drawn_engine(model: Model, rng: random.Random) -> Engine:
    """An engine whose settings go together and whose pool holds little more than one sequence."""
    while True:
        chosen, _ = draw_settings(rng)
        kept = {name: value for name, value in chosen.items() if not name.startswith(("kv_scales", "reblock"))}
        kept |= {**WIDE, "swap_memory": "64KiB", "max_sequences": min(6, chosen["max_sequences"])}
        try:
            settings = EngineSettings.model_validate(kept)
            bytes_of_pool = (
                POOL_TOKENS // settings.block_size * block_bytes(model.geometry, "fp32", settings.block_size)
            )
            return Engine(model, settings, kv_memory_bytes=bytes_of_pool, max_context=96, check=True)
        except (KvbenchError, ValueError):
            continue


def make_copies_fail(engine: Engine, rng: random.Random) -> None:
    """Some of what should arrive does not: its destination holds NaN, and it is reported as failed."""
    start = engine.store.start

    def unreliable(transfers: Transfers) -> Outcome:
        outcome = start(transfers)
        for kind in ARRIVALS:
            sources, destinations = outcome.done.pairs(kind)
            for at in reversed(range(len(sources))):
                if rng.random() < FAULTS:
                    engine.store.pool.bytes[:, destinations[at]] = 0xFF
                    failed_sources, failed_destinations = outcome.failed.pairs(kind)
                    failed_sources.append(sources.pop(at))
                    failed_destinations.append(destinations.pop(at))
                    keys = outcome.done.keys(kind)
                    if keys:
                        keys.pop(at)
        return outcome

    engine.runner.start = unreliable  # type: ignore[method-assign]


def play(engine: Engine, prompts: list[list[int]], rng: random.Random) -> dict[int, list[int]]:
    """All prompts twice, the second time against what is cached; outputs of those that were not given up."""
    coming = [Job(at, np.array(prompts[at % len(prompts)], np.int32), OUTPUT) for at in range(2 * len(prompts))]
    coming.reverse()
    given_up: set[int] = set()
    reblock_at = rng.randrange(200) if rng.random() < 0.3 else -1
    for step in range(5000):
        if coming and (not engine.has_work or rng.random() < 0.4):
            engine.add(coming.pop())
        if rng.random() < FAULTS and isinstance(engine.manager, PagedManager):
            engine.manager.forget_cached(rng.randint(1, 4))
        if step == reblock_at:
            try_to_reblock(engine)
        if rng.random() < FAULTS / 4:
            given_up |= give_up_one(engine, rng, len(prompts))
        if engine.step() is None and not coming:
            break
    outputs = engine.take_outputs()
    return {request_id: tokens for request_id, tokens in outputs.items() if request_id not in given_up}


def try_to_reblock(engine: Engine) -> None:
    size = engine.manager.settings.block_size
    for other in (2 * size, size // 2):
        try:
            engine.reblock(other)
            return
        except KvbenchError:
            continue


def give_up_one(engine: Engine, rng: random.Random, count: int) -> set[int]:
    request_id = rng.randrange(2 * count)
    try:
        engine.abort(request_id)
    except KvbenchError:
        return set()
    return {request_id}


def test_every_setting_gives_the_tokens_of_transformers_with_faults_or_without(answered: Any) -> None:
    model, prompts, right = answered
    seen: set[tuple[str, Any]] = set()
    for seed in range(ENGINES):
        rng = random.Random(seed)
        engine = drawn_engine(model, rng)
        make_copies_fail(engine, rng)
        outputs = play(engine, prompts, rng)
        assert len(outputs) > len(prompts)
        for request_id, tokens in outputs.items():
            assert tokens == right[request_id % len(prompts)], (seed, request_id, engine.settings)
        seen |= {(name, getattr(engine.settings, name)) for name in ("preemption", "offload", "victim", "batch_policy")}
        engine.close()
    assert {value for name, value in seen if name == "offload"} == {"none", "host", "host+disk"}
    assert {value for name, value in seen if name == "preemption"} == {"recompute", "swap", "swap-else-recompute"}
