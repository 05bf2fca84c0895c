"""Families beyond full attention through the whole engine: greedy tokens equal `transformers.generate`, whatever the
block size, policy, caching and backend. Pools are small enough that sequences are preempted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from kvbench.engine.engine import Engine
from kvbench.engine.model import Model
from kvbench.geometry.memory import pool_layout
from kvbench.spec.engine import EngineSettings
from tests.checkpoints import LATENT, MARGIN, WINDOWED, prompts_of, reference_greedy, write_checkpoint
from tests.engine.test_parity import Answered, answer

OUTPUT, LONGEST, STEP = 20, 90, 40
FAMILIES = (*WINDOWED, *LATENT)
SETTINGS = [
    (16, "chunked", "hash"),
    (4, "continuous", "hash"),
    (16, "chunked", "none"),
    (1, "chunked", "hash"),
    (64, "continuous", "none"),
    (16, "static", "hash"),
    (16, "chunked", "hash+host"),
]


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Answered]:
    """By family: six prompts, of which three share a stem longer than the window, and what `transformers` answers."""

    @cache
    def of(family: str) -> Answered:
        folder = write_checkpoint(family, tmp_path_factory.mktemp(family))
        (stem,) = prompts_of([41], seed=1)
        prompts = prompts_of([1, 60, 17, LONGEST], seed=2) + [
            stem + tail for tail in prompts_of([1, 8, 23, 47], seed=3)
        ]
        outputs, margin = reference_greedy(folder, prompts, OUTPUT)
        assert margin > MARGIN
        return Answered(Model.from_pretrained(folder), prompts, outputs)

    return of


def has_windows(model: Model) -> bool:
    return any(group.window is not None for group in model.geometry.groups)


def engine_of(model: Model, block: int, policy: str, caching: str, backend: str, kv_dtype: str = "fp32") -> Engine:
    """A pool of two of the longest sequences, or with windows, which let blocks go, of one."""
    layout = pool_layout(model.geometry, kv_dtype, block)
    longest = layout.sequence_blocks(LONGEST + OUTPUT, STEP if policy == "chunked" else None)
    pool = longest * (1 if has_windows(model) else 2) * layout.block_bytes
    host = {"offload": "host", "host_memory": 2 * pool} if caching == "hash+host" else {}
    settings = EngineSettings.model_validate(
        {
            "block_size": block,
            "batch_policy": policy,
            "prefix_cache": caching.partition("+")[0],
            "attention": backend,
            "kv_memory": pool,
            "kv_dtype": kv_dtype,
            "max_batch_tokens": STEP,
            **host,
        }
    )
    return Engine(model, settings, max_context=128, check=True)


def combinations() -> Iterator[tuple[str, int, str, str]]:
    """The first two for every family, the others in turns. Windows keep only tails, which the host tier does not
    take."""
    for turn, family in enumerate(FAMILIES):
        for index, (block, policy, caching) in enumerate(SETTINGS):
            is_chosen = index < 2 or (index + turn) % 3 == 0
            if is_chosen and (family in LATENT or caching != "hash+host"):
                yield family, block, policy, caching


@pytest.mark.parametrize(("family", "block", "policy", "caching"), list(combinations()))
def test_greedy_tokens_equal_those_of_transformers(
    answered: Callable[[str], Answered], family: str, block: int, policy: str, caching: str
) -> None:
    case = answered(family)
    engine = engine_of(case.model, block, policy, caching, "torch" if block == 4 else "numba")
    first, steps = answer(engine, case.prompts, OUTPUT)
    again, more = answer(engine, case.prompts, OUTPUT)
    assert first == again == case.outputs
    is_tight = policy == "chunked" or not has_windows(case.model)
    assert sum(step.preemptions for step in steps) > 0 or not is_tight
    hits = sum(step.prefix_cache_hits for step in steps + more)
    assert hits == 0 or caching != "none"
    assert hits > 0 or caching == "none" or block == 64 or has_windows(case.model)


@pytest.mark.parametrize(("family", "kv_dtype"), [("gpt-oss", "int8"), ("gemma3", "bf16"), ("deepseek-v2", "int8")])
def test_within_a_kv_dtype_the_answer_does_not_depend_on_settings(
    answered: Callable[[str], Answered], family: str, kv_dtype: str
) -> None:
    case = answered(family)
    found = []
    for block, policy, caching in ((16, "continuous", "none"), (4, "chunked", "hash"), (64, "static", "hash")):
        outputs, _ = answer(engine_of(case.model, block, policy, caching, "numba", kv_dtype), case.prompts, OUTPUT)
        found.append(outputs)
    assert found[0] == found[1] == found[2]
