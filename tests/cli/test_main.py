"""The front door: light, honest about errors, and documented."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from kvbench.cli import main as main_module
from kvbench.cli.main import COMMANDS, run
from kvbench.errors import InternalError, UsageError

ROOT = Path(__file__).resolve().parents[2]


def test_help_imports_no_heavy_library() -> None:
    """torch, pandas, pyarrow, pydantic, numba, scipy and rich are for the commands that need them."""
    code = (
        "import sys; from kvbench.cli.main import run; run(['--help']); "
        "print(sorted({'torch','pandas','pyarrow','pydantic','numba','numpy','scipy','rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")


def test_import_kvbench_loads_neither_torch_nor_pandas() -> None:
    code = "import sys, kvbench; print(sorted({'torch', 'pandas', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_in_the_front_door_is_the_commands_own(name: str) -> None:
    module, _, attribute = COMMANDS[name][0].partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    assert command.name == name
    assert command.help


def test_the_command_page_is_current() -> None:
    """In a fresh process: a command remembers the help option that the first context gave it."""
    code = "import sys; from kvbench.cli.pages import page; sys.stdout.buffer.write(page().encode())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    page = (ROOT / "docs" / "cli.md").read_bytes()
    assert done.stdout == page, "run: python -m kvbench.cli.pages docs/cli.md"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_stream_that_cannot_spell_a_character_is_no_error(encoding: str) -> None:
    command = [sys.executable, "-m", "kvbench", "suites", "list"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"smoke" in done.stdout


@pytest.mark.parametrize("arguments", [["nonsense"], ["sweep", "--nonsense"], ["sweep"], ["report"], ["sweep", "smok"]])
def test_bad_usage_is_exit_2_with_a_hint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "hint: " in err


def test_an_error_without_a_hint_of_its_own_points_at_the_commands_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> None:
        raise UsageError("no")

    monkeypatch.setattr(main_module.cli, "main", fails)
    assert run(["size", "--model", "x"]) == 2
    assert capsys.readouterr().err == "error: no\n\nhint: see kvbench size --help\n"


def test_an_unknown_command_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    run(["swep"])
    assert "did you mean 'sweep'?" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), InternalError("block 3 has two owners")])
def test_our_own_bug_is_exit_70_and_its_traceback_goes_to_a_file(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> None:
        raise error

    monkeypatch.setenv("KVBENCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(main_module.cli, "main", fails)
    assert run(["doctor"]) == 70
    err = capsys.readouterr().err
    assert "Traceback" not in err
    (log,) = (tmp_path / "log").iterdir()
    assert str(log) in err
    assert f"{type(error).__name__}: {error}" in log.read_text()
    assert str(error) in err


def _shell(line: str) -> subprocess.CompletedProcess[str]:
    line = line.replace("kvbench ", f"{sys.executable} -m kvbench ")
    return subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, check=False)


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = _shell("kvbench suites schema | head -n 1; exit ${PIPESTATUS[0]}")
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_error(closed: str) -> None:
    done = _shell(f"kvbench suites list {closed}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without /dev/full")
def test_output_that_finds_no_space_is_one_error() -> None:
    done = _shell("kvbench suites schema > /dev/full")
    assert done.returncode == 4
    assert done.stderr.startswith("error: cannot write: No space left on device")
    assert "hint: " in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a system without /dev/full")
@pytest.mark.parametrize("stderr", ["2> /dev/full", "2> >(true)"])
def test_talk_that_nobody_can_hear_changes_nothing(stderr: str) -> None:
    """A sweep goes on when its log is on a full disk or the reader of its progress has gone."""
    code = "import time; from kvbench.console import say; time.sleep(1); [say('x' * 9000) for _ in range(20)]; print(7)"
    done = _shell(f'"{sys.executable}" -c "{code}" {stderr}')
    assert (done.returncode, done.stdout) == (0, "7\n")


def test_m66_force_color_in_a_ci_log_moves_no_cursor() -> None:
    """FORCE_COLOR=1 and CI=1: colour at most, no cursor movement, no carriage return."""
    import os

    done = subprocess.run(
        [sys.executable, "-m", "kvbench", "sweep", "no-such-suite"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FORCE_COLOR": "1", "CI": "1"},
    )
    assert done.returncode == 2
    escapes = [part.split("m", 1)[0] for part in done.stderr.split("\x1b[")[1:]]
    assert escapes
    assert all(code.replace(";", "").isdigit() for code in escapes)
    assert "\r" not in done.stderr


def test_a_path_that_is_no_utf_8_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["sweep", "smoke", "--clock", "virtual", "--virtual-device", "L4", "--out", f"{tmp_path}/\udcff"])
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert "no UTF-8 path" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [["sweep", "--resume", "run", "--out", "elsewhere"], ["gate", "run", "--resume", "g", "--out", "results"]],
)
def test_out_beside_resume_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == 2
    assert "--out beside --resume" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["report"], ["show"], ["ls"], ["compare", "."], ["export", "--to", "bencher"]])
def test_a_path_that_the_system_refuses_is_the_users_and_no_bug_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / ("x" * 300), tmp_path / "loop" / "run"):
        assert run([*command, str(path)]) in (2, 5)
        said = capsys.readouterr().err
        assert "internal error" not in said
        assert "hint:" in said
