"""What the bookkeeping costs per call, without tensors: microseconds, median of many calls, pinned to one core.

    python benchmarks/control_plane.py [--json] [--quick]

Setting of the bars: block size 16, prompts of 2,048 tokens, a pool of 60,000 blocks, 256 running rows.
Whole steps of the scheduler are in `scheduler_step.py`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.cache.content import Content, KeyChain
from kvbench.cache.manager import make_manager
from kvbench.cache.types import CacheGroup, CacheSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbench.cache.types import CacheManager, Int32s

BLOCK_SIZE = 16
PROMPT = 2048
POOL = 60_000
ROWS = 256
HYBRID = {"groups": (CacheGroup(), CacheGroup("window", 512)), "step_tokens": 512}
"""A hybrid model: one table for full attention, one for windows"""


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    median_us: float
    worst_us: float
    calls: int
    bar_us: float | None = None


def since(start_ns: int) -> float:
    return (time.perf_counter_ns() - start_ns) / 1000


def figure(name: str, samples: list[float], bar_us: float | None = None) -> Figure:
    return Figure(name, median(samples), max(samples), len(samples), bar_us)


def manager_of(num_blocks: int = POOL, **changes: Any) -> CacheManager:
    given: dict[str, Any] = {
        "block_size": BLOCK_SIZE,
        "num_blocks": num_blocks,
        "max_sequences": 1024,
        "max_context": 8192,
    }
    return make_manager(CacheSettings(**{**given, **changes}))


def fresh_prompt() -> Content:
    """2,048 tokens that no other prompt begins with."""
    return Content(next(_PROMPTS), capacity=PROMPT + 256)


def _prompts() -> Iterator[Int32s]:
    random = np.random.default_rng(1)
    while True:
        yield random.integers(0, 32_000, PROMPT, dtype=np.int32)


def ints(*values: int) -> Int32s:
    return np.array(values, dtype=np.int32)


def hashed(content: Content, manager: CacheManager) -> Content:
    """Keys computed beforehand: hashing has a line of its own."""
    chain = KeyChain(BLOCK_SIZE, manager.settings.namespace, manager.settings.hash_function)
    content.keys(chain, content.length // BLOCK_SIZE)
    if any(group.window for group in manager.settings.groups):
        content.keys(KeyChain(BLOCK_SIZE, manager.settings.namespace, "sha256"), content.length // BLOCK_SIZE)
    return content


def admission_and_free(manager: CacheManager, repeats: int) -> tuple[list[float], list[float]]:
    """Prompts that nobody has seen, computed and released; with a prefix cache the pool fills and evicts."""
    admitted, freed = [], []
    for _ in range(repeats):
        content = hashed(fresh_prompt(), manager)
        start = time.perf_counter_ns()
        row = manager.commit(manager.plan(content, PROMPT)).row
        admitted.append(since(start))
        manager.mark_computed(ints(row), ints(PROMPT))
        start = time.perf_counter_ns()
        manager.release(row)
        freed.append(since(start))
    return admitted, freed


def full_hits(manager: CacheManager, repeats: int) -> list[float]:
    """One prompt again and again: all blocks but the last token's are hits, tokens compared."""
    samples = []
    tokens = np.append(fresh_prompt().tokens, 7)
    for again in range(repeats + 1):
        content = hashed(Content(tokens), manager)
        start = time.perf_counter_ns()
        row = manager.commit(manager.plan(content, PROMPT + 1)).row
        samples.append(since(start))
        manager.mark_computed(ints(row), ints(PROMPT + 1))
        manager.release(row)
        if manager.stats().prefix_cache_hits != again * PROMPT:
            raise SystemExit("the hits that this figure is about did not happen")
    return samples[1:]


def hashing(function: str, repeats: int) -> list[float]:
    chain = KeyChain(BLOCK_SIZE, b"namespace", function)
    samples = []
    for content in [fresh_prompt() for _ in range(repeats)]:
        start = time.perf_counter_ns()
        content.keys(chain, PROMPT // BLOCK_SIZE)
        samples.append(since(start))
    return samples


def decode_steps(
    manager: CacheManager, steps: int, num_rows: int = ROWS, shortest: int = 600
) -> tuple[list[float], list[float], list[float]]:
    """Rows of different lengths: (append with slots, mark computed, share of rows that crossed a block)."""
    contents, rows = [], []
    for seed in range(num_rows):
        content = Content(fresh_prompt().tokens[: shortest + seed], capacity=4096)
        rows.append(manager.commit(manager.plan(content, content.length)).row)
        contents.append(content)
    batch = ints(*rows)
    lengths = ints(*(content.length for content in contents))
    manager.mark_computed(batch, lengths)
    ones = np.ones(num_rows, dtype=np.int32)
    grown, marked, crossing = [], [], []
    for _ in range(steps):
        for content in contents:
            content.append(7)
        longer = lengths + ones
        start = time.perf_counter_ns()
        manager.commit_append(manager.plan_append(batch, longer))
        manager.slots(batch, lengths, ones)
        grown.append(since(start))
        start = time.perf_counter_ns()
        manager.mark_computed(batch, longer)
        marked.append(since(start))
        crossing.append(float(np.mean(longer % BLOCK_SIZE == 0)))
        lengths = longer
    return grown, marked, crossing


def cache_figures(repeats: int) -> Iterator[Figure]:
    admitted, freed = admission_and_free(manager_of(), repeats)
    yield figure("admission, no prefix cache", admitted, 25)
    yield figure("free, no prefix cache", freed, 15)
    fits = POOL * BLOCK_SIZE // PROMPT
    admitted, freed = admission_and_free(manager_of(prefix_cache="hash"), fits)
    yield figure("admission without reuse, hash index, free blocks", admitted, 25)
    yield figure("free into the cache", freed, 15)
    yield figure(
        "admission, every block a hit, tokens compared", full_hits(manager_of(prefix_cache="hash"), repeats), 35
    )
    small = manager_of(5_000, prefix_cache="hash")
    admission_and_free(small, 50)
    yield figure("admission without reuse, 128 evictions (lru)", admission_and_free(small, repeats)[0])
    small = manager_of(5_000, prefix_cache="hash", eviction="fifo")
    admission_and_free(small, 50)
    yield figure("admission without reuse, 128 evictions (fifo)", admission_and_free(small, repeats)[0])
    two = manager_of(prefix_cache="hash", groups=(CacheGroup(), CacheGroup()))
    yield figure("admission, every block a hit, two groups", full_hits(two, repeats), 35 * 1.6)
    hybrid = manager_of(prefix_cache="hash", **HYBRID)
    yield figure("admission, every block a hit, full and window group", full_hits(hybrid, repeats), 35 * 1.6)
    yield figure("hash 128 blocks, xxh3-128", hashing("xxh3-128", repeats), 30)
    yield figure("hash 128 blocks, sha256", hashing("sha256", repeats))
    grown, marked, crossing = decode_steps(manager_of(prefix_cache="hash"), repeats)
    yield figure("step for 256 rows: append, copy-on-write check, slots", grown, 40)
    yield figure(f"mark computed, 256 rows, {np.mean(crossing):.1%} cross a block", marked, 40)
    grown, marked, _ = decode_steps(manager_of(prefix_cache="hash", **HYBRID), repeats)
    yield figure("step for 256 rows, full and window group", grown, 40 * 1.6)
    yield figure("mark computed, full and window group", marked, 40 * 1.6)


def look_ups(manager: CacheManager, repeats: int) -> list[float]:
    """Plans of a prompt that is cached whole; nothing is admitted."""
    tokens = np.append(fresh_prompt().tokens, 7)
    row = manager.commit(manager.plan(Content(tokens), PROMPT + 1)).row
    manager.mark_computed(ints(row), ints(PROMPT + 1))
    manager.release(row)
    samples = []
    for _ in range(repeats):
        content = hashed(Content(tokens), manager)
        start = time.perf_counter_ns()
        plan = manager.plan(content, PROMPT + 1)
        samples.append(since(start))
        if plan.cached_tokens != PROMPT:
            raise SystemExit("the hits that this figure is about did not happen")
    return samples


def flatness(repeats: int) -> Iterator[Figure]:
    """The same calls in pools of 10³ to 10⁶ blocks, full of cached blocks: nothing may grow with the pool."""
    for blocks in (1_000, 10_000, 100_000, 1_000_000):
        for index, eviction in (("hash", "lru"), ("radix", "lru"), ("hash", "lrc-age")):
            manager = manager_of(blocks, prefix_cache=index, eviction=eviction)
            admission_and_free(manager, blocks * BLOCK_SIZE // PROMPT + 1)
            at = f"{index}, {eviction}, pool of {blocks:,}"
            admitted, freed = admission_and_free(manager, repeats)
            yield figure(f"128 evictions, {at}", admitted)
            yield figure(f"free, {at}", freed)
            yield figure(f"look-up of 128 hits, {at}", look_ups(manager, repeats))
            # Short rows: 16 of them with all their steps fit the smallest pool.
            yield figure(f"append of 16 rows, {at}", decode_steps(manager, repeats, 16, shortest=200)[0])


_PROMPTS = _prompts()


def pin_to_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def print_table(figures: list[Figure]) -> None:
    print(f"{'what':58} {'median µs':>10} {'worst µs':>10} {'bar µs':>8} {'ratio':>6}")
    for one in figures:
        bar = f"{one.bar_us:8.0f} {one.median_us / one.bar_us:6.2f}" if one.bar_us else ""
        print(f"{one.name:58} {one.median_us:10.1f} {one.worst_us:10.1f} {bar}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--quick", action="store_true", help="fewer calls per figure")
    options = parser.parse_args()
    pin_to_one_core()
    repeats = 60 if options.quick else 400
    gc.disable()
    figures = [*cache_figures(repeats), *flatness(repeats)]
    if options.json:
        print(json.dumps({"unit": "µs", "block_size": BLOCK_SIZE, "figures": [vars(one) for one in figures]}))
    else:
        print_table(figures)


if __name__ == "__main__":
    main()
