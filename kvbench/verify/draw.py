"""A random scenario from a seed: small pools, few token ids, shared beginnings, and faults at every turn.

Values of named settings are taken from the settings model itself, so a mechanism that is offered is also verified.
"""

from __future__ import annotations

import random
import typing
from typing import Any, get_args

from pydantic import ValidationError

from kvbench.cache.manager import make_manager
from kvbench.engine.memory import decode_tokens, step_tokens
from kvbench.errors import KvbenchError
from kvbench.geometry.memory import window_blocks
from kvbench.spec.engine import EngineSettings
from kvbench.verify.honest import VOCAB, honest_outputs
from kvbench.verify.scenario import FAULT_KINDS, Ask, Fault, Scenario
from kvbench.verify.settings import cache_settings, engine_settings

LONGEST_STEM = 48
FAULT_RATE = 0.02
"""Faults per turn and request in flight, near enough."""
GROUPS: tuple[tuple[int | None, ...], ...] = (
    *((None,),) * 6, (None, None), (6,), (None, 9), (None, 3, 3, 20),
)  # fmt: skip
"""Layer groups: a window each, None for full attention"""
_SIZES = ("host_memory", "disk_memory", "swap_memory")
_UNKNOWN = ("first-layers", "draft-model")
"""Values that need a model"""
_FIXED = frozenset({"attention", "weight_dtype", "kv_dtype", "kv_layout"})
"""Settings that only tensors know"""


def draw_scenario(seed: int, fault_rate: float = FAULT_RATE) -> Scenario:
    """The scenario of this seed; the same in every process of this version."""
    rng = random.Random(seed)
    while True:
        scenario = _draw(rng, fault_rate)
        try:
            make_manager(cache_settings(scenario, engine_settings(scenario)))
        except KvbenchError:  # what the cache refuses is not to be verified
            continue
        return scenario


def _draw(rng: random.Random, fault_rate: float) -> Scenario:
    windows = rng.choice(GROUPS)
    engine, settings = draw_settings(rng)
    asks = tuple(_draw_asks(rng, settings))
    longest = max(len(ask.prompt) + ask.output for ask in asks)
    needed = max(sum(_most_blocks(window, ask, settings) for window in windows) for ask in asks)
    blocks = needed + rng.choice([0, 0, 1, 2, 4, needed, 3 * needed])
    context = longest + rng.randrange(8)
    if settings.allocator != "paged":
        reserved = len(windows) * -(-context // settings.block_size)
        reserved = 1 << (reserved - 1).bit_length() if settings.allocator == "buddy" else reserved
        blocks = reserved + rng.randrange(2 * reserved)
    turns = 4 + sum(ask.output for ask in asks)
    return Scenario(
        engine=engine,
        num_blocks=max(blocks, 2),
        host_blocks=rng.randint(1, 12) if settings.offload != "none" else 0,
        disk_blocks=rng.randint(1, 20) if settings.offload == "host+disk" else 0,
        swap_blocks=rng.randint(1, 40) if settings.preemption != "recompute" else 0,
        max_context=context,
        windows=windows,
        asks=asks,
        faults=tuple(_draw_faults(rng, turns, len(asks), fault_rate)),
        lag=rng.choice([0, 0, 2, 5]),
        guess=rng.choice([None, 0.3, 0.9]) if settings.speculation != "none" else None,
        weak_hash=settings.prefix_cache == "hash" and rng.random() < 0.15,
    )


def _blocks(ask: Ask, block_size: int) -> int:
    """Blocks of one layer group that the request needs at most: what is full of its prompt is shared."""
    shared = len(ask.prompt) // block_size
    return shared + ask.width * (-(-(len(ask.prompt) + ask.output) // block_size) - shared)


def _most_blocks(window: int | None, ask: Ask, settings: EngineSettings) -> int:
    """The same with windows counted as they slide, so that a pool of just these is drawn too. Sequences of one request
    claim what they share of a window."""
    blocks, step = _blocks(ask, settings.block_size), step_tokens(settings)
    if window is None or settings.allocator != "paged":
        return blocks
    if ask.width > 1:
        return ask.width * (-(-(len(ask.prompt) + ask.output) // settings.block_size) + 1)
    if step is None:
        return blocks
    return min(blocks, window_blocks(window, settings.block_size, max(step, decode_tokens(settings))))


def draw_settings(rng: random.Random) -> tuple[dict[str, Any], EngineSettings]:
    """Settings that go together, as the suite would refuse the others."""
    while True:
        drawn: dict[str, Any] = {
            "block_size": rng.choice([1, 2, 3, 4, 4, 8, 16]),
            "max_sequences": rng.choice([1, 2, 3, 5, 12]),
            "max_batch_tokens": rng.choice([1, 3, 8, 16, 64]),
            "draft_tokens": rng.choice([1, 3, 6]),
            **dict.fromkeys(_SIZES, 1 << 20),
        }
        for name, values in _named_settings():
            if rng.random() < 0.6:
                drawn[name] = rng.choice(values)
        try:
            return drawn, EngineSettings.model_validate(drawn)
        except ValidationError:
            continue


def _named_settings() -> list[tuple[str, tuple[Any, ...]]]:
    """Settings whose values are a list of names, and switches."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    for name, info in EngineSettings.model_fields.items():
        if name in _FIXED:
            continue
        if info.annotation is bool:
            found.append((name, (False, True)))
        elif typing.get_origin(info.annotation) is typing.Literal:
            found.append((name, tuple(value for value in get_args(info.annotation) if value not in _UNKNOWN)))
    return found


def _draw_asks(rng: random.Random, settings: EngineSettings) -> list[Ask]:
    """Up to 14 requests; a few common beginnings, so that prefixes are shared, few ids, so that they part late, and
    prompts that go on where an earlier answer ended. Drafts go neither with beams nor with forced outputs, and blocks
    that are reserved are not shared."""
    seats = settings.max_sequences if settings.allocator == "paged" else 1
    drafts = settings.speculation != "none"
    stems = [[rng.randrange(4) for _ in range(rng.randrange(1, 30))] for _ in range(2)]
    asks: list[Ask] = []
    for request_id in range(rng.randint(1, 14)):
        stem = rng.choice([*stems, []])[: rng.randrange(1, 31)]
        if asks and rng.random() < 0.3:
            earlier = rng.choice(asks)
            stem = [*earlier.prompt, *honest_outputs(earlier)[0]]
        prompt = (*stem[:LONGEST_STEM], *(rng.randrange(4) for _ in range(rng.randrange(1, 16))))
        output = rng.randint(1, 14)
        width = rng.randint(2, min(4, seats)) if seats > 1 and rng.random() < 0.25 else 1
        is_search = width > 1 and not drafts and rng.random() < 0.5
        forced = (
            tuple(rng.randrange(VOCAB) for _ in range(output))
            if width == 1 and not drafts and rng.random() < 0.3
            else None
        )
        asks.append(
            Ask(
                request_id=request_id,
                prompt=prompt,
                output=output,
                arrival=rng.randrange(20),
                salt=rng.choice([None, None, "a", "b"]),
                stops=rng.random() < 0.3,
                forced=forced,
                priority=rng.randrange(3),
                samples=1 if is_search else width,
                beams=width if is_search else 0,
            )
        )
    return asks


def _draw_faults(rng: random.Random, turns: int, requests: int, rate: float) -> list[Fault]:
    faults = []
    for turn in range(turns):
        for kind in FAULT_KINDS:
            if rng.random() < rate:
                argument = rng.randrange(requests) if kind == "abort" else rng.randrange(1 << 16)
                faults.append(Fault(turn, kind, argument))
    return faults
