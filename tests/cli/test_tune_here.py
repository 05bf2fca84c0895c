"""`kvbench tune KERNEL` on this machine, and what is done with its winners."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from kvbench.cli.main import run
from tests.tuned.cache import own_cache
from tests.tuned.entries import winner

SMALL = ["--batch", "2", "--context", "64", "--heads", "2/1", "--head-dim", "16"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path, monkeypatch)
    monkeypatch.setenv("CI", "1")


def test_what_is_tuned_is_shown_carried_and_used_by_the_next_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    assert (
        run(["tune", "decode_numba", *SMALL, "--trials", "1", "--rounds", "2", "--out", str(out), "--format", "json"])
        == 0
    )
    (row,) = json.loads(capsys.readouterr().out)
    assert row["verdict"] == "confirmed"
    (folder,) = out.iterdir()
    assert {"trials.parquet", "shape-0.t4.json", "winners.json"} <= {path.name for path in folder.iterdir()}
    assert run(["tune", "show", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "current"
    assert run(["tune", "show", str(folder), "--format", "json"]) == 0
    assert [trial["status"] for trial in json.loads(capsys.readouterr().out)] == ["correct"]
    carried = tmp_path / "tuned.json"
    assert run(["tune", "export", str(carried)]) == 0
    assert run(["tune", "export", str(carried)]) == 0
    assert run(["tune", "export", str(folder / "tune.json")]) == 2
    assert "there already" in capsys.readouterr().err
    assert run(["tune", "diff", str(folder), str(carried)]) == 0
    assert run(["tune", "import", str(carried)]) == 0
    assert "1 of them of use here" in capsys.readouterr().err
    suite = tmp_path / "k.toml"
    suite.write_text(
        'name = "k"\n[kernel]\nbatch = 2\ncontext = 64\nquery_heads = 2\nkv_heads = 1\nhead_dim = 16\n'
        'attention = "numba"\n'
    )
    assert run(["sweep", str(suite), "-r", "1", "-a", "measure.redo_share=0", "--out", str(out)]) == 0
    assert "tuned: decode_numba tuned for fp32, block 16, 2/1 heads × 16" in capsys.readouterr().err
    assert run(["sweep", str(suite), "-r", "1", "-a", "measure.redo_share=0", "--out", str(out), "--no-tuned"]) == 0
    assert "tuned:" not in capsys.readouterr().err
    assert run(["tune", "--resume", str(folder)]) == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["decode_nubma"], 2, "decode_numba"),
        (["os:system"], 2, "no kernel"),
        (["decode_numba", "--strategy", "lucky"], 2, "guided"),
        (["decode_numba", "--kv-dtype", "fp7"], 2, "fp7"),
        (["decode_numba", "--heads", "8/3"], 2, "--heads"),
        (["decode_numba", "--batch", "0"], 2, "batch"),
        (["decode_numba", "--batch", "2,x"], 2, "--batch"),
        (["decode_numba", "--batch", "60000", "--context", "1000000"], 4, "is free"),
        (["decode_numba", "--query-dtype", "bf16"], 2, "fp32 queries"),
        (["decode_numba", "--seconds", "nan"], 2, "not a number"),
        (["decode_numba", "--trials", "0"], 2, "--trials"),
        (["decode_numba", "--out", os.fsdecode(b"\xff")], 2, "UTF-8"),
        (["decode_numba", "--suite", "smoke", "--batch", "3"], 2, "--batch"),
        (["decode_numba", "--target", "sm_90"], 2, "--compile-only"),
        (["decode_numba", "--compile-only"], 2, "--target"),
        (["--resume", "nowhere"], 2, "nowhere"),
        ([], 2, "Usage"),
        (["show", "nowhere"], 2, "nowhere"),
        (["export", "x.json"], 2, "nothing was tuned"),
        (["import", "nowhere.json"], 2, "nowhere"),
        (["diff", "nowhere.json", "store"], 2, "nowhere"),
    ],
)
def test_bad_input_is_said_in_one_line_with_the_way_out(
    args: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", *args]) == code
    captured = capsys.readouterr()
    assert said in captured.err + captured.out
    assert "Traceback" not in captured.err


def test_a_triton_kernel_needs_a_gpu_and_names_what_works_without(capsys: pytest.CaptureFixture[str]) -> None:
    from kvbench.devices.detect import detect

    if detect().kind == "cuda":
        pytest.skip("there is a CUDA device here")
    assert run(["tune", "decode"]) == 4
    assert "--compile-only" in capsys.readouterr().err


def test_a_termination_signal_keeps_what_is_finished_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Ctrl-C does: a CI job that is cancelled sends SIGTERM."""
    unheard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: unheard.append(number))
    monkeypatch.setattr("kvbench.tune.search.Search.run", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        assert run(["tune", "decode_numba", *SMALL, "--out", str(tmp_path)]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not unheard
    assert "kvbench tune --resume" in capsys.readouterr().err
    (folder,) = tmp_path.glob("tune-*")
    assert (folder / "trials.parquet").is_file()


def test_tables_scale_times_and_json_keeps_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import replace

    from kvbench.tuned.files import write_document

    path = tmp_path / "a.json"
    write_document(path, [replace(winner(), time_s=0.00025, default_time_s=0.0005)])
    assert run(["tune", "diff", str(path), str(path), "--format", "md"]) == 0
    table = capsys.readouterr().out
    assert "250 µs" in table
    assert "split " in table
    assert run(["tune", "diff", str(path), str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["time_a_s"] == 0.00025


def test_diff_tells_other_configurations_and_lone_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import replace

    from kvbench.tuned.files import write_document

    one = winner()
    paths = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    write_document(paths[0], [one])
    write_document(paths[1], [winner(configuration={"split": 64, "tile": 16, "threads": 0})])
    write_document(paths[2], [winner(replace(one.key, batch=64))])
    assert run(["tune", "diff", str(paths[0]), str(paths[1]), "--format", "json"]) == 1
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["differs"]
    assert run(["tune", "diff", str(paths[0]), str(paths[2]), "--format", "json"]) == 1
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"only in A", "only in B"}


def test_diff_compares_device_by_device_and_lone_devices_with_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    from kvbench.tuned.files import write_document

    paths = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    here, there = winner(), winner(replace(winner().key, device="another CPU, 8 threads"))
    other = {"split": 64, "tile": 16, "threads": 0}
    write_document(paths[0], [here, there])
    write_document(paths[1], [here, replace(there, configuration=other)])
    write_document(paths[2], [replace(there, configuration=other)])

    def compared(a: Path, b: Path) -> list[tuple[str, str | None, str | None]]:
        assert run(["tune", "diff", str(a), str(b), "--format", "json"]) == 1
        return [(row["state"], row["device_a"], row["device_b"]) for row in json.loads(capsys.readouterr().out)]

    mine, theirs = here.key.device, there.key.device
    assert sorted(compared(paths[0], paths[1])) == [("differs", theirs, theirs), ("same", mine, mine)]
    assert sorted(compared(paths[0], paths[2])) == [("differs", theirs, theirs), ("only in A", mine, None)]
    write_document(paths[0], [here])
    assert compared(paths[0], paths[2]) == [("differs", mine, theirs)]


def test_a_file_of_winners_is_shown_like_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kvbench.tuned.files import write_document

    write_document(tmp_path / "a.json", [winner()])
    assert run(["tune", "show", str(tmp_path / "a.json"), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["configuration"] == winner().configuration
    assert row["state"].startswith("stale")
    (tmp_path / "b.json").write_text("{}")
    assert run(["tune", "show", str(tmp_path / "b.json")]) != 0
    assert "b.json" in capsys.readouterr().err
