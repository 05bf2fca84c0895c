"""Random histories of the paged manager: hypothesis for the short and shrinkable, a seeded walk for the long."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvbench.cache.content import Content
from tests.cache import naive_eviction  # noqa: F401  registers the checked policies
from tests.cache.history import ENDLESS_HOST, MAX_CONTEXT, History

CACHES: dict[str, dict[str, Any]] = {
    "none": {"prefix_cache": "none"},
    "hash": {},
    "sha256": {"hash_function": "sha256"},
    "radix": {"prefix_cache": "radix"},
    "radix and endless host": {"prefix_cache": "radix", "host_blocks": ENDLESS_HOST},
    "radix, host and collisions": {"prefix_cache": "radix", "host_blocks": 4, "hash_function": "constant"},
    "collisions": {"hash_function": "constant"},
    "fronts": {"partial_block_reuse": True},
    "fronts in a tree": {"partial_block_reuse": True, "prefix_cache": "radix"},
    "fronts, host and collisions": {"partial_block_reuse": True, "host_blocks": 4, "hash_function": "constant"},
    "host of 1": {"host_blocks": 1},
    "host of 4": {"host_blocks": 4},
    "host by arc": {"host_blocks": 4, "host_eviction": "arc"},
    "endless host": {"host_blocks": ENDLESS_HOST},
    "host and collisions": {"host_blocks": 4, "hash_function": "constant"},
}
LAYERS: list[tuple[int | None, ...]] = [(None,), (None, None), (5,), (None, 4), (3, 3, None, 8), (1,)]
"""Windows of the layer groups, None for a full one"""


def layers_for(cache: str, windows: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """What keeps whole prefixes goes without windows."""
    keeps_prefixes = CACHES[cache].keys() & {"host_blocks", "partial_block_reuse"}
    return (None,) * len(windows) if keeps_prefixes else windows


POLICIES = {"lru", "checked fifo", "checked lfu", "checked lrc", "checked lrc-age", "checked priority"}


def prompt(family: int, length: int, tail: list[int]) -> list[int]:
    """Few families, so that prompts meet again after an eviction, and tails that part inside a block."""
    return ([family] * length + tail)[:MAX_CONTEXT]


PROMPTS = st.builds(prompt, st.integers(0, 2), st.integers(1, MAX_CONTEXT), st.lists(st.integers(0, 1), max_size=2))
SALTS = st.sampled_from([None, None, None, "", "s"])


class ManagerMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.integers(1, 4),
        num_blocks=st.integers(2, 12),
        windows=st.sampled_from([(None,), *LAYERS]),
        cache=st.sampled_from(sorted(CACHES)),
        eviction=st.sampled_from(sorted(POLICIES)),
    )
    def start(
        self, block_size: int, num_blocks: int, windows: tuple[int | None, ...], cache: str, eviction: str
    ) -> None:
        self.history = History(
            block_size=block_size,
            num_blocks=num_blocks,
            windows=layers_for(cache, windows),
            eviction=eviction,
            **CACHES[cache],
        )

    @rule(
        tokens=PROMPTS,
        salt=SALTS,
        hold=st.integers(0, MAX_CONTEXT),
        promise=st.sampled_from([0, 0, 0, 5, 9, MAX_CONTEXT]),
        readmission=st.booleans(),
    )
    def admit(self, tokens: list[int], salt: str | None, hold: int, promise: int, readmission: bool) -> None:
        self.history.admit(Content(tokens, salt=salt), hold, promise, readmission)

    @rule(tokens=PROMPTS, salt=SALTS)
    def serve(self, tokens: list[int], salt: str | None) -> None:
        content = Content(tokens, salt=salt)
        row = self.history.admit(content, content.length)
        if row is not None:
            self.history.compute({row: content.length})
            self.history.release(row)

    @rule()
    def carry_out(self) -> None:
        self.history.carry_out()

    @rule()
    def complete(self) -> None:
        self.history.complete()

    @precondition(lambda self: self.history.rows)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        ends = {}
        for row, content in self.history.rows.items():
            done, assigned = self.history.progress(row)
            end = min(assigned, content.length)
            ends[row] = end if data.draw(st.booleans()) else data.draw(st.integers(done, end))
        self.history.compute(ends)

    @precondition(lambda self: self.history.rows)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        rows = data.draw(st.lists(st.sampled_from(sorted(self.history.rows)), unique=True, min_size=1))
        self.history.append({row: data.draw(st.sampled_from([1, 1, 1, 0, 3])) for row in rows}, token)

    @precondition(lambda self: self.history.rows)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        self.history.fork(data.draw(st.sampled_from(sorted(self.history.rows))))

    @precondition(lambda self: self.history.rows)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.history.rows)))
        self.history.truncate(row, data.draw(st.integers(0, self.history.progress(row)[1])))

    @precondition(lambda self: self.history.rows)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.history.release(data.draw(st.sampled_from(sorted(self.history.rows))))

    @rule(sure=st.integers(0, 4))
    def reset(self, sure: int) -> None:
        if not sure:
            self.history.reset()

    @invariant()
    def the_books_add_up(self) -> None:
        if hasattr(self, "history"):
            self.history.check()

    def teardown(self) -> None:
        if hasattr(self, "history"):
            self.history.finish()


ManagerMachine.TestCase.settings = hypothesis_settings(max_examples=100, stateful_step_count=40, deadline=None)
TestManager = ManagerMachine.TestCase


class Walk:
    """A seeded random walk: far longer than what hypothesis tries, mostly through eviction, promotion and copies."""

    def __init__(self, history: History, seed: int) -> None:
        self.history = history
        self.random = random.Random(seed)
        self.queue: list[Content] = []

    def step(self) -> None:
        choices = [self.admit] * 5 + [self.append] * 6 + [self.compute] * 6 + [self.release] * 4
        self.random.choice([*choices, self.fork, self.truncate, self.carry_out, self.complete])()
        self.history.check()
        if self.random.random() < 0.002:
            self.history.reset()

    def admit(self) -> None:
        pick, again = self.random, bool(self.queue) and self.random.random() < 0.5
        if again:
            content = self.queue.pop()
        else:
            tokens = prompt(pick.randrange(3), pick.randint(1, MAX_CONTEXT), pick.choices([0, 1], k=pick.randrange(3)))
            content = Content(tokens, salt=pick.choice([None, None, None, "s"]), priority=pick.randrange(3))
        hold = pick.choice([content.length, content.length, pick.randint(0, content.length)])
        promise = pick.choice([0, 0, 0, pick.randint(0, MAX_CONTEXT)])
        if self.history.admit(content, hold, promise, again) is None and again:
            self.queue.append(content)

    def append(self) -> None:
        growth = {
            row: self.random.choice([1, 1, 1, 2, 4, 0]) for row in self.history.rows if self.random.random() < 0.7
        }
        if growth:
            self.history.append(growth, self.random.randrange(2))

    def compute(self) -> None:
        ends = {}
        for row, content in self.history.rows.items():
            done, assigned = self.history.progress(row)
            end = min(assigned, content.length)
            ends[row] = end if self.random.random() < 0.8 else self.random.randint(done, end)
        self.history.compute(ends)

    def release(self) -> None:
        if self.history.rows:
            row = self.random.choice(sorted(self.history.rows))
            if self.history.rows[row].length:
                self.queue.append(self.history.rows[row])
            self.history.release(row)

    def fork(self) -> None:
        if self.history.rows:
            self.history.fork(self.random.choice(sorted(self.history.rows)))

    def truncate(self) -> None:
        if self.history.rows:
            row = self.random.choice(sorted(self.history.rows))
            self.history.truncate(row, self.random.randint(0, self.history.progress(row)[1]))

    def carry_out(self) -> None:
        self.history.carry_out()

    def complete(self) -> None:
        self.history.complete()


@pytest.mark.parametrize("eviction", ["lru", "checked lrc-age"])
@pytest.mark.parametrize("cache", sorted(CACHES))
def test_a_long_random_walk_keeps_every_promise(cache: str, eviction: str) -> None:
    for seed in range(6):
        pick = random.Random(seed)
        history = History(
            block_size=pick.randint(1, 4),
            num_blocks=pick.randint(3, 16),
            windows=layers_for(cache, LAYERS[seed]),
            eviction=eviction,
            **CACHES[cache],
        )
        walk = Walk(history, seed)
        for _ in range(250):
            walk.step()
        history.finish()


@pytest.mark.parametrize("eviction", sorted({*POLICIES, "checked lru"}))
def test_every_victim_is_that_of_a_scan_through_everything(eviction: str) -> None:
    victims = 0
    for seed in range(10):
        pick = random.Random(seed)
        history = History(
            block_size=pick.randint(1, 2),
            num_blocks=pick.randint(6, 24),
            groups=pick.choice([1, 1, 1, 2]),
            eviction=eviction,
            host_blocks=pick.choice([0, 0, 4]),
            lrc_alpha=pick.choice([1.0, 4.0, 0.0]),
            lrc_beta=pick.choice([1.0, 0.25]),
        )
        walk = Walk(history, seed)
        for _ in range(200):
            walk.step()
        victims += history.manager.stats().evictions
        history.finish()
    assert victims > 50
