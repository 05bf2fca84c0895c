from __future__ import annotations

import csv
import json

from click.testing import CliRunner, Result

from kvbench.cli.hits import _POLICIES
from kvbench.cli.workload import workload
from kvbench.errors import UsageError
from tests.workload.helpers import FIXTURES


def _run(*args: object) -> Result:
    return CliRunner().invoke(workload, ["hits", *map(str, args)])


def test_a_trace_is_simulated_at_the_block_size_by_which_it_records_sharing() -> None:
    result = _run(FIXTURES / "mooncake.jsonl", "--format", "json")
    assert result.exit_code == 0, result.output
    rates = json.loads(result.stdout)
    assert {rate["block_size"] for rate in rates} == {512}
    assert {rate["sharing"] for rate in rates} == {"recorded"}
    assert rates[0]["policy"] == "bound"
    best = {rate["capacity_blocks"]: rate["hit_tokens"] for rate in rates if rate["policy"] == "min"}
    assert all(rate["hit_tokens"] <= best[rate["capacity_blocks"]] for rate in rates[1:])


def test_one_row_per_policy_capacity_and_block_size() -> None:
    result = _run(
        "prefix-cache", "--block-size", 8, "--block-size", 16, "--capacity", 100, "--policy", "lru", "--policy", "min",
        "--format", "csv",
    )  # fmt: skip
    rows = list(csv.DictReader(result.stdout.splitlines()))
    workloads = {row["workload_digest"] for row in rows}
    assert len(rows) == len(workloads) * 2 * 3  # block sizes × (bound, lru, min)
    assert {row["capacity_tokens"] for row in rows} == {"", "800", "1600"}


def test_people_get_a_table_per_workload_with_a_column_per_policy() -> None:
    result = _run(FIXTURES / "azure2023.csv", "--block-size", 16)
    assert result.exit_code == 0, result.output
    head = next(line for line in result.stdout.splitlines() if line.strip().startswith("blocks"))
    assert head.split() == ["blocks", "tokens", *_POLICIES, "bound", "rejected"]
    assert "|" in _run(FIXTURES / "azure2023.csv", "--format", "md").stdout


def test_bad_input_is_one_error() -> None:
    assert _run("prefix-cache", "--policy", "clock").exit_code == 2
    assert _run("prefix-cache", "--capacity", 0).exit_code == 2
    assert _run("").exit_code == 2
    assert isinstance(_run("no-such-suite").exception, UsageError)
