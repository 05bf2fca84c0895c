"""The pool that each candidate has: the same bytes of KV, or what the same device leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvbench.analysis.advice.arithmetic import BlockRow, block_table
from kvbench.analysis.advice.memory import DeviceMemory, KvMemory, Memory
from kvbench.errors import CannotRunError
from kvbench.geometry.budget import Load
from kvbench.geometry.sizing import Question as SizeQuestion
from kvbench.sweep.advice.question import label_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.analysis.advice.lengths import LengthSample
    from kvbench.spec.cases import Case
    from kvbench.spec.engine import EngineSettings
    from kvbench.sweep.advice.evidence import Evidence
    from kvbench.sweep.advice.question import Question

HEADROOM_SHARE = 0.1
"""Of a device's memory that is left alone, as `kvbench size` does"""


class ExactRow(NamedTuple):
    """A candidate with its settings, the bytes of its pool among them, and what is exact about it."""

    case: Case
    settings: EngineSettings
    block: BlockRow


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
    total = evidence.device.memory_bytes if question.memory_bytes is None else question.memory_bytes
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
) -> tuple[list[ExactRow], tuple[str, ...]]:
    """Every candidate whose pool has a block, with its exact row, and a sentence about each other one. Raises
    `CannotRunError` with the arithmetic where none has a block."""
    tables: dict[tuple[Memory, str, str], dict[int, BlockRow]] = {}
    found, left_out = [], []
    refused: list[CannotRunError] = []
    for case in cases:
        engine = case.engine
        assert engine is not None
        memory = memory_of(question, evidence, engine)
        try:
            memory.pool(engine.kv_dtype, engine.kv_scales, engine.block_size)
        except CannotRunError as error:
            refused.append(error)
            left_out.append(f"{label_of(case, cases)} is left out: {error.message}")
            continue
        key = (memory, engine.kv_dtype, engine.kv_scales)
        if key not in tables:
            tables[key] = _table(sample, cases, *key)
        row = tables[key][engine.block_size]
        found.append(ExactRow(case, engine.model_copy(update={"kv_memory": row.pool_bytes}), row))
    if not found:
        raise refused[0]
    return found, tuple(left_out)


def _table(
    sample: LengthSample, cases: Sequence[Case], memory: Memory, kv_dtype: str, kv_scales: str
) -> dict[int, BlockRow]:
    """Block size → row, for those of the candidates' that have a block."""
    sizes = {case.engine.block_size for case in cases if case.engine is not None}
    fitting = [size for size in sizes if _has_room(memory, kv_dtype, kv_scales, size)]
    rows = block_table(sample, memory, block_sizes=fitting, kv_dtype=kv_dtype, kv_scales=kv_scales)
    return {row.block_size: row for row in rows}


def _has_room(memory: Memory, kv_dtype: str, kv_scales: str, size: int) -> bool:
    try:
        memory.pool(kv_dtype, kv_scales, size)
    except CannotRunError:
        return False
    return True
