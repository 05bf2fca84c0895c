"""Names of policies → `"module:Class"`, imported when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.cache.types import CacheManager
    from kvbench.engine.policies.admission import AdmissionPolicy
    from kvbench.engine.policies.batch import BatchPolicy
    from kvbench.engine.policies.order import Order
    from kvbench.engine.policies.preemption import PreemptionPolicy
    from kvbench.engine.policies.victims import VictimPolicy
    from kvbench.spec.engine import EngineSettings

BATCH_POLICIES = {
    "static": "kvbench.engine.policies.batch:Static",
    "continuous": "kvbench.engine.policies.batch:Continuous",
    "chunked": "kvbench.engine.policies.batch:Chunked",
}
ADMISSION_POLICIES = {
    "max-utilization": "kvbench.engine.policies.admission:MaxUtilization",
    "guaranteed-no-evict": "kvbench.engine.policies.admission:GuaranteedNoEvict",
    "watermark": "kvbench.engine.policies.admission:Watermark",
    "adaptive": "kvbench.engine.policies.admission:Adaptive",
}
VICTIM_POLICIES = {
    "last-arrived": "kvbench.engine.policies.victims:LastArrived",
    "first-arrived": "kvbench.engine.policies.victims:FirstArrived",
    "fewest-tokens": "kvbench.engine.policies.victims:FewestTokens",
    "lrc": "kvbench.engine.policies.victims:LeastReferenced",
    "lrc-age": "kvbench.engine.policies.victims:LeastReferencedAndOldest",
    "priority": "kvbench.engine.policies.victims:ByPriority",
}
ORDERS = {
    "fcfs": "kvbench.engine.policies.order:FirstCome",
    "priority": "kvbench.engine.policies.order:ByPriority",
    "shortest-first": "kvbench.engine.policies.order:ShortestFirst",
    "longest-prefix-match": "kvbench.engine.policies.order:LongestPrefixMatch",
}
PREEMPTION_POLICIES = {
    "recompute": "kvbench.engine.policies.preemption:Recompute",
    "swap": "kvbench.engine.policies.preemption:Swap",
    "swap-else-recompute": "kvbench.engine.policies.preemption:SwapElseRecompute",
}


def batch_policy(name: str) -> BatchPolicy:
    """By name; `UsageError` for an unknown one, as from the others."""
    policy: BatchPolicy = _build(name, BATCH_POLICIES, "batch policy")
    return policy


def admission_policy(manager: CacheManager, settings: EngineSettings) -> AdmissionPolicy:
    """The one that the settings name; an allocator that reserves gets the longest length, whatever they name."""
    name = settings.admission if settings.allocator == "paged" else "guaranteed-no-evict"
    policy: AdmissionPolicy = _build(name, ADMISSION_POLICIES, "admission policy", manager, settings)
    return policy


def preemption_policy(name: str) -> PreemptionPolicy:
    """By name."""
    policy: PreemptionPolicy = _build(name, PREEMPTION_POLICIES, "preemption policy")
    return policy


def victim_policy(manager: CacheManager, settings: EngineSettings) -> VictimPolicy:
    """The one that the settings name."""
    policy: VictimPolicy = _build(settings.victim, VICTIM_POLICIES, "victim policy", manager, settings)
    return policy


def order_of(name: str, manager: CacheManager) -> Order:
    """By name; it may look into the manager for cached prefixes."""
    order: Order = _build(name, ORDERS, "order", manager)
    return order


def _build(name: str, registry: dict[str, str], what: str, *parts: object) -> Any:
    if name not in registry:
        raise UsageError(f"unknown {what} {name!r}", hint=f"one of {', '.join(registry)}")
    module, _, attribute = registry[name].partition(":")
    return getattr(import_module(module), attribute)(*parts)
