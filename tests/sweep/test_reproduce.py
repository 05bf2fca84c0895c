"""A run again from its manifest: the same requests, memory, threads and order, or a refusal with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvbench.cli.main import run as command_line
from kvbench.spec.load import LoadedSuite
from kvbench.store.run import Run, open_run
from kvbench.sweep.reproduce import plan_again
from tests.sweep.conftest import MINI

TRACE = Path(__file__).parent.parent / "fixtures" / "traces" / "azure2023.csv"


def virtual_run(tmp_path: Path, *arguments: str, text: str = MINI) -> Run:
    path = tmp_path / "mini.toml"
    path.write_text(text)
    out = tmp_path / "first"
    assert command_line(["sweep", str(path), "--clock", "virtual", "--out", str(out), *arguments]) == 0
    return open_run(next(out.iterdir()))


def again(tmp_path: Path, source: Path, *arguments: str) -> tuple[int, Run | None]:
    out = tmp_path / "again"
    code = command_line(["reproduce", str(source), "--out", str(out), *arguments])
    found = list(out.iterdir()) if out.exists() else []
    return code, open_run(found[0]) if found else None


NUMBERS = ["case_id", "sample", "output_tokens_per_s", "ttft_mean_s", "workload_digest", "steps", "kv_memory"]


@pytest.mark.parametrize("by", ["folder", "manifest inside", "manifest apart"])
def test_a_virtual_run_is_reproduced_to_the_last_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    first = virtual_run(tmp_path, "-r", "2", "-a", "engine.kv_memory=auto", "-a", "model.name=auto")
    source = first.path if by == "folder" else first.path / "manifest.json"
    if by == "manifest apart":
        source = Path(shutil.copy(source, tmp_path / "m.json"))
    capsys.readouterr()
    code, second = again(tmp_path, source, "--format", "json")
    assert code == 0
    assert second is not None
    assert first.cases[NUMBERS].equals(second.cases[NUMBERS])
    assert first.plan["order"] == second.plan["order"]
    out, err = capsys.readouterr()
    assert "nothing that decides differs here" in err
    if by != "manifest apart":
        assert {line["word"] for line in json.loads(out)["lines"]} == {None, "same"}
    else:
        assert "original's numbers are not here" in err


def test_requests_come_from_the_run_when_the_trace_is_gone(tmp_path: Path) -> None:
    trace = Path(shutil.copy(TRACE, tmp_path / "t.csv"))
    text = MINI.replace("requests = 4\n", f'source = "trace"\ntrace = "{trace}"\n')
    text = text.replace('input_tokens = { kind = "uniform", low = 8, high = 24 }\noutput_tokens = 4\n', "")
    text = text.replace(
        "[axes]", 'max_input_tokens = 64\nmax_output_tokens = 8\narrival = { kind = "recorded" }\n[axes]'
    )
    first = virtual_run(tmp_path, text=text)
    trace.unlink()
    code, second = again(tmp_path, first.path)
    assert code == 0
    assert second is not None
    assert first.cases[NUMBERS].equals(second.cases[NUMBERS])
    apart = Path(shutil.copy(first.path / "manifest.json", tmp_path / "m.json"))
    assert again(tmp_path, apart, "--dry-run")[0] == 4
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,17,3\n")
    assert again(tmp_path, apart, "--dry-run")[0] == 4


def test_a_closed_loop_keeps_its_clients(tmp_path: Path) -> None:
    first = virtual_run(tmp_path, "-a", "arrival.kind=closed-loop", "-a", "arrival.clients=2")
    code, second = again(tmp_path, first.path)
    assert (code, second is not None) == (0, True)
    assert second is not None
    assert first.cases[NUMBERS].equals(second.cases[NUMBERS])


def test_a_dry_run_says_what_differs_and_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = virtual_run(tmp_path)
    apart = edited(first.path, tmp_path / "m.json", lambda c: c["system"]["driver"].update(version="500"))
    capsys.readouterr()
    code, second = again(tmp_path, apart, "--dry-run")
    assert (code, second) == (0, None)


def edited(run: Path, to: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    manifest = json.loads((run / "manifest.json").read_text())
    change(manifest["controlled"])
    to.write_text(json.dumps(manifest))
    return to


def test_threads_and_memory_are_those_of_the_manifest_and_another_device_is_refused(
    tmp_path: Path, mini: Callable[..., LoadedSuite], capsys: pytest.CaptureFixture[str]
) -> None:
    from kvbench.measure.environment import capture
    from kvbench.store.run_folder import RunFolder
    from kvbench.sweep.planner import make_plan

    facts = {**make_plan(mini()).to_dict(), "environment": capture()}
    with RunFolder.create(tmp_path / "out", facts) as folder:
        folder.seal()
        path = folder.path
    apart = edited(path, tmp_path / "m.json", lambda c: c.update(threads=7))
    assert plan_again(apart).plan.threads == 7
    there = edited(path, tmp_path / "gpu.json", lambda c: c["device"].update(kind="cuda"))
    assert command_line(["reproduce", str(there), "--dry-run"]) == 4
    assert "device.kind was 'cuda'" in " ".join(capsys.readouterr().err.split())
    other = edited(path, tmp_path / "set.json", lambda c: c["cases"][0]["engine"].update(attention="triton"))
    assert command_line(["reproduce", str(other), "--dry-run"]) == 4


def test_m67_a_manifest_of_a_newer_version_is_not_reproduced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and "written by a newer kvbench"; manifests that were edited or cut are bad data, exit 5."""
    first = virtual_run(tmp_path)
    manifest = json.loads((first.path / "manifest.json").read_text())
    path = tmp_path / "m.json"
    path.write_text(json.dumps({**manifest, "schema_version": 2}))
    assert again(tmp_path, path)[0] == 2
    assert "newer kvbench" in " ".join(capsys.readouterr().err.split())
    path.write_text(json.dumps(manifest)[:500])
    assert again(tmp_path, path)[0] == 5
    for field in ("suite", "threads", "cases", "repetitions"):
        assert again(tmp_path, edited(first.path, path, lambda c, field=field: c.pop(field)))[0] == 5
    edited(first.path, path, lambda c: c["suite"]["effective"]["engine"].update(block_size=32))
    assert again(tmp_path, path)[0] == 5
    assert again(tmp_path, tmp_path)[0] == 2
