"""A run as it is read (`open_run`): sealed, unsealed or half of each. `run_folder.py` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kvbench.store import files
from kvbench.store.manifest import build_manifest, check_shape, workload_summary
from kvbench.store.parts import Key
from kvbench.store.request_rows import request_of
from kvbench.store.state import State
from kvbench.store.version import check_version_number
from kvbench.workload.request import Request

if TYPE_CHECKING:
    from pandas import DataFrame


class Run:
    """A run that is read: sealed, unsealed or half of each. Tables are pandas DataFrames, loaded when first used."""

    def __init__(self, path: Path) -> None:
        self._state = State(path)
        self.path = path
        self.run_id = self._state.run_id
        self.plan: dict[str, Any] = self._state.plan
        self.problems: list[str] = self._state.problems
        """One line for every stored sample that is damaged and was left out."""

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Axis column → its values, in the suite's order."""
        return self._state.axes

    @cached_property
    def case_rows(self) -> list[dict[str, Any]]:
        """`cases` as plain dicts (column → value, None where there is none), without pandas."""
        rows: list[dict[str, Any]] = self._state.cases().to_pylist()
        return rows

    def case_values(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Keys, status and the named columns of every row, in no order; quick, and without pandas."""
        return self._state.selected(columns)

    @cached_property
    def cases(self) -> DataFrame:
        """One row per case × sample, in the plan's order."""
        return _frame(self._state.cases())

    @cached_property
    def requests(self) -> DataFrame:
        """One row per request and sample."""
        return _frame(self._joined("requests"))

    @cached_property
    def steps(self) -> DataFrame:
        """One row per engine step and sample (one in `steps_stride`)."""
        return _frame(self._joined("steps"))

    def sample_table(self, table: str, case_id: str, sample: int) -> pa.Table:
        """`requests` or `steps` of one sample, without the rest of the run in memory; no rows where it has none."""
        found = [self._state.schema(table).empty_table()]
        for piece in self._state.pieces(table):
            is_its = pc.and_(pc.equal(piece["case_id"], case_id), pc.equal(piece["sample"], sample))
            found.append(piece.filter(is_its))
        return pa.concat_tables([piece for at, piece in enumerate(found) if at == 0 or piece.num_rows])

    def first_steps(self, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Case id → column → array [steps], of the first sample of the case that has any; without pandas."""
        import numpy as np

        table = self._state.columns_of("steps", columns)
        cases = table["case_id"].combine_chunks().dictionary_encode()
        codes, samples = np.asarray(cases.indices), table["sample"].to_numpy()
        if not len(cases):
            return {}
        first = np.full(len(cases.dictionary), np.iinfo(np.int64).max)
        np.minimum.at(first, codes, samples)
        rows = np.flatnonzero(samples == first[codes])
        rows = rows[np.argsort(codes[rows], kind="stable")]
        ends = np.searchsorted(codes[rows], np.arange(1, len(first)))
        arrays = {name: table[name].to_numpy() for name in columns}
        return {
            case_id: {name: array[mine] for name, array in arrays.items()}
            for case_id, mine in zip(cases.dictionary.to_pylist(), np.split(rows, ends), strict=True)
            if mine.size
        }

    def columns_of(self, table: str, columns: Sequence[str]) -> pa.Table:
        """Columns of `requests` or `steps` of all samples, with their keys, without pandas; null where a run that an
        older kvbench wrote lacks one."""
        return self._state.columns_of(table, columns)

    def of_samples(self, table: str, keys: Iterable[Key], columns: Sequence[str]) -> pa.Table:
        """Columns of `requests` or `steps` for few samples, without pandas: quick in a run of many."""
        return self._state.of_samples(table, set(keys), columns)

    @cached_property
    def workload(self) -> DataFrame:
        """The requests as they were run, one set for every distinct `workload_digest`."""
        return _frame(self._workload_table)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The sealed manifest; for a run that was never sealed, what it would say, without file digests."""
        sealed = self._state.sealed_manifest()
        if sealed is not None and not self._state.parts:
            return sealed
        workloads = workload_summary(self._workload_table)
        return build_manifest(self.plan, rows=self._state.rows(), workloads=workloads)

    @cached_property
    def lengths(self) -> dict[str, tuple[list[int], list[int]]]:
        """Workload digest → the prompts' and the outputs' lengths in tokens, in the order of the requests; without
        pandas."""
        table = self._workload_table.select(["workload_digest", "input_tokens", "output_tokens"])
        found: dict[str, tuple[list[int], list[int]]] = {}
        for digest, inputs, outputs in zip(*(column.to_pylist() for column in table.columns), strict=True):
            both = found.setdefault(digest, ([], []))
            both[0].append(inputs)
            both[1].append(outputs)
        return found

    def requests_of(self, digest: str) -> list[Request]:
        """The requests of one workload, ready to be served again."""
        table = self._workload_table
        rows = table.filter(pc.equal(table["workload_digest"], digest)).to_pylist()
        return [request_of(row) for row in rows]

    @cached_property
    def _workload_table(self) -> pa.Table:
        nothing = pa.Table.from_batches([], self._state.schema("workload"))
        return pa.concat_tables([nothing, *self._state.workload_pieces()])

    def _joined(self, table: str) -> pa.Table:
        return pa.concat_tables([self._state.schema(table).empty_table(), *self._state.pieces(table)])


def open_run(path: str | Path) -> Run:
    """Open a run folder for reading. Raises `UsageError` for what is not one or is newer than this kvbench, and
    `DataError`, naming the file, for one that is damaged; the tables are checked when they are first used."""
    return Run(Path(path))


def read_manifest(path: str | Path) -> dict[str, Any]:
    """The manifest of a run folder, or in a `manifest.json` that lies anywhere. Raises as `open_run` does."""
    path = Path(path)
    if not path.is_file():
        return open_run(path).manifest
    found = files.read_json(path)
    check_version_number(found.get("schema_version"), str(path))
    check_shape(found, str(path))
    return found


def _frame(table: pa.Table) -> DataFrame:
    import pandas as pd

    nullable = {pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame: DataFrame = table.to_pandas(types_mapper=nullable.get)
    return frame
