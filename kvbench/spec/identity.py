"""What makes two cases the same: their deciding settings, hashed.

A setting that another one switches off decides nothing: it stays out of the id, so that sweeping it is refused as a
duplicate instead of measuring the same thing twice. What switches what off stays within one section.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvbench.spec.engine import EngineSettings
from kvbench.spec.fields import Settings
from kvbench.spec.suite import MeasureSettings
from kvbench.spec.workload import LENGTH_NUMBERS, OPEN_LOOP, Lengths


@dataclass(frozen=True, slots=True)
class Moot:
    """`keys` of a section decide nothing while `when` holds; `why` says so to people. A table's name covers all its
    settings."""

    keys: tuple[str, ...]
    why: str
    when: Callable[[Any], bool]


TRACE_ONLY = ("trace", "format", "limit", "scale_time", "scale_tokens")
SYNTHETIC_ONLY = ("requests", "input_tokens", "prefix", "documents", "sessions")
CLOSED_LOOP_ONLY = ("arrival.clients", "arrival.think_time_s", "arrival.think")

WIDE = ("fp32", "fp16", "bf16")
"""KV dtypes without scales."""


def _scales(section: str) -> tuple[Moot, ...]:
    return (
        Moot(("kv_scales", "kv_percentile"), f"{section}.kv_dtype needs no scales", lambda x: x.kv_dtype in WIDE),
        Moot(
            ("kv_percentile",),
            f'{section}.kv_scales is not "tensor-percentile"',
            lambda x: x.kv_scales != "tensor-percentile",
        ),
    )


RULES: dict[str, tuple[Moot, ...]] = {
    "model": (Moot(("seed",), 'model.weights is "checkpoint"', lambda m: m.weights == "checkpoint"),),
    "kernel": _scales("kernel"),
    "engine": (
        *_scales("engine"),
        Moot(("reblock_after",), 'engine.reblock_to is "none"', lambda e: e.reblock_to == "none"),
        Moot(
            ("host_memory", "host_eviction", "offload_when", "store_threshold"),
            'engine.offload is "none"',
            lambda e: e.offload == "none",
        ),
        Moot(("disk_memory", "disk_path"), 'engine.offload is not "host+disk"', lambda e: e.offload != "host+disk"),
        Moot(("store_threshold",), 'engine.offload_when is "evicted"', lambda e: e.offload_when == "evicted"),
        Moot(("swap_memory",), 'engine.preemption is "recompute"', lambda e: e.preemption == "recompute"),
        Moot(
            ("promotion",),
            "engine.offload and engine.preemption bring nothing back",
            lambda e: e.offload == "none" and e.preemption == "recompute",
        ),
        Moot(
            ("starvation_limit",),
            'engine.order is "fcfs"',
            lambda e: e.order == "fcfs" and not e.deduplicate_prefixes,
        ),
        Moot(("reservation",), 'engine.allocator is "paged"', lambda e: e.allocator == "paged"),
        Moot(("admission",), "the allocator reserves all that a sequence will need", lambda e: e.allocator != "paged"),
        Moot(
            ("watermark",),
            'engine.admission is not "watermark"',
            lambda e: e.admission != "watermark" or e.allocator != "paged",
        ),
        Moot(
            ("adaptive_initial", "adaptive_floor", "adaptive_decay_steps", "adaptive_ahead"),
            'engine.admission is not "adaptive"',
            lambda e: e.admission != "adaptive" or e.allocator != "paged",
        ),
        Moot(
            ("victim", "preemption"),
            "nobody is preempted",
            lambda e: e.allocator != "paged" or e.admission == "guaranteed-no-evict",
        ),
        Moot(
            ("hash_function", "eviction", "partial_block_reuse"),
            'engine.prefix_cache is "none"',
            lambda e: e.prefix_cache == "none",
        ),
        Moot(("draft_tokens", "acceptance_rate"), 'engine.speculation is "none"', lambda e: e.speculation == "none"),
        Moot(
            ("draft_layers",),
            'engine.speculation is not "first-layers"',
            lambda e: e.speculation != "first-layers",
        ),
        Moot(("draft_model",), 'engine.speculation is not "draft-model"', lambda e: e.speculation != "draft-model"),
        Moot(
            ("hash_function",),
            'engine.prefix_cache is "radix" and engine.offload is "none"',
            lambda e: e.prefix_cache == "radix" and e.offload == "none",
        ),
        Moot(
            ("lrc_alpha", "lrc_beta"),
            'neither engine.eviction nor engine.victim is "lrc-age"',
            lambda e: e.victim != "lrc-age" and (e.eviction != "lrc-age" or e.prefix_cache == "none"),
        ),
    ),
    "workload": (
        Moot(TRACE_ONLY, 'workload.source is "synthetic"', lambda w: w.source == "synthetic"),
        Moot(SYNTHETIC_ONLY, 'workload.source is "trace"', lambda w: w.source == "trace"),
        Moot(("arrival.rate",), "workload.arrival.kind has no rate", lambda w: w.arrival.kind not in OPEN_LOOP),
        Moot(("arrival.burstiness",), 'workload.arrival.kind is not "gamma"', lambda w: w.arrival.kind != "gamma"),
        Moot(
            CLOSED_LOOP_ONLY,
            'workload.arrival.kind is not "closed-loop"',
            lambda w: w.arrival.kind != "closed-loop",
        ),
        Moot(("arrival.think",), "workload.arrival.think_time_s is 0", lambda w: w.arrival.think_time_s == 0),
        Moot(("scale_time",), 'workload.arrival.kind is not "recorded"', lambda w: w.arrival.kind != "recorded"),
        Moot(
            ("prefix.tokens", "prefix.zipf", "prefix.shots", "prefix.shot_tokens"),
            "workload.prefix.groups is 0",
            lambda w: w.prefix.groups == 0,
        ),
        Moot(("prefix.shot_tokens",), "workload.prefix.shots is 0", lambda w: w.prefix.shots == 0),
        Moot(
            ("documents.per_request", "documents.tokens", "documents.zipf"),
            "workload.documents.corpus is 0",
            lambda w: w.documents.corpus == 0,
        ),
        Moot(
            ("sessions.think_time_s", "sessions.think"),
            "workload.sessions.turns is 1",
            lambda w: w.sessions.turns == 1,
        ),
        Moot(("sessions.think",), "workload.sessions.think_time_s is 0", lambda w: w.sessions.think_time_s == 0),
        Moot(
            ("sampling.top_k", "sampling.top_p"),
            "workload.sampling.temperature is 0",
            lambda w: w.sampling.temperature == 0,
        ),
    ),
}


def moot_keys(section: str, settings: Settings) -> dict[str, str]:
    """Dotted key of a setting or table → why it decides nothing in this section."""
    rules = [rule for rule in RULES.get(section, ()) if rule.when(settings)]
    found = {f"{section}.{key}": rule.why for rule in rules for key in rule.keys}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Lengths):
            found |= _moot_lengths(f"{section}.{name}", value)
    return found


def _moot_lengths(path: str, lengths: Lengths) -> dict[str, str]:
    """Numbers that belong to another kind of distribution."""
    used = {*LENGTH_NUMBERS[lengths.kind], *(("weights",) if lengths.kind == "empirical" else ())}
    numbers = {name for names in LENGTH_NUMBERS.values() for name in names} | {"weights"}
    return {f"{path}.{name}": f'{path}.kind is "{lengths.kind}"' for name in sorted(numbers - used)}


def deciding_text(section: str, settings: Settings) -> str:
    """The section as JSON with sorted keys, without what is moot, and without names for other settings: a preset and
    the same settings spelled out are the same case."""
    data = settings.model_dump(mode="json", exclude={"preset"})
    for key in moot_keys(section, settings):
        _, *tables, last = key.split(".")
        inner: Any = data
        for table in tables:
            inner = inner.get(table, {})
        inner.pop(last, None)
    return json.dumps(data, sort_keys=True)


def state_text(measure: MeasureSettings | None, engine: EngineSettings | None) -> str:
    """The deciding text of a cache's state at the start, empty for a case without a cache to speak of."""
    if measure is None or engine is None:
        return ""
    state = "cold" if engine.prefix_cache == "none" else measure.cache_state
    share = {"steady_share": measure.steady_share} if state == "steady" else {}
    return json.dumps({"cache_state": state, **share})


def case_id(kind: str, texts: Mapping[str, str], state: str) -> str:
    """12 hex digits of the sha256 over the kind, the deciding text of every section, and for an engine case the state
    of its cache at the start (`state_text`), as one JSON object with sorted keys."""
    parts = {"kind": json.dumps(kind), **texts}
    if state:
        parts["measure"] = state
    text = ", ".join(f'"{name}": {parts[name]}' for name in sorted(parts))
    return hashlib.sha256(f"{{{text}}}".encode()).hexdigest()[:12]
