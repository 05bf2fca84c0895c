"""Window and hybrid models through the real engine: the answer does not depend on any setting, and memory slides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvbench.engine.beams import BeamParams
from kvbench.engine.engine import Engine
from kvbench.engine.job import Job
from kvbench.engine.model import Model
from kvbench.geometry.memory import pool_layout
from kvbench.geometry.presets import preset
from kvbench.spec.engine import EngineSettings

MEMORY = 2 << 20


def prompts() -> list[list[int]]:
    """Shorter and longer than the window of 64, three of them with a common beginning."""
    draw = np.random.default_rng(7)
    stem = draw.integers(0, 2048, 100).tolist()
    return [*(stem + draw.integers(0, 2048, more).tolist() for more in (2, 30, 70)), draw.integers(0, 2048, 9).tolist()]


def engine(model: Model, **settings: Any) -> Engine:
    chosen = EngineSettings.model_validate(settings)
    return Engine(model, chosen, kv_memory_bytes=MEMORY, max_context=256, check=True)


@pytest.mark.parametrize("name", ["tiny-mistral", "tiny-gemma3"])
def test_the_answer_depends_on_no_setting(name: str) -> None:
    """Block sizes, policies, chunks and prefix caches, the second time with hits; invariants after every step."""
    model = Model.random(preset(name), seed=1)
    expected = engine(model).generate(prompts(), 8)
    for settings in (
        {"block_size": 4, "batch_policy": "chunked", "max_batch_tokens": 24, "prefix_cache": "hash"},
        {"block_size": 8, "batch_policy": "static", "prefix_cache": "radix"},
        {"block_size": 16, "max_sequences": 2, "prefix_cache": "hash", "attention": "torch"},
    ):
        one = engine(model, **settings)
        assert one.generate(prompts(), 8) == expected
        assert one.generate(prompts(), 8) == expected
        assert one.manager.stats().prefix_cache_hits > 0


def test_groups_are_the_pieces_of_the_pool_and_a_long_prompt_in_chunks_stays_below_the_cap() -> None:
    geometry = preset("tiny-gemma3")
    one = engine(Model.random(geometry), batch_policy="chunked", max_batch_tokens=32)
    layout = pool_layout(geometry, "fp32", 16)
    assert [group.window for group in one.manager.settings.groups] == [piece.group.window for piece in layout.pieces]
    one.generate([list(range(200))], 4)
    assert one.manager.can_ever_fit(256)
    assert layout.sequence_blocks(203, 32) < layout.sequence_blocks(203, None)


def searched(model: Model, blocks: int) -> tuple[str | None, list[list[int]]]:
    """How four beams over 200 tokens end in a pool of so many blocks, and their hypotheses."""
    settings = EngineSettings(max_batch_tokens=16, max_sequences=4)
    size = (blocks + 1) * engine(model).sizes.block_bytes
    one = Engine(model, settings, kv_memory_bytes=size, max_context=256, check=True)
    one.add(Job(request_id=0, prompt=np.arange(200, dtype=np.int32), max_tokens=9, beams=BeamParams(4)))
    while one.has_work:
        one.step()
    return one.take_finished()[0].finish_reason, one.take_all_outputs().get(0, [])


def test_beams_that_fit_by_their_windows_are_not_rejected() -> None:
    """A whole table is 13 blocks; what a row holds in a window of 64 is what counts, for the first beam and for each
    of the others. The smallest pool that is accepted serves them, with the answer of a large one."""
    model = Model.random(preset("tiny-mistral"), seed=1)
    finish, expected = searched(model, 128)
    assert finish == "length"
    accepted = [blocks for blocks in range(12, 35) if searched(model, blocks)[0] == "length"]
    assert accepted == list(range(accepted[0], 35))
    assert accepted[0] < 13 + 3 * 5
    assert searched(model, accepted[0]) == ("length", expected)
