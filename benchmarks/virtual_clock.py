"""How fast the virtual clock is, on one core: pure decode at 64 sequences, and a long trace served from a stream.

`decode` has no arrivals: 64 sequences decode 2,000 tokens each over blocks of 16, with and without a prefix cache. The
bar is 20,000 steps/s. `trace` serves the requests of a recorded trace, again and again with fresh prefixes and arrivals
that go on, until `--requests` are served; prompts are named, not written down (`kvbench/cache/symbolic.py`). The bar of
a million requests of the Mooncake conversation mix is 20 minutes and 1 GiB. Defaults: blocks of 64 (a prompt of
12,000 tokens is 750 blocks of 16, each of which is found, published and evicted) and llama-3.2-1b in bf16 on an H100,
which keeps up with the recorded rate (llama-3.1-8b does not, and its queue would grow without end).

    python benchmarks/virtual_clock.py [--trace conversation_trace.jsonl] [--requests 1000000] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvbench.costmodel.model import CostModel
from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.engine.job import Job
from kvbench.engine.step_run import StepRun
from kvbench.engine.stream import serve_stream
from kvbench.engine.symbolic import symbolic_job
from kvbench.engine.telemetry import RequestRecord, StepRecord
from kvbench.engine.virtual import VirtualEngine
from kvbench.geometry.presets import preset
from kvbench.spec.engine import EngineSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.workload.build import build_workload
from kvbench.workload.repeating import repeated_requests


@dataclass
class Totals:
    """A sink that adds up and keeps no record."""

    total: int = 0
    started: float = field(default_factory=time.perf_counter)
    steps_taken: int = 0
    in_runs: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    waiting_max: int = 0
    active_s: float = 0.0
    busy_s: float = 0.0
    finished: int = 0
    rejected: int = 0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)

    def steps(self, steps: Collection[StepRecord]) -> None:
        names = (
            "prefill_tokens",
            "decode_tokens",
            "prefix_cache_queries",
            "prefix_cache_hits",
            "evictions",
            "preemptions",
        )
        self.steps_taken += len(steps)
        if isinstance(steps, StepRun):
            self.in_runs += len(steps)
            base, n = steps.base, len(steps)
            self.sums["decode_tokens"] = self.sums.get("decode_tokens", 0) + n * base.decode_tokens
            self.sums["evictions"] = self.sums.get("evictions", 0) + int(steps.columns["evictions"].sum())
            seconds = float(steps.columns["duration_s"].sum())
        else:
            (base,) = steps
            seconds = base.duration_s
            for name in names:
                self.sums[name] = self.sums.get(name, 0) + getattr(base, name)
        self.busy_s += seconds
        self.active_s += seconds * base.active_sequences
        self.waiting_max = max(self.waiting_max, base.waiting_sequences)

    def request(self, record: RequestRecord) -> None:
        self.finished += record.finish_reason == "length"
        self.rejected += record.finish_reason == "rejected"
        if record.ttft_s is not None:
            self.ttft_s.append(record.ttft_s)
        if record.tpot_s is not None:
            self.tpot_s.append(record.tpot_s)
        done = self.finished + self.rejected
        if self.total and done % max(1, self.total // 20) == 0:
            print(f"{done:,} requests, {time.perf_counter() - self.started:.0f} s, {peak_mib():.0f} MiB", flush=True)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def decode(prefix_cache: str) -> dict[str, Any]:
    """64 sequences decode 2,000 tokens each."""
    settings = EngineSettings.model_validate(
        {"kv_dtype": "bf16", "weight_dtype": "bf16", "kv_memory": "60GiB", "max_batch_tokens": 1 << 20,
         "prefix_cache": prefix_cache}
    )  # fmt: skip
    engine = engine_of("llama-3.1-8b", "h100", settings, symbolic=False)
    rng = np.random.default_rng(0)
    for number in range(64):
        prompt = rng.integers(0, 32_000, 500 + number, dtype=np.int32)
        engine.add(Job(number, prompt, 2000, forced=rng.integers(0, 32_000, 2000, dtype=np.int32)))
    engine.advance(np.inf)
    gc.collect()
    steps, start = 0, time.perf_counter()
    while engine.has_work:
        steps += len(engine.advance(np.inf))
    seconds = time.perf_counter() - start
    return {
        "load": f"decode, prefix_cache={prefix_cache}",
        "steps": steps,
        "seconds": seconds,
        "steps_per_s": steps / seconds,
    }


def trace(
    path: str, requests: int, model: str, device: str, asked: dict[str, Any], scale_time: float
) -> dict[str, Any]:
    """The trace's requests over and over."""
    settings = EngineSettings.model_validate(
        {"kv_dtype": "bf16", "weight_dtype": "bf16", "prefix_cache": "hash", **asked}
    )
    workload = build_workload(
        WorkloadSettings.model_validate(
            {"source": "trace", "trace": path, "arrival": {"kind": "recorded"}, "scale_time": scale_time}
        )
    )
    engine = engine_of(model, device, settings, symbolic=True)
    totals = Totals(total=requests)
    jobs: Iterator[Job] = (symbolic_job(r, workload.seed) for r in repeated_requests(workload.requests, requests))
    gc.freeze()
    start, cpu = time.perf_counter(), time.process_time()
    clock_s = serve_stream(engine, jobs, totals)
    seconds = time.perf_counter() - start
    sums = totals.sums
    cpu = time.process_time() - cpu
    engine.check_invariants()
    return {
        "load": f"{requests:,} requests of {path.rpartition('/')[2]}",
        "model": model, "device": device, "settings": {**asked, "num_blocks": engine.sizes.num_blocks},
        "scale_time": scale_time,
        "seconds": seconds, "cpu_s": cpu, "requests_per_s": requests / seconds,
        "steps": totals.steps_taken, "steps_in_runs": totals.in_runs, "steps_per_s": totals.steps_taken / seconds,
        "peak_rss_mib": peak_mib(),
        "virtual": {
            "clock_s": clock_s, "finished": totals.finished, "rejected": totals.rejected,
            "busy_share": totals.busy_s / clock_s, "active_mean": totals.active_s / max(totals.busy_s, 1e-9),
            "waiting_max": totals.waiting_max,
            "ttft_p50_s": float(np.median(totals.ttft_s)), "ttft_p99_s": float(np.percentile(totals.ttft_s, 99)),
            "tpot_p50_s": float(np.median(totals.tpot_s)), **sums,
            "hit_rate": sums["prefix_cache_hits"] / sums["prefix_cache_queries"],
        },
    }  # fmt: skip


def engine_of(model: str, device: str, settings: EngineSettings, *, symbolic: bool) -> VirtualEngine:
    geometry, rates = preset(model), roofline(virtual_device(device)).rates
    cost = CostModel(geometry, rates, weight_dtype="bf16", kv_dtype="bf16", block_size=settings.block_size)
    return VirtualEngine(geometry, settings, cost, weight_dtype="bf16", symbolic=symbolic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", help="a trace that kvbench reads; without one only `decode` runs")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--model", default="llama-3.2-1b")
    parser.add_argument("--device", default="H100-SXM")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--kv-memory", default="70GiB")
    parser.add_argument("--max-sequences", type=int, default=64)
    parser.add_argument("--max-batch-tokens", type=int, default=16_384)
    parser.add_argument("--scale-time", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = [decode("none"), decode("hash")]
    if asked.trace:
        settings = {
            "block_size": asked.block_size, "kv_memory": asked.kv_memory,
            "max_sequences": asked.max_sequences, "max_batch_tokens": asked.max_batch_tokens,
        }  # fmt: skip
        found.append(trace(asked.trace, asked.requests, asked.model, asked.device, settings, asked.scale_time))
    if asked.json:
        print(json.dumps({"benchmark": "virtual_clock", "results": found}))
        return
    for row in found:
        print(f"{row['load']}: {row['seconds']:.1f} s, {row['steps_per_s']:,.0f} steps/s")
        for name, value in row.items():
            if name not in ("load", "seconds", "steps_per_s"):
                print(f"    {name}: {value}")


if __name__ == "__main__":
    main()
