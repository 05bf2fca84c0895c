"""What makes two cases the same: their deciding settings, hashed.

A setting that another one switches off decides nothing: it stays out of the id, so that sweeping it is refused as a
duplicate instead of measuring the same thing twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvbench.spec.fields import Settings
from kvbench.spec.workload import LENGTH_NUMBERS, Lengths

Sections = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Moot:
    """`keys` decide nothing while `when` holds; `why` says so to people. A table's name covers all its settings."""

    keys: tuple[str, ...]
    why: str
    when: Callable[[Sections], bool]


def _is_synthetic(case: Sections) -> bool:
    return bool(case["workload"].source == "synthetic")


_TRACE_ONLY = ("trace", "format", "limit", "scale_time", "scale_tokens")
SYNTHETIC_ONLY = ("requests", "input_tokens", "prefix", "sessions")

ENGINE_RULES: tuple[Moot, ...] = (
    Moot(("engine.host_memory",), 'engine.offload is "none"', lambda c: c["engine"].offload == "none"),
    Moot(
        ("engine.hash_function", "engine.eviction"),
        'engine.prefix_cache is "none"',
        lambda c: c["engine"].prefix_cache == "none",
    ),
    Moot(tuple(f"workload.{key}" for key in _TRACE_ONLY), 'workload.source is "synthetic"', _is_synthetic),
    Moot(
        tuple(f"workload.{key}" for key in SYNTHETIC_ONLY),
        'workload.source is "trace"',
        lambda c: not _is_synthetic(c),
    ),
    Moot(
        ("workload.arrival.rate",),
        'workload.arrival.kind is not "poisson"',
        lambda c: c["workload"].arrival.kind != "poisson",
    ),
    Moot(
        ("workload.scale_time",),
        'workload.arrival.kind is not "recorded"',
        lambda c: c["workload"].arrival.kind != "recorded",
    ),
    Moot(
        ("workload.prefix.tokens", "workload.prefix.zipf"),
        "workload.prefix.groups is 0",
        lambda c: c["workload"].prefix.groups == 0,
    ),
    Moot(
        ("workload.sessions.think_time_s",),
        "workload.sessions.turns is 1",
        lambda c: c["workload"].sessions.turns == 1,
    ),
    Moot(
        ("workload.sampling.top_k", "workload.sampling.top_p"),
        "workload.sampling.temperature is 0",
        lambda c: c["workload"].sampling.temperature == 0,
    ),
    Moot(("model.seed",), 'model.weights is "checkpoint"', lambda c: c["model"].weights == "checkpoint"),
)


def moot_keys(case: Sections) -> dict[str, str]:
    """Key (or table) → why it decides nothing in this engine case."""
    if "engine" not in case:
        return {}
    found = {key: rule.why for rule in ENGINE_RULES if rule.when(case) for key in rule.keys}
    return found | _moot_lengths("workload.input_tokens", case["workload"].input_tokens) | _moot_lengths(
        "workload.output_tokens", case["workload"].output_tokens
    )  # fmt: skip


def _moot_lengths(path: str, lengths: Lengths) -> dict[str, str]:
    """Numbers that belong to another kind of distribution."""
    used = {*LENGTH_NUMBERS[lengths.kind], *(("weights",) if lengths.kind == "empirical" else ())}
    numbers = {name for names in LENGTH_NUMBERS.values() for name in names} | {"weights"}
    return {f"{path}.{name}": f'{path}.kind is "{lengths.kind}"' for name in sorted(numbers - used)}


def case_id(kind: str, case: Sections, cache_state: str) -> str:
    """12 hex digits over the kind and every setting that decides the result."""
    deciding = deciding_settings(case)
    if kind == "engine":
        deciding["measure"] = {"cache_state": cache_state}
    text = json.dumps({"kind": kind, **deciding}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def deciding_settings(case: Sections) -> dict[str, Any]:
    """Every section as plain data without what is moot."""
    data = {name: settings.model_dump(mode="json") for name, settings in case.items() if isinstance(settings, Settings)}
    for key in moot_keys(case):
        *tables, last = key.split(".")
        inner: Any = data
        for table in tables:
            inner = inner.get(table, {})
        inner.pop(last, None)
    return data
