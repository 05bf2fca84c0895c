"""The prepared GPU check and the bandwidth benchmark in their CPU form: Triton's interpreter, numba, small sizes.
Nothing here measures a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvbench.analysis.gate.recordings import read_recordings

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of `benchmarks/` by its name; their folder is on the path while the test runs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look themselves up there
        spec.loader.exec_module(module)
        return module

    return load


def gpu_check(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), "--out", str(out), "--device", "cpu", *more]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_the_quickest_parts_pass_and_nothing_claims_a_gpu(tmp_path: Path) -> None:
    done = gpu_check(tmp_path, "--parts", "correctness", "--only", "copies")
    assert done.returncode == 0, done.stderr
    assert "NOTHING IS MEASURED ON A GPU" in done.stderr
    assert "nothing was measured on a GPU" in done.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["parts"]["correctness"]["ok"] == 1
    assert summary["bars"]["every kernel within its bound of float64"] == "PASS"
    speed = [verdict for bar, verdict in summary["bars"].items() if "decode" in bar]
    assert speed == ["not run"] * 3
    assert len(list(tmp_path.iterdir())) <= 8


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    done = gpu_check(tmp_path, "--parts", "correctnes")
    assert done.returncode == 2
    assert "correctnes" in done.stderr


def test_a_wrong_kernel_is_found(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that forgets the scale; one that leaves its result unwritten; one that writes a row too much."""
    check = benchmark("gpu_correctness")
    case = next(case for case in check.cases(is_small=True) if case.name == "decode bf16")
    case = replace(case, contexts=(0, 5), dims=(16, 16), heads=(2, 1), splits=1)
    assert check.check(case, "cpu")["ok"]
    right = check.decode_triton.decode

    def unscaled(*args: Any, **more: Any) -> None:
        right(*args[:8], 0.0, *args[9:], **more)

    def beyond(*args: Any, **more: Any) -> None:
        right(*args, **more)
        args[6][-1] = 0.0

    for wrong in (unscaled, lambda *args, **more: None, beyond):
        monkeypatch.setattr(check.decode_triton, "decode", wrong)
        assert not check.check(case, "cpu")["ok"]


def test_k25_a_check_that_takes_its_process_along_is_failed_and_the_rest_goes_on(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K25: an illegal access kills the child; the check is failed, a fresh process goes on with the next."""
    module = benchmark("gpu_check")
    body = """
import sys, os
sys.path.insert(0, {folder!r})
import gpu_check
gpu_check.checks_of = lambda part, device, out: [
    ("good", lambda: {{"ok": True}}), ("deadly", lambda: os._exit(9)), ("lost", lambda: 1 / 0),
    ("device lost", gpu_check_raises), ("last", lambda: {{"ok": True}})]
def gpu_check_raises():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
sys.exit(gpu_check.main())
"""
    script = tmp_path / "script.py"
    script.write_text(body.format(folder=str(BENCHMARKS)))
    monkeypatch.setattr(module, "__file__", str(script))
    options = module.argparse.Namespace(out=tmp_path, device="cpu", only="")
    found = module.run_shares("correctness", options, 100)
    assert (found["state"], found["ok"]) == ("done", 2)
    assert set(found["failed"]) == {"deadly", "lost", "device lost"}


def test_a_part_that_hangs_is_stopped_and_keeps_what_it_found(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = benchmark("gpu_check")
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys, time\nsys.path.insert(0, {str(BENCHMARKS)!r})\nimport gpu_check\n"
        "gpu_check.checks_of = lambda *_: [('good', lambda: {'ok': True}), ('hangs', lambda: time.sleep(300))]\n"
        "sys.exit(gpu_check.main())\n"
    )
    monkeypatch.setattr(module, "__file__", str(script))
    found = module.run_shares("engine", module.argparse.Namespace(out=tmp_path, device="cpu", only=""), 4)
    assert (found["state"], found["ok"]) == ("timed out", 1)
    assert not found["failed"]
    assert found["not_run"] == {"hangs": "stopped at the limit"}


def test_a_part_without_time_is_not_passed(benchmark: Any, tmp_path: Path) -> None:
    """What was right before the limit does not stand for what never ran."""
    module = benchmark("gpu_check")
    row = {"part": "correctness", "share": 0, "name": "copies"}
    for found in ({}, {"ok": True}):
        module.append(tmp_path / "checks.jsonl", {**row, **found})
    found = module.run_shares("correctness", module.argparse.Namespace(out=tmp_path, device="cpu", only=""), 0)
    assert (found["state"], found["ok"], list(found["not_run"])) == ("timed out", 1, ["whatever was left"])
    assert module.bars(module.rows_of(tmp_path), "cpu")["every kernel within its bound of float64"] == "not run"


def test_shares_deal_out_every_check_once(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("gpu_check")
    checks = [(f"check {number}", lambda: {"ok": True}) for number in range(7)]
    monkeypatch.setattr(module, "checks_of", lambda *_: iter(checks))
    for number in range(3):
        given = {"part": "x", "device": "cpu", "out": tmp_path, "only": "", "skip": "[]", "share": (number, 3)}
        assert module.work(module.argparse.Namespace(**given)) == 0
    done = [row["name"] for row in module.rows_of(tmp_path) if "ok" in row]
    assert sorted(done) == [name for name, _ in checks]


@pytest.mark.parametrize(
    ("row", "bar"),
    [
        ({"kv_dtype": "bf16", "share": 0.89, "bar": 0.9, "bar_met": False}, "decode of bf16 ≥ 90 % of the copy rate"),
        (
            {"kv_dtype": "fp8_e4m3", "share": 0.8, "bar": 0.85, "bar_met": False},
            "decode of fp8 ≥ 85 % of the copy rate",
        ),
        ({"rival": "flex", "rival_over_ours": 0.9, "bar": 1.0, "bar_met": False}, "decode ahead of FlexAttention"),
    ],
)
def test_a_missed_bar_fails_and_a_missing_part_is_3(benchmark: Any, row: dict[str, Any], bar: str) -> None:
    module = benchmark("gpu_check")
    done = {"state": "done", "ok": 1, "failed": {}, "not_run": {}}
    rows = [{"part": "x", "share": 0, "name": "x", "ok": True, **row}]
    assert module.bars(rows, "cuda")[bar] == "FAIL"
    assert module.exit_status({"parts": {"x": done}, "bars": module.bars(rows, "cuda")}, "cuda") == 1
    met = module.bars([{**rows[0], "bar_met": True}], "cuda")
    assert met[bar] == "PASS"
    assert module.exit_status({"parts": {"x": done}, "bars": met}, "cuda") == 3, "other bars did not run"
    lacking = {**done, "ok": 0, "not_run": {"x": "a package is missing: pydantic"}}
    assert module.exit_status({"parts": {"x": lacking}, "bars": {}}, "cpu") == 3


def test_a_lack_of_a_package_is_said_and_not_raised(benchmark: Any, tmp_path: Path) -> None:
    module = benchmark("gpu_check")

    def lacking() -> dict[str, Any]:
        raise ModuleNotFoundError("No module named 'pydantic'")

    assert module._outcome(lacking) == {"ok": None, "not_run": "a package is missing: No module named 'pydantic'"}


def test_twelve_pairs_are_what_gate_replay_reads(benchmark: Any, tmp_path: Path) -> None:
    pairs = benchmark("gpu_pairs")
    rows = [
        ("gpu-check", case, "decode_s", "higher", block, side, pairs.SIDES[block % 2], 1e-4 + block * 1e-6)
        for block in range(pairs.PAIRS)
        for side in pairs.SIDES
        for case in ("a", "b")
    ]
    (recording,) = read_recordings([pairs.save(rows, tmp_path)])
    assert [(one.case, len(one.baseline), sorted(set(one.order))) for one in recording.series] == [
        ("a", 12, [-1, 1]),
        ("b", 12, [-1, 1]),
    ]


def _row(benchmark: Any, **more: Any) -> Any:
    facts = {"kernel": "decode", "kv_dtype": "bf16", "block_size": 16, "batch": 128, "context": 4096}
    facts |= {"data_bytes": 100, "scale_bytes": 0, "scratch_bytes": 0, "seconds": 1.0, "bytes_per_s": 100.0}
    facts |= {"copy_bytes_per_s": 100.0, "share": 1.0, "splits": 1, "programs_per_processor": None}
    return benchmark("kernels").Row(**(facts | more))


def test_k29_bandwidth_that_falls_with_more_work_is_flagged(benchmark: Any) -> None:
    """K29: 128 × 8k reaches a fifth of the bandwidth of 128 × 4k; what falls with less work is not flagged."""
    kernels = benchmark("kernels")
    slow = _row(benchmark, context=8192, bytes_per_s=21.0)
    (line,) = kernels.falls([_row(benchmark), slow])
    assert "128 × 8192 tokens reach 0.21 of the bandwidth of 128 × 4096" in line
    assert kernels.falls([_row(benchmark), _row(benchmark, context=1024, bytes_per_s=21.0)]) == []
    assert kernels.falls([_row(benchmark), _row(benchmark, context=8192, bytes_per_s=85.0)]) == []
    assert kernels.falls([_row(benchmark), replace(slow, block_size=32)]) == [], "other blocks are other work"


@pytest.mark.parametrize(("seconds", "per_byte"), [(0.5, 1.0), (1.0, 0.0), (1.25, -0.5), (0.75, 0.5)])
def test_k30_a_narrow_dtype_is_held_to_the_bytes_that_it_saves(benchmark: Any, seconds: float, per_byte: float) -> None:
    """K30: fp8 that is slower than bf16 shows below 0. Scales count among the bytes."""
    narrow = _row(benchmark, kv_dtype="fp8_e4m3", data_bytes=40, scale_bytes=10, seconds=seconds)
    (one,) = benchmark("kernels").narrow([_row(benchmark), narrow], "bf16")
    assert one.bytes_saved == pytest.approx(0.5)
    assert one.per_byte == pytest.approx(per_byte)


def test_k20_the_grid_over_the_multiprocessors_is_reported(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """K20: one sequence of 32k on 132 multiprocessors is cut until its 8 programs fill them, 256 tokens are not."""
    paged = benchmark("paged")
    monkeypatch.setattr(paged, "processors", lambda device: 132)
    layer = paged.Layer.__new__(paged.Layer)
    layer.device, layer.work = "cuda", paged.Work("bf16", 16, 1, 32768)
    assert layer.programs == 8 * layer.splits
    assert layer.programs >= 132
    short = paged.Layer.__new__(paged.Layer)
    short.device, short.work = "cuda", paged.Work("bf16", 16, 64, 256)
    assert short.splits <= 2


def test_bytes_of_a_decode_are_counted_by_the_formula(benchmark: Any) -> None:
    """tokens × KV heads × (d_k + d_v) × bytes + queries + results; scales apart, 4 bytes per token, head and side."""
    paged = benchmark("paged")
    layer = paged.Layer(paged.Work("int8", 4, 3, 10, query_heads=4, kv_heads=2, head_dim=8), "cpu")
    moved = layer.decode_bytes()
    assert moved.data == 3 * 10 * 2 * (8 + 8) * 1 + 2 * 3 * 4 * 8 * 4
    assert (moved.scales, moved.scratch) == (3 * 10 * 2 * 2 * 4, 0)
    assert layer.decode().isfinite().all()
