from __future__ import annotations

from dataclasses import fields

import pytest

from kvbench.engine.telemetry import RequestRecord, StepRecord
from kvbench.errors import DataError, InternalError, UsageError
from kvbench.spec.engine import EngineSettings
from kvbench.spec.keys import all_keys, column
from kvbench.spec.suite import KernelSettings, SloSettings
from kvbench.store.schemas import TABLES, check_version, columns, conform, fitted, schema, table_of
from kvbench.store.setting_columns import setting_columns, setting_row
from kvbench.store.version import SCHEMA_VERSION


@pytest.mark.parametrize("table", TABLES)
def test_every_field_has_a_unit_and_a_description(table: str) -> None:
    for field in schema(table, "run"):
        assert set(field.metadata) == {b"unit", b"description"}
        assert len(field.metadata[b"description"]) > 5


@pytest.mark.parametrize("table", TABLES)
def test_column_names_are_unique_and_the_file_carries_version_and_run(table: str) -> None:
    found = schema(table, "run-1")
    assert len(set(found.names)) == len(found.names)
    assert found.metadata == {b"kvbench.schema_version": str(SCHEMA_VERSION).encode(), b"kvbench.run_id": b"run-1"}


@pytest.mark.parametrize(("table", "record"), [("requests", RequestRecord), ("steps", StepRecord)])
def test_every_telemetry_field_is_a_column(table: str, record: type) -> None:
    keys = {"run_id", "case_id", "sample", "clock", "attention_mode", "cache_dtype"}
    assert {f.name for f in fields(record)} == set(schema(table, "r").names) - keys


def test_every_setting_of_a_case_is_a_column_under_its_axis_name() -> None:
    found = setting_columns()
    for path, key in all_keys().items():
        if key.kind is not None and path not in ("workload.input_tokens", "workload.output_tokens"):
            assert found[path].name == column(path)


def test_an_engine_and_a_kernel_setting_of_the_same_name_share_a_column() -> None:
    assert setting_row({"engine": EngineSettings(block_size=32)})["block_size"] == 32
    assert setting_row({"kernel": KernelSettings(block_size=64)})["block_size"] == 64
    assert setting_row({"slo": SloSettings(ttft_s=0.5)})["slo_ttft_s"] == 0.5


def test_auto_is_null_in_a_numeric_column_unless_the_axis_has_it() -> None:
    row = {"kv_memory": "auto", "block_size": 16}
    assert fitted(row, schema("cases", "r"))["kv_memory"] is None
    assert fitted(row, schema("cases", "r", {"kv_memory": ["auto", 5]}))["kv_memory"] == "auto"


def test_an_axis_that_is_no_single_setting_gets_a_column_of_its_values() -> None:
    types = {
        c.name: c.type for c in columns("cases", {"input_tokens": [1, 2], "mix": [1, 2.5], "law": [{"kind": "x"}]})
    }
    assert (types["input_tokens"], types["mix"], types["law"]) == ("int64", "float64", "string")


def test_an_unknown_column_or_a_value_of_the_wrong_type_is_our_bug() -> None:
    with pytest.raises(InternalError, match="no_such_column"):
        table_of([{"no_such_column": 1}], schema("cases", "r"))
    with pytest.raises(InternalError, match="output_tokens_per_s"):
        table_of([{"output_tokens_per_s": "fast"}], schema("cases", "r"))


def test_an_older_file_without_a_column_reads_with_nulls() -> None:
    whole = table_of([{"run_id": "r", "case_id": "c", "sample": 0, "step": 3}], schema("steps", "r"))
    found = conform(whole.drop_columns(["readmission_hits"]), schema("steps", "r"))
    assert found.schema.names == whole.schema.names
    assert found["readmission_hits"].to_pylist() == [None]
    assert found["step"].to_pylist() == [3]


def test_m67_a_newer_version_is_refused_and_a_foreign_file_is_bad_data() -> None:
    newer = schema("steps", "r").with_metadata({b"kvbench.schema_version": b"99"})
    with pytest.raises(UsageError, match="written by a newer kvbench"):
        check_version(newer, "steps.parquet")
    with pytest.raises(DataError, match=r"steps\.parquet"):
        check_version(schema("steps", "r").remove_metadata(), "steps.parquet")
