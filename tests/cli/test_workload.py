from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner, Result

from kvbench.cli.workload import workload
from kvbench.errors import UsageError
from kvbench.spec.workload import WorkloadSettings
from tests.workload.helpers import FIXTURES

_SUITE = """
name = "chat"
[engine]
[workload]
requests = 12
[axes]
"engine.block_size" = [8, 16]
"workload.sessions.turns" = [1, 3]
"""


def _run(*args: object) -> Result:
    return CliRunner().invoke(workload, ["describe", *map(str, args)])


def _json(*args: object) -> object:
    result = _run(*args, "--format", "json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


def _error(*args: object) -> UsageError:
    result = _run(*args)
    assert isinstance(result.exception, UsageError), result.output
    return result.exception


def test_a_trace_is_described_with_recorded_arrivals_where_it_has_them() -> None:
    facts = _json(FIXTURES / "mooncake.jsonl", "--scale-tokens", "1/16", "--block-size", 16, "--block-size", 32)
    assert facts["arrivals"]["duration_s"] == 9.0
    assert [(row["block_size"], row["sharing"]) for row in facts["block_sizes"]] == [
        (16, "synthetic"),
        (32, "recorded"),
    ]
    assert _json(FIXTURES / "vidur.csv")["arrivals"]["duration_s"] == 0.0


def test_options_reach_the_importer() -> None:
    facts = _json(FIXTURES / "azure2023.csv", "--limit", 2, "--scale-time", 2, "--max-input-tokens", 100)
    assert facts["requests"] == 2
    assert facts["arrivals"]["duration_s"] == 1.4e-6
    assert facts["import"]["clipped_inputs"] == 1
    assert _json(FIXTURES / "azure2023.csv", "--max-output-tokens", 10)["lengths"]["output_tokens"]["max"] == 10


def test_a_suite_shows_every_different_workload_once(tmp_path: Path) -> None:
    path = tmp_path / "chat.toml"
    path.write_text(_SUITE)
    single, turns = _json(path)
    assert (single["sharing"]["kind"], turns["sharing"]["kind"]) == ("none", "synthetic")
    assert turns["arrivals"]["follow_up"] == 8


@pytest.mark.parametrize("option", [("--limit", 3), ("--scale-tokens", "1/2"), ("--scale-time", 2)])
def test_options_for_traces_are_refused_for_a_synthetic_suite(option: tuple[str, object], tmp_path: Path) -> None:
    path = tmp_path / "chat.toml"
    path.write_text(_SUITE)
    assert option[0] in _error(path, *option).message


def test_errors_name_file_line_or_key() -> None:
    assert "no trace" in _error("missing.csv").message
    assert "folder" in _error(FIXTURES).message
    assert "scale_tokens" in _error(FIXTURES / "vidur.csv", "--scale-tokens", "none").message
    assert "limit" in _error(FIXTURES / "vidur.csv", "--limit", 0).message
    assert "--scale-time" in _error(FIXTURES / "vidur.csv", "--scale-time", 2).message
    assert "mooncake.jsonl:1" in _error(FIXTURES / "mooncake.jsonl", "--trace-format", "vidur").message
    assert "vidur" in _error(FIXTURES / "vidur.csv", "--trace-format", "parquet").message
    assert _error("no-such-suite").hint


@pytest.mark.parametrize("form", ["table", "csv", "md", "json"])
def test_every_format_is_text_on_stdout_and_nothing_on_stderr(form: str) -> None:
    result = _run(FIXTURES / "mooncake.jsonl", "--format", form)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "mooncake" in result.stdout
    if form == "csv":
        assert {len(row) for row in csv.reader(result.stdout.splitlines())} == {3}


def test_describing_needs_neither_torch_nor_pandas() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'pandas', 'numba', 'scipy', 'pyarrow'): sys.modules[name] = None\n"
        "from kvbench.cli.workload import workload\n"
        f"workload(['describe', {str(FIXTURES / 'mooncake.jsonl')!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "12,031" not in done.stdout
    assert "recorded" in done.stdout


@pytest.mark.parametrize("command", ["describe", "hits"])
def test_the_help_names_every_trace_format(command: str) -> None:
    shown = CliRunner().invoke(workload, [command, "--help"]).output
    assert all(name in shown for name in get_args(WorkloadSettings.model_fields["format"].annotation))
