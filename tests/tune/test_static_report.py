"""A space compiled, judged and reported for a GPU that is not there."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kvbench.cli.main import run
from kvbench.devices.lookup import known_device
from kvbench.errors import UsageError
from kvbench.tune.compile_pool import Outcome
from kvbench.tune.occupancy import Occupancy
from kvbench.tune.pages import PAGES
from kvbench.tune.prune import STATUSES, Candidate, Judged, judge
from kvbench.tune.rank import predict, row_bytes
from kvbench.tune.resources import Resources
from kvbench.tune.shapes import kernel_shape
from kvbench.tune.static_report import StaticReport, static_report, write_report
from kvbench.tune.targets import known_target
from kvbench_kernels.specs import CompileSpec

SHAPE = kernel_shape("decode")
SM_90, H100 = known_target("sm_90"), known_device("h100")
FEW = Resources(64, 0, 0, 0, 16_384, 0, 4, 8, 2, 16, "HMMA", "a")


def candidate(is_default: bool = False, **configuration: Any) -> Candidate:
    """A candidate whose every field but `lanes` is compiled in."""
    constants = {name: value for name, value in configuration.items() if name != "lanes"}
    return Candidate(configuration, is_default, "", CompileSpec("m", "f", {}, constants, (), 4, 3))


def judged(*of: tuple[Candidate, Resources | str], target: str = "sm_90", kernel: str = "none") -> list[Judged]:
    """Judged as compiled to these resources; a text is why the kernel refuses."""
    outcomes = [None if isinstance(found, str) else Outcome("compiled", 0.1, "", found, "3.9") for _, found in of]
    candidates = [replace(one, refusal=found) if isinstance(found, str) else one for one, found in of]
    return judge(kernel, SHAPE, candidates, outcomes, known_target(target), H100)


def test_k23_shared_memory_beyond_the_limit_is_dropped_with_the_numbers() -> None:
    """What compiles without complaint and cannot be launched: 131,072 bytes where a block has 101,376."""
    large = replace(FEW, shared_bytes=131_072)
    (dropped,) = judged((candidate(tile=1), large), target="sm_86")
    assert dropped.status == "does_not_fit"
    assert dropped.reason == "131072 bytes of shared memory; a block on sm_86 can have 101376"
    assert dropped.rank is None
    (kept,) = judged((candidate(tile=1), large))
    assert kept.status == "kept"


def test_k09_a_tile_of_a_whole_large_block_is_dropped_before_any_launch_on_every_target() -> None:
    """2,048 tokens a tile: 262,144 bytes, more than any device has; the number is in the reason."""
    for target in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        (dropped,) = judged((candidate(tile=2048), replace(FEW, shared_bytes=262_144)), target=target)
        assert dropped.status == "does_not_fit"
        assert dropped.reason.startswith("262144 bytes of shared memory")


@pytest.mark.parametrize(
    ("shared", "target", "status"),
    [(166_912, "sm_80", "kept"), (166_913, "sm_80", "does_not_fit"), (232_448, "sm_90", "kept")],
)
def test_the_limit_itself_fits(shared: int, target: str, status: str) -> None:
    (one,) = judged((candidate(tile=1), replace(FEW, shared_bytes=shared)), target=target)
    assert one.status == status


def test_registers_that_no_sm_has_and_tensor_memory_are_limits_too() -> None:
    many, tensor = replace(FEW, registers=255, warps=16), replace(FEW, tensor_memory_columns=1024)
    found = judged((candidate(tile=1), many), (candidate(tile=2), tensor))
    assert [one.status for one in found] == ["does_not_fit"] * 2
    assert found[0].reason == "255 registers for each of 512 threads; an SM has 65536"


def test_spills_are_dropped_with_their_bytes() -> None:
    (one,) = judged((candidate(tile=1), replace(FEW, spill_store_bytes=8, spill_load_bytes=12)))
    assert (one.status, one.reason) == ("spills", "8 bytes of spill stores and 12 of spill loads a thread")


def test_equal_code_is_timed_once_and_the_default_stands_for_it() -> None:
    found = judged(
        (candidate(stages=3, lanes=1), FEW),
        (candidate(True, stages=4, lanes=1), FEW),
        (candidate(stages=5, lanes=1), replace(FEW, code_digest="b")),
    )
    assert [one.status for one in found] == ["same_code", "kept", "kept"]
    assert found[0].same_code_as == 1


def test_equal_code_that_is_launched_otherwise_is_another_trial() -> None:
    found = judged((candidate(stages=3, lanes=1), FEW), (candidate(stages=3, lanes=2), FEW))
    assert [one.status for one in found] == ["kept", "kept"]


def test_ranks_count_what_is_kept_by_occupancy_where_there_is_no_model() -> None:
    found = judged(
        (candidate(tile=1), replace(FEW, registers=128, code_digest="1")),
        (candidate(tile=2), "too wide"),
        (candidate(tile=3), replace(FEW, registers=32, code_digest="3")),
    )
    assert [one.rank for one in found] == [2, None, 1]
    assert (found[1].status, found[1].reason) == ("refused", "too wide")


def resident(blocks: int, warps: int = 4) -> Occupancy:
    return Occupancy(blocks, blocks * warps, blocks * warps / 64, "registers")


CONFIGURATION = {"tile": 64, "warps": 4, "stages": 3, "head_rows": 16}


def test_the_model_counts_the_bytes_of_a_row_with_its_scales() -> None:
    assert row_bytes(SHAPE) == 2 * 128 * 2
    assert row_bytes(kernel_shape("decode", kv_dtype="int8")) == 2 * (128 + 4)
    assert row_bytes(kernel_shape("mla")) == 576 * 2, "V is part of K"


def test_a_full_device_reads_at_its_bandwidth_and_not_faster() -> None:
    found = predict("decode", SHAPE, CONFIGURATION, resident(4), H100)
    assert found is not None
    least = 64 * 4096 * 8 * row_bytes(SHAPE) / 3.35e12
    assert least <= found.seconds < 1.3 * least
    assert found.splits <= 2


def test_one_long_sequence_is_split_and_short_ones_are_not() -> None:
    long = predict("decode", kernel_shape("decode", batch=1, context=32_768), CONFIGURATION, resident(4), H100)
    short = predict("decode", kernel_shape("decode", batch=64, context=64), CONFIGURATION, resident(4), H100)
    assert long is not None
    assert short is not None
    assert long.splits >= 16
    assert short.splits == 1


def test_more_bytes_on_their_way_are_never_slower_in_the_model() -> None:
    seconds = [
        found.seconds
        for blocks in (1, 2, 4, 8)
        if (found := predict("decode", SHAPE, CONFIGURATION, resident(blocks), H100)) is not None
    ]
    assert len(seconds) == 4
    assert seconds[0] == max(seconds)


@pytest.fixture(scope="module")
def small() -> StaticReport:
    shape = kernel_shape("decode")
    return static_report("tests.tune.small_page", shape, known_target("sm_86"))


def test_a_space_is_compiled_once_each_and_every_configuration_has_its_fate(small: StaticReport) -> None:
    assert small.counts == {"kept": 3, "refused": 2, "same_code": 3, "does_not_fit": 4}
    assert set(small.counts) <= set(STATUSES)
    assert {one.candidate.configuration["tile"] for one in small.judged if one.status == "does_not_fit"} == {512}
    assert small.facts["was_launched"] is False
    assert small.facts["triton"]
    assert small.facts["ptxas"]


def test_the_written_report_holds_what_the_report_holds(small: StaticReport, tmp_path: Path) -> None:
    write_report(small, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["static.json", "static.parquet"]
    document = json.loads((tmp_path / "new" / "static.json").read_text())
    assert document["rows"] == small.rows
    assert document["triton"] == small.facts["triton"]
    table = pq.read_table(tmp_path / "new" / "static.parquet")
    assert table.to_pylist() == small.rows
    assert json.loads(table.schema.metadata[b"kvbench.facts"])["target"] == "sm_86"
    assert all(field.metadata[b"description"] for field in table.schema)


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_the_command_prints_its_report_in_every_format(
    form: str, small: StaticReport, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kvbench.tune.static_report.static_report", lambda *args, **options: small)
    arguments = ["tune", "copy", "--target", "sm_86", "--compile-only", "--format", form, "--out", str(tmp_path)]
    assert run(arguments) == 0
    said = capsys.readouterr()
    if form == "json":
        assert json.loads(said.out)["rows"] == small.rows
    elif form == "csv":
        assert len(said.out.splitlines()) == 1 + len(small.rows)
    else:
        assert "nothing was launched" in said.out
        assert "bytes of shared memory; a block on sm_86 can have 101376" in said.out
        assert "3 kept, 2 refused, 4 does not fit, 3 same code" in said.out
    assert "static.parquet" in said.err


def test_the_command_compiles_and_keeps_what_the_compiler_said_of_failures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A head dim that the assembler never sees: each configuration fails, which is a no and not an error."""
    wanted = ["--target", "sm_80", "--compile-only", "--head-dim", "48", "--jobs", "1", "--format", "json"]
    monkeypatch.setitem(PAGES, "small", "tests.tune.small_page")
    assert run(["tune", "small", *wanted, "--out", str(tmp_path)]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["status"] for row in rows} == {"refused", "compile_error"}
    reasons = [row["reason"] for row in rows if row["status"] == "compile_error"]
    assert all("power of 2" in reason for reason in reasons)
    assert b"power of 2" in (tmp_path / "compile.log").read_bytes()


@pytest.mark.parametrize(
    "wrong",
    [
        ["cpoy"],
        ["kvbench_kernels.copy_triton"],
        ["copy", "--target", "sm_42"],
        ["copy", "--target", "sm_80", "--kv-dtype", "fp8_e4m3"],
        ["copy", "--kv-dtype", "fp9"],
        ["copy", "--heads", "3/2"],
        ["copy", "--block-size", "0"],
        ["copy", "--gpu", "a100"],
        ["copy", "--timeout", "nan"],
        ["copy", "--jobs", "0"],
    ],
)
def test_bad_input_is_a_clear_error_before_anything_is_compiled(
    wrong: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvbench.tune.static_report.compile_all", lambda *args, **options: pytest.fail("compiled"))
    target = [] if "--target" in wrong else ["--target", "sm_90"]
    assert run(["tune", *wrong, *target, "--compile-only"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "error: " in said.err


def test_a_module_given_as_kernel_is_not_even_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bomb").mkdir()
    (tmp_path / "bomb" / "__init__.py").write_text("")
    (tmp_path / "bomb" / "page.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["tune", "bomb.page", "--target", "sm_90", "--compile-only"]) == 2
    assert "bomb" not in sys.modules


def test_a_report_in_which_nothing_compiled_says_so_and_is_a_no(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Outcome("timeout", 1.0, "not compiled within 1 s", triton="3.9.0")
    monkeypatch.setattr("kvbench.tune.static_report.compile_all", lambda jobs, **options: [lost] * len(jobs))
    assert run(["tune", "copy", "--target", "sm_90", "--compile-only"]) == 1
    said = capsys.readouterr().out
    assert "by Triton 3.9.0 (no ptxas answered)" in said
    assert " timeout" in said.splitlines()[-1]


def test_a_device_of_another_architecture_is_no_basis_for_a_ranking() -> None:
    with pytest.raises(UsageError, match="compute capability"):
        static_report("copy", SHAPE, known_target("sm_90"), gpu="l4")
