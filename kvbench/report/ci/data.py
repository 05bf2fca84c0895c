"""A verdict for machines: every number as one JSON object, or one Parquet row per case and metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench import __version__
from kvbench.analysis.gate.types import CaseVerdict, SuiteVerdict
from kvbench.report.ci.context import GateContext
from kvbench.store.version import SCHEMA_VERSION

if TYPE_CHECKING:
    import pyarrow as pa

    from kvbench.store.comparability import FieldDifference

FORMAT = "kvbench gate verdict"
CASE_FIELDS = tuple(field.name for field in fields(CaseVerdict))
_FORMAT_KEY = b"kvbench.format"
_UNITS = {"baseline_median": "the metric's", "candidate_median": "the metric's"}


def case_record(case: CaseVerdict) -> dict[str, Any]:
    """Every field of a case's verdict, NaN as None."""
    found: dict[str, Any] = plain_json(asdict(case))
    return found


def json_document(verdict: SuiteVerdict, context: GateContext) -> dict[str, Any]:
    """The whole verdict as one object."""
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "kvbench_version": __version__,
        "suite": context.suite,
        "verdict": str(verdict.verdict),
        "exit_code": int(context.exit_code),
        "advisory": verdict.advisory,
        "counts": {str(name): count for name, count in verdict.counts().items()},
        "baselines": list(context.baselines),
        "candidates": list(context.candidates),
        "cases": [case_record(case) for case in verdict.cases],
        "uniform": plain_json(asdict(verdict.uniform)) if verdict.uniform else None,
        "self_test": plain_json(asdict(verdict.self_test)) if verdict.self_test else None,
        "noise_floor": plain_json(verdict.noise_floor),
        "rule": plain_json(asdict(verdict.rule)),
        "differences": difference_records(context.differences),
        "notes": list(context.notes),
    }


def difference_records(differences: Sequence[FieldDifference]) -> list[dict[str, Any]]:
    """Fields in which the sides differ: role, item, field, both values and the number of cases."""
    return [plain_json(difference._asdict()) for difference in differences]


def verdict_table(verdict: SuiteVerdict, context: GateContext) -> pa.Table:
    """One row per case and metric: the fields of `CaseVerdict`, the suite and its verdict; effects are relative."""
    import pyarrow as pa

    rows = [case_record(case) | {"reasons": [str(reason) for reason in case.reasons]} for case in verdict.cases]
    columns = {name: [row[name] for row in rows] for name in CASE_FIELDS}
    arrays = {name: pa.array(values, _type(name)) for name, values in columns.items()}
    arrays["suite"] = pa.array([context.suite] * len(rows), pa.string())
    arrays["suite_verdict"] = pa.array([str(verdict.verdict)] * len(rows), pa.string())
    described = [pa.field(name, array.type, metadata={"unit": _UNITS.get(name, "")}) for name, array in arrays.items()]
    metadata = {b"kvbench.schema_version": str(SCHEMA_VERSION).encode(), _FORMAT_KEY: FORMAT.encode()}
    return pa.table(list(arrays.values()), schema=pa.schema(described, metadata=metadata))


def is_verdict_table(path: Path) -> bool:
    """Whether the file is a `verdict_table` in Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return (pq.read_schema(path).metadata or {}).get(_FORMAT_KEY) == FORMAT.encode()
    except (pa.ArrowException, ValueError):
        return False


def _type(name: str) -> Any:
    import pyarrow as pa

    kinds = {"blocks": pa.int64(), "advisory": pa.bool_(), "reasons": pa.list_(pa.string())}
    words = ("case_id", "metric", "verdict", "stage", "worse", "label", "unit")
    return kinds.get(name, pa.string() if name in words else pa.float64())


def plain_json(value: Any) -> Any:
    """As JSON can hold it: words of an enum as text, NaN and infinities None."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
