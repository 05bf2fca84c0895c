"""The pool that each candidate has: the same bytes of KV, or what the same device leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.analysis.advice.arithmetic import BlockRow, block_table
from kvbench.analysis.advice.memory import DeviceMemory, KvMemory, Memory
from kvbench.geometry.budget import Load
from kvbench.geometry.sizing import Question as SizeQuestion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.analysis.advice.lengths import LengthSample
    from kvbench.spec.cases import Case
    from kvbench.spec.engine import EngineSettings
    from kvbench.sweep.advice.evidence import Evidence
    from kvbench.sweep.advice.question import Question

HEADROOM_SHARE = 0.1
"""Of a device's memory that is left alone, as `kvbench size` does"""


def memory_of(question: Question, evidence: Evidence, settings: EngineSettings) -> Memory:
    """KV bytes that were named, a device's memory, what the runs had, or the memory of the device at hand, in this
    order."""
    load = Load(settings.max_sequences, settings.max_batch_tokens, context_of(evidence, settings))
    is_named = question.memory_bytes is not None or (question.gpu is not None and evidence.known is None)
    kv_bytes = question.kv_memory_bytes
    if kv_bytes is None and not is_named and settings.kv_memory != "auto":
        kv_bytes = int(settings.kv_memory)
    if kv_bytes is not None:
        return KvMemory(evidence.geometry, kv_bytes, load)
    total = question.memory_bytes or evidence.device.memory_bytes
    return DeviceMemory(
        SizeQuestion(
            model=evidence.whole,
            memory_bytes=total,
            lengths=(),
            tp=question.tp,
            weight_dtype=str(settings.weight_dtype),
            headroom_bytes=int(total * HEADROOM_SHARE),
            load=load,
        )
    )


def context_of(evidence: Evidence, settings: EngineSettings) -> int:
    """Longest sequence, tokens."""
    longest = evidence.whole.max_context
    return longest if settings.max_context == "auto" else min(int(settings.max_context), longest)


def exact_rows(
    question: Question, evidence: Evidence, sample: LengthSample, cases: Sequence[Case]
) -> list[tuple[EngineSettings, BlockRow]]:
    """For every candidate its settings, with the bytes of its pool, and its exact row. Raises `CannotRunError` with the
    arithmetic where a device has no room for a block."""
    tables: dict[tuple[str, str, int, int], dict[int, BlockRow]] = {}
    found = []
    for case in cases:
        engine = case.engine
        assert engine is not None
        key = (engine.kv_dtype, engine.kv_scales, engine.max_sequences, engine.max_batch_tokens)
        if key not in tables:
            sizes = sorted({c.engine.block_size for c in cases if c.engine is not None})
            rows = block_table(
                sample,
                memory_of(question, evidence, engine),
                block_sizes=sizes,
                kv_dtype=engine.kv_dtype,
                kv_scales=engine.kv_scales,
            )
            tables[key] = {row.block_size: row for row in rows}
        row = tables[key][engine.block_size]
        found.append((engine.model_copy(update={"kv_memory": row.pool_bytes}), row))
    return found
