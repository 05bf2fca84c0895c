"""The whole scheduler step, without the model: schedule, prepare batch, commit, record, release.

Loads over a pool of 60,000 blocks of 16 tokens: `steady` (256 sequences decode, nobody joins or leaves), the same with
4,096 (short ones, so that they fit), and `turnover` (of 256, in every step two finish and two prompts of 512 tokens are
admitted). Bars are for the steady steps: 300 µs at 256, 2 ms at 4,096. Turnover has none.

Times are the thread's own CPU time: a step of 2 ms is longer than the slices that a busy machine gives to others.

    python benchmarks/scheduler_step.py [--json] [--steps 400]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvbench.cache.manager import make_manager
from kvbench.cache.types import CacheSettings
from kvbench.engine.copies import Moved
from kvbench.engine.job import Job
from kvbench.engine.keys import token_keys
from kvbench.engine.prepare import prepare_batch
from kvbench.engine.recorder import Recorder, request_record
from kvbench.engine.scheduler import Scheduler
from kvbench.engine.sequence import Sequence
from kvbench.spec.engine import EngineSettings

RUNNING = 256
MANY = 4_096
MANY_STEPS = 100
"""Steps of 4,096 sequences until the pool is nearly full"""
BARS_US = {RUNNING: 300.0, MANY: 2_000.0}
PARTS = ("schedule", "prepare", "commit", "record", "release")


@dataclass
class Bench:
    """One scheduler over one manager; `times_us[part]` has an entry per step."""

    prefix_cache: str
    running: int = RUNNING
    next_id: int = 0
    times_us: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in (*PARTS, "total")})

    def __post_init__(self) -> None:
        settings = EngineSettings.model_validate(
            {"max_sequences": self.running, "max_batch_tokens": 1 << 20, "prefix_cache": self.prefix_cache}
        )
        sizes = CacheSettings(16, 60_000, self.running, 8192, prefix_cache=self.prefix_cache)
        self.manager = make_manager(sizes)
        self.scheduler = Scheduler(self.manager, settings)
        self.recorder = Recorder(block_bytes=1 << 16)
        self.random = np.random.default_rng(0)

    def add(self, prompt: int, output: int) -> None:
        tokens = self.random.integers(0, 32_000, prompt, dtype=np.int32)
        self.scheduler.add(Sequence(Job(self.next_id, tokens, output, arrival_s=float(self.next_id))))
        self.next_id += 1

    def step(self) -> None:
        """One iteration of the engine's loop with the device left out; sampled tokens are made before the clock."""
        tokens = self.random.integers(0, 32_000, self.running + 8, dtype=np.int64)
        marks = [time.thread_time()]
        schedule = self.scheduler.schedule(0.0)
        self.manager.complete(self.manager.take_transfers())
        marks.append(time.thread_time())
        prepare_batch(schedule, self.manager)
        sampling = [sequence.job.sampling for sequence in schedule.sampling_sequences]
        token_keys(schedule.random_keys, schedule.output_indices)
        marks.append(time.thread_time())
        finished = self.scheduler.commit(schedule, tokens[: len(sampling)], 0.0)
        marks.append(time.thread_time())
        self.recorder.step(schedule, self.manager.stats(), Moved(), (0.0, 0.0))
        marks.append(time.thread_time())
        self.scheduler.release(finished)
        for sequence in finished:
            request_record(sequence)
        marks.append(time.thread_time())
        for part, start, end in zip(PARTS, marks, marks[1:], strict=False):
            self.times_us[part].append((end - start) * 1e6)
        self.times_us["total"].append((marks[-1] - marks[0]) * 1e6)


def measure(load: str, prefix_cache: str, running: int, steps: int) -> dict[str, float]:
    """Median µs per part, and the 90th percentile of the whole step."""
    bench = Bench(prefix_cache, running)
    shortest = 1024 if running == RUNNING else 32
    for index in range(running):
        output = 5_000 if load == "steady" else 1 + index // 2
        bench.add(shortest + int(bench.random.integers(0, shortest)), output)
    bench.step()
    bench.times_us = {part: [] for part in bench.times_us}
    gc.disable()
    for _ in range(steps):
        if load == "turnover":
            bench.add(512, RUNNING // 2)
            bench.add(512, RUNNING // 2)
        bench.step()
    gc.enable()
    medians = {part: statistics.median(times) for part, times in bench.times_us.items()}
    return {**medians, "p90": float(np.percentile(bench.times_us["total"], 90))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = [
        {
            "load": load,
            "running": running,
            "prefix_cache": prefix_cache,
            **measure(
                load, prefix_cache, running, min(options.steps, MANY_STEPS) if running == MANY else options.steps
            ),
        }
        for load, running in (("steady", RUNNING), ("steady", MANY), ("turnover", RUNNING))
        for prefix_cache in ("none", "hash")
    ]
    worst = {
        running: max(float(row["total"]) for row in rows if row["load"] == "steady" and row["running"] == running)
        for running in BARS_US
    }
    if options.json:
        print(json.dumps({"unit": "µs", "bars_us": BARS_US, "worst_steady_us": worst, "rows": rows}))
        return
    columns = (*PARTS, "total", "p90")
    print(
        f"{'load':<10}{'running':>8}  {'prefix':<8}"
        + "".join(f"{name:>10}" for name in columns)
        + "   (median µs per step)"
    )
    for row in rows:
        print(
            f"{row['load']:<10}{row['running']:>8}  {row['prefix_cache']:<8}"
            + "".join(f"{row[name]:>10.0f}" for name in columns)
        )
    for running, bar in BARS_US.items():
        print(
            f"steady step of {running:,}: {worst[running]:.0f} µs; bar {bar:.0f} µs; ratio {worst[running] / bar:.2f}"
        )


if __name__ == "__main__":
    main()
