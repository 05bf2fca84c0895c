"""The columns of a static report: type, unit and meaning of each; the configuration's own fields stand among them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvbench.store.columns import Column
from kvbench.store.schemas import field_of

_HEAD = (
    Column("rank", "int64", "", "Place among those worth timing, from 1; missing for the others."),
    Column("number", "int64", "", "Place in the space, from 0."),
)
_RESOURCES = (
    Column("registers", "int64", "registers", "Registers per thread."),
    Column("spill_bytes", "int64", "bytes", "Spill stores and loads of a thread's code, together."),
    Column("stack_bytes", "int64", "bytes", "Stack frame per thread."),
    Column("shared_bytes", "int64", "bytes", "Shared memory per block."),
    Column("tensor_memory_columns", "int64", "columns", "Tensor memory per block."),
    Column("wide_loads", "int64", "instructions", "Global loads of 16 bytes or more a thread in the SASS."),
    Column("narrow_loads", "int64", "instructions", "All other global loads in the SASS."),
    Column("tensor_core", "int64", "instructions", "Matrix instructions in the SASS."),
    Column("tensor_core_kind", "string", "", "Their opcodes."),
    Column("code_digest", "string", "", "Digest of machine code, warps and shared memory."),
)
_TAIL = (
    Column("is_default", "bool", "", "What runs where nothing was tuned."),
    Column("status", "string", "", "kept, or why it was dropped."),
    Column("reason", "string", "", "The compiler's or the limit's words, in one line."),
    *_RESOURCES,
    Column("blocks_per_sm", "int64", "blocks", "Blocks that an SM holds at once."),
    Column("occupancy", "float64", "share", "Resident warps over those an SM can hold."),
    Column("limited_by", "string", "", "What holds the occupancy back."),
    Column("same_code_as", "int64", "", "Number of the configuration that stands for this one."),
    Column("splits", "int64", "", "Number of splits that the model finds best."),
    Column("waves", "int64", "", "Waves of programs over the SMs, by the model."),
    Column("model_s", "float64", "s", "Seconds by bytes and occupancy: an order, not a prediction."),
    Column("compile_s", "float64", "s", "From handing the compile to a worker to its answer, disassembly included."),
)
COLUMNS: dict[str, tuple[str, ...]] = {"resources": tuple(column.name for column in _RESOURCES)}


def write_parquet(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> bytes:
    """The rows as a Parquet file (zstd); `facts` as JSON under `kvbench.facts` in its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = {column.name for column in (*_HEAD, *_TAIL)}
    fields = [name for name in rows[0] if name not in known]
    own = [Column(name, _type_of(rows[0][name]), "", "Field of the configuration.") for name in fields]
    columns = (*_HEAD, *own, *_TAIL)
    schema = pa.schema([field_of(column) for column in columns], metadata={"kvbench.facts": json.dumps(facts)})
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def _type_of(value: Any) -> Any:
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else "float64" if isinstance(value, float) else "string"
