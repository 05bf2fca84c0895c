"""Compiles in child processes: what compiles, what does not, what hangs and what takes its process with it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import CannotRunError
from kvbench.tune.compile_pool import CompileJob, compile_all
from kvbench.tune.pages import load_page
from kvbench.tune.shapes import kernel_shape
from kvbench_kernels.specs import CompileSpec

MODULE = "tests.tune.small_kernels"


def scores(tile: int = 64, kv: str = "bf16", aligned: bool = True, **options: int) -> CompileJob:
    constants = {"TILE": tile, "D": 128, "UNUSED": 0}
    spec = CompileSpec(
        module=MODULE,
        function="scores",
        signature={"k": f"*{kv}", "q": "*bf16", "out": "*fp32", "n": "i32"} | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        divisible_by_16=("k", "q", "out", "n") if aligned else (),
        num_warps=options.pop("num_warps", 4),
        num_stages=options.pop("num_stages", 3),
    )
    return CompileJob(spec, options.pop("arch", 90), options)


def planted(fault: str) -> CompileJob:
    spec = CompileSpec(MODULE, "planted", {"out": "*fp32", "FAULT": "constexpr"}, {"FAULT": fault}, ("out",), 4, 3)
    return CompileJob(spec, 90)


def test_outcomes_come_in_the_order_of_the_jobs_with_what_each_takes() -> None:
    few, many, narrow = compile_all([scores(16), scores(128), scores(64, aligned=False)], workers=1)
    assert [few.status, many.status, narrow.status] == ["compiled"] * 3
    assert few.resources
    assert many.resources
    assert narrow.resources
    assert few.resources.shared_bytes < many.resources.shared_bytes
    assert few.resources.spill_bytes == many.resources.spill_bytes == 0
    assert few.resources.tensor_core > 0
    assert few.resources.wide_loads > 0
    assert narrow.resources.wide_loads == 0, "without the promise of alignment no load is wide"
    assert few.resources.code_digest != many.resources.code_digest
    assert few.triton.split(".")[0].isdigit()


def test_k13_a_compiler_that_aborts_or_hangs_costs_its_own_job_and_its_ir_stays_off_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """An abort inside LLVM with hundreds of lines of IR, a hang, an exit, an error: the others still compile."""
    log = io.BytesIO()
    jobs = [planted("abort"), planted("none"), planted("hang"), planted("exit"), planted("name"), planted("no")]
    aborted, first, hung, ended, wrong, last = compile_all(jobs, workers=1, timeout_s=4, log=log)
    assert (first.status, last.status) == ("compiled", "compiled")
    assert first.resources
    assert last.resources
    assert first.resources.code_digest == last.resources.code_digest
    assert (aborted.status, ended.status) == ("crashed", "crashed")
    assert aborted.reason == "the compiler was killed by SIGABRT: LLVM ERROR: Cannot select: cvt.pk.f32.fp8"
    assert "exit code 3" in ended.reason
    assert (hung.status, hung.reason) == ("timeout", "not compiled within 4 s")
    assert wrong.status == "compile_error"
    assert "there_is_no_such_thing" in wrong.reason
    assert all("\n" not in outcome.reason for outcome in (aborted, hung, ended, wrong))
    assert capfd.readouterr() == ("", "")
    assert log.getvalue().count(b"tt.get_program_id") >= 300


def test_k11_a_dot_that_is_too_small_is_a_compile_error_with_its_reason() -> None:
    """Head dim 8: `tl.dot` needs 16 along K; the configuration is skipped and says why."""
    (small,) = compile_all([planted("small dot")], workers=1)
    assert small.status == "compile_error"
    assert "K >= 16" in small.reason


def test_k24_a_pass_that_fails_inside_the_compiler_is_one_line_and_the_run_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """`num_ctas=2`: an assertion in C++ and hundreds of lines of IR; the next job compiles in the same worker."""
    page, shape = load_page("prefill"), kernel_shape("prefill")
    broken = CompileJob(page.compile_spec(shape, page.DEFAULT), 90, {"num_ctas": 2})
    log = io.BytesIO()
    failed, fine = compile_all([broken, planted("none")], workers=1, log=log)
    if failed.status == "compiled":
        pytest.skip("this version of Triton compiles it")
    assert failed.status in ("compile_error", "crashed")
    assert "\n" not in failed.reason
    assert len(failed.reason) <= 300
    assert log.getvalue().count(b"\n") > 100
    assert capfd.readouterr() == ("", "")
    assert fine.status == "compiled"


def test_without_triton_the_command_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('no triton here')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CannotRunError, match="no triton here"):
        compile_all([scores()], workers=1)


def test_no_jobs_start_no_process() -> None:
    assert compile_all([]) == []


def test_workers_end_with_the_pool_and_leave_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An interrupt while a compile hangs: the child is gone, and so are its temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started: list[int] = []
    real = subprocess.Popen

    def noted(*args: Any, **options: Any) -> Any:
        process = real(*args, **options)
        started.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", noted)

    def interrupt(at: int, outcome: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_all([planted("name"), planted("hang")], workers=1, on_done=interrupt)
    assert len(started) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
    assert list(tmp_path.iterdir()) == []
