"""`python -m kvbench.measure.calibrate`: one short serving of a model, to say how long a sweep may take.

A rough figure on purpose: eight prompts of 128 tokens, sixteen outputs each, after one warm-up; shorter ones where
the context or the KV memory does not hold as many. The best of a few servings, for a busy neighbour only ever adds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from kvbench.measure.job import THREAD_VARIABLES

PROMPTS, INPUT_TOKENS, OUTPUT_TOKENS = 8, 128, 16
SERVINGS = 3


def main() -> int:
    """Settings on stdin (JSON), rates on stdout."""
    start = time.perf_counter()
    asked = json.loads(sys.stdin.read())
    for name in THREAD_VARIABLES:
        os.environ[name] = str(asked["threads"])
    print(json.dumps(calibrate(asked, start)))
    return 0


def calibrate(asked: dict[str, Any], start: float) -> dict[str, float]:
    """Seconds of start-up, and the rates of prefill and decode, tokens per second."""
    import kvbench_kernels.cache
    from kvbench.paths import cache_dir

    kvbench_kernels.cache.use_cache(cache_dir() / "numba")
    import torch

    torch.set_num_threads(asked["threads"])
    kvbench_kernels.set_threads(asked["threads"])
    from kvbench.engine.engine import Engine
    from kvbench.engine.model import Model
    from kvbench.geometry.resolve import resolve_model
    from kvbench.spec.engine import EngineSettings

    settings = EngineSettings.model_validate(asked["engine"])
    dtype = settings.weight_dtype
    model = Model.random(resolve_model(asked["model"]["name"]), seed=0, device=asked["device"], dtype=dtype)
    engine = Engine(model, settings, max_context=asked["max_context"])
    inputs, outputs = shape_within(min(engine.sizes.max_context, engine.num_blocks * settings.block_size))
    prompts = [[(7 * row + at) % model.geometry.vocab_size for at in range(inputs)] for row in range(PROMPTS)]
    engine.generate(prompts, 2)
    ready = time.perf_counter()
    prefill_s = min(_time_of(engine, prompts, 1) for _ in range(SERVINGS))
    whole_s = min(_time_of(engine, prompts, 1 + outputs) for _ in range(SERVINGS))
    decode_s = max(whole_s - prefill_s, 1e-6)
    return {
        "startup_s": ready - start,
        "prefill_tokens_per_s": PROMPTS * inputs / prefill_s,
        "decode_tokens_per_s": PROMPTS * outputs / decode_s,
    }


def _time_of(engine: Any, prompts: list[list[int]], max_tokens: int) -> float:
    start = time.perf_counter()
    engine.generate(prompts, max_tokens)
    return time.perf_counter() - start


def shape_within(room: int) -> tuple[int, int]:
    """Tokens of a prompt, and outputs after the first, that fit a sequence of `room` tokens."""
    outputs = max(1, min(OUTPUT_TOKENS, room // 4))
    return max(1, min(INPUT_TOKENS, room - 1 - outputs)), outputs


if __name__ == "__main__":
    sys.exit(main())
