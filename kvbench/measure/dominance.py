"""Which cases must run out of memory because a smaller one did (M08)."""

from __future__ import annotations

from typing import Any

from kvbench.geometry.dtypes import storage_dtype
from kvbench.measure.job import CaseJob

# What only ever adds memory when it grows, everything else being equal.
_GROWS = {
    "engine": ("kv_memory", "host_memory", "swap_memory", "max_sequences", "max_batch_tokens"),
    "kernel": ("batch", "context", "query_heads", "kv_heads", "head_dim", "kv_dtype"),
}


def is_implied(case: CaseJob, out_of_memory: CaseJob) -> bool:
    """Whether `case` needs at least the memory that `out_of_memory` already did not get."""
    if case.kind != out_of_memory.kind or case.model != out_of_memory.model or case.workload != out_of_memory.workload:
        return False
    ours, theirs = _section(case), _section(out_of_memory)
    grows = _GROWS[case.kind]
    same = all(ours[key] == theirs[key] for key in ours if key not in grows)
    return same and all(_size(ours[key]) >= _size(theirs[key]) for key in grows)


def _section(case: CaseJob) -> dict[str, Any]:
    return (case.engine if case.kind == "engine" else case.kernel) or {}


def _size(value: Any) -> float:
    return float(storage_dtype(value).bytes_per_element) if isinstance(value, str) else float(value)
