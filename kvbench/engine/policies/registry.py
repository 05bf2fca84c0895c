"""Names of policies → `"module:Class"`, imported when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.engine.policies.admission import AdmissionPolicy
    from kvbench.engine.policies.batch import BatchPolicy

BATCH_POLICIES = {
    "static": "kvbench.engine.policies.batch:Static",
    "continuous": "kvbench.engine.policies.batch:Continuous",
    "chunked": "kvbench.engine.policies.batch:Chunked",
}
ADMISSION_POLICIES = {
    "max-utilization": "kvbench.engine.policies.admission:MaxUtilization",
    "guaranteed-no-evict": "kvbench.engine.policies.admission:GuaranteedNoEvict",
}


def batch_policy(name: str) -> BatchPolicy:
    policy: BatchPolicy = _build(name, BATCH_POLICIES, "batch policy")
    return policy


def admission_policy(name: str) -> AdmissionPolicy:
    policy: AdmissionPolicy = _build(name, ADMISSION_POLICIES, "admission policy")
    return policy


def _build(name: str, registry: dict[str, str], what: str) -> Any:
    if name not in registry:
        raise UsageError(f"unknown {what} {name!r}", hint=f"one of {', '.join(registry)}")
    module, _, attribute = registry[name].partition(":")
    return getattr(import_module(module), attribute)()
