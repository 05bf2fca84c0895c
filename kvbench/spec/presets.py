"""Named sets of engine settings: for each serving system the nearest policies that this engine has.

A preset names policies, not sizes: memory, seats and budgets stay as the suite has them, so that presets can be
compared at equal sizes. `cannot` says what a preset does not reproduce. A comparison of presets compares policies in
one engine, not the systems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Preset:
    """`settings` of the `[engine]` table, `source` where the policies are described, `cannot` what is missing."""

    settings: dict[str, Any]
    source: str
    cannot: str


PRESETS: dict[str, Preset] = {
    "vllm": Preset(
        settings={
            "batch_policy": "chunked",
            "block_size": 16,
            "prefix_cache": "hash",
            "hash_function": "sha256",
            "eviction": "lru",
            "admission": "watermark",
            "watermark": 0.01,
            "order": "fcfs",
            "victim": "last-arrived",
            "preemption": "recompute",
        },
        source="vLLM: Kwon et al. 2023 §4.5; docs.vllm.ai, Automatic Prefix Caching, and CacheConfig (blocks of 16, "
        "sha256); watermark 0.01 of the block manager before V1",
        cannot="partial prefills are not spread over several long prompts; asynchronous scheduling; the watermark is "
        "not held against a request while nobody runs",
    ),
    "trtllm-max-utilization": Preset(
        settings={
            "batch_policy": "continuous",
            "block_size": 32,
            "prefix_cache": "hash",
            "partial_block_reuse": True,
            "eviction": "lru",
            "admission": "max-utilization",
            "order": "fcfs",
            "victim": "last-arrived",
            "preemption": "recompute",
        },
        source="TensorRT-LLM: capacity scheduler policy MAX_UTILIZATION, useful runtime options; KV cache reuse",
        cannot="paused requests keep no blocks of their own here; retention priorities and their durations",
    ),
    "trtllm-no-evict": Preset(
        settings={
            "batch_policy": "continuous",
            "block_size": 32,
            "prefix_cache": "hash",
            "partial_block_reuse": True,
            "eviction": "lru",
            "admission": "guaranteed-no-evict",
            "order": "fcfs",
        },
        source="TensorRT-LLM: capacity scheduler policy GUARANTEED_NO_EVICT, its default; KV cache reuse",
        cannot="retention priorities and their durations",
    ),
    "sglang": Preset(
        settings={
            "batch_policy": "chunked",
            "block_size": 1,
            "prefix_cache": "radix",
            "eviction": "lru",
            "order": "longest-prefix-match",
            "deduplicate_prefixes": True,
            "admission": "adaptive",
            "adaptive_initial": 0.7,
            "adaptive_floor": 0.098,
            "adaptive_decay_steps": 600,
            "adaptive_ahead": 20,
            "victim": "fewest-tokens",
            "preemption": "recompute",
        },
        source="SGLang: Zheng et al. 2023 (RadixAttention, longest prefix first; newer servers default to fcfs); "
        "docs.sglang.ai, server arguments (pages of 1) and environment variables SGLANG_INIT_NEW_TOKEN_RATIO 0.7, "
        "MIN_NEW_TOKEN_RATIO_FACTOR 0.14, NEW_TOKEN_RATIO_DECAY_STEPS 600, RETRACT_DECODE_STEPS 20",
        cannot="prefill batches apart from decode batches; its victim has the fewest output tokens, here the fewest "
        "tokens; the longest match is sought among 32 that wait, not 128; starvation is bounded here; outputs are not "
        "estimated as 4,096 tokens at most",
    ),
    "hf-continuous": Preset(
        settings={
            "batch_policy": "chunked",
            "block_size": 256,
            "prefix_cache": "hash",
            "eviction": "lru",
            "admission": "watermark",
            "watermark": 0.2,
            "order": "fcfs",
            "victim": "last-arrived",
            "preemption": "swap",
        },
        source="Hugging Face Transformers: ContinuousBatchingConfig (block_size 256, scheduler_type fifo, "
        "allow_block_sharing) and FIFOScheduler (safety_margin 0.2; 0.15 in newer releases); docs, Continuous batching "
        "architecture: offloading newest first, recomputed when the swap area is full. Needs swap_memory "
        '(cpu_offload_space, off by default there: preemption = "recompute")',
        cannot="cached blocks give way most recent first there, least recently used here; limits of a pass on KV read "
        "and on requests; hybrid and window models share prefixes here; padding to captured graphs; asynchronous "
        "batching; the margin is not held against a request while nobody runs",
    ),
    "orca": Preset(
        settings={
            "batch_policy": "continuous",
            "allocator": "contiguous",
            "reservation": "max",
            "prefix_cache": "none",
            "order": "fcfs",
        },
        source="Orca: Yu et al. 2022 (OSDI), iteration-level scheduling; its memory as in Kwon et al. 2023 §6.1",
        cannot="selective batching and pipelining of iterations; prompts join whole, one budget bounds those of a step",
    ),
    "contiguous": Preset(
        settings={
            "batch_policy": "static",
            "allocator": "contiguous",
            "reservation": "max",
            "prefix_cache": "none",
            "order": "fcfs",
        },
        source="FasterTransformer and others before paging, as described in Kwon et al. 2023 §3.1",
        cannot="prompts are not padded to one length, so its batches cost less here than they did",
    ),
}


def filled_from_preset(data: dict[str, Any]) -> dict[str, Any]:
    """Engine settings with what their preset says in place of what they leave out; explicit keys win."""
    preset = PRESETS.get(str(data.get("preset")))
    return data if preset is None else {**preset.settings, **data}
