"""`gate run` with sides that write runs instead of measuring: what is a side, how blocks are taken, what is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.analysis.gate.types import Reason, Rule, Verdict
from kvbench.cli.main import run as command_line
from kvbench.errors import CannotRunError, DataError, UsageError
from kvbench.spec.load import LoadedSuite, from_effective
from kvbench.store.comparability import NotComparableError
from kvbench.sweep import gate_blocks, gate_run
from kvbench.sweep.gate_blocks import balanced
from kvbench.sweep.gate_folder import GateFolder
from kvbench.sweep.gate_run import GateSettings, resume_gate, run_gate
from kvbench.sweep.sides import checked_out
from tests.sweep import fake_side

RULE = Rule(screen_blocks=8, confirm_blocks=6, least_confirm_blocks=5)
Make = Callable[..., str]
REAL_MEASURE = gate_blocks.measure
VIRTUAL = """
name = "tiny"
[model]
name = "tiny-llama"
[engine]
kv_memory = "2MiB"
max_sequences = 4
[workload]
requests = 4
input_tokens = { kind = "constant", value = 32 }
output_tokens = { kind = "constant", value = 8 }
[measure]
clock = "virtual"
virtual_device = "L4"
"""


@pytest.fixture(autouse=True)
def _sides_that_measure_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(gate_blocks, "measure", fake_side.measure)
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # nothing here outlives the test


@pytest.fixture
def side(tmp_path: Path) -> Make:
    """A folder that is a side; its cases take `factors` times as long."""

    def make(name: str, factors: tuple[float, ...] = (1.0, 1.0), **told: Any) -> str:
        folder = tmp_path / name
        (folder / "kvbench").mkdir(parents=True, exist_ok=True)
        (folder / "kvbench" / "__init__.py").touch()
        (folder / "speed.json").write_text(json.dumps({"name": name, "factors": factors, **told}))
        return str(folder)

    return make


@pytest.fixture
def suite() -> LoadedSuite:
    return from_effective(
        {"name": "small", "engine": {"kv_memory": "8MiB"}, "axes": {"engine.block_size": [8, 16]}},
    )


def settings(base: str, candidate: str, **changes: Any) -> GateSettings:
    chosen: dict[str, Any] = {"rule": RULE, "self_test": "none", "seed": 7, **changes}
    return GateSettings(base, candidate, **chosen)


def test_equal_sides_pass_and_every_block_is_two_fresh_runs(suite: LoadedSuite, side: Make, tmp_path: Path) -> None:
    found = run_gate(suite, settings(side("a"), side("b")), out=tmp_path / "out")
    assert found.verdict.verdict is Verdict.PASS
    assert found.blocks["screen"] == 8
    assert found.blocks["confirm"] == 0
    blocks = [json.loads(path.read_text()) for path in (found.folder / "blocks").glob("screen-*/block.json")]
    assert len({block[name] for block in blocks for name in ("baseline", "candidate")}) == 16
    assert sum(block["baseline_first"] for block in blocks) == 4


def test_a_slow_case_fails_after_a_self_test_and_is_named(suite: LoadedSuite, side: Make, tmp_path: Path) -> None:
    asked = settings(side("a"), side("b", (1.0, 1.08)), self_test="auto", rule=RULE)
    found = run_gate(suite, asked, out=tmp_path / "out")
    assert [case.label for case in found.verdict.having(Verdict.FAIL)] == ["block_size=16"]
    assert found.verdict.self_test is not None
    assert found.verdict.self_test.valid, found.verdict.self_test.problems
    assert found.verdict.exit_code() == 1
    assert found.blocks["self-test"] == 8
    confirmed = json.loads((found.folder / "blocks" / "confirm-000" / "block.json").read_text())
    only = (found.folder / "blocks" / "confirm-000" / "suite.toml").read_text()
    assert confirmed["stage"] == "confirm"
    assert only.split("[[only]]")[1:] == ['\n"engine.block_size" = [16]\n']


def test_a_young_self_test_under_the_same_conditions_is_used_again(
    suite: LoadedSuite, side: Make, tmp_path: Path
) -> None:
    rule = RULE
    first = run_gate(suite, settings(side("a"), side("b"), self_test="auto", rule=rule), out=tmp_path / "1")
    assert first.blocks["self-test"] == 8
    second = run_gate(suite, settings(side("a"), side("c"), self_test="auto", rule=rule), out=tmp_path / "2")
    assert second.blocks["self-test"] == 0
    assert second.verdict.self_test == first.verdict.self_test
    other = replace(rule, confirm_blocks=7)
    third = run_gate(suite, settings(side("a"), side("c"), self_test="auto", rule=other), out=tmp_path / "3")
    assert third.blocks["self-test"] == 8, "another rule is another test"


def test_m64_an_improvement_is_said_and_exits_0(suite: LoadedSuite, side: Make, tmp_path: Path) -> None:
    """M64: a candidate that is faster never fails; it is reported as improved."""
    asked = settings(side("a"), side("b", (0.9, 0.9)), rule=RULE)
    found = run_gate(suite, asked, out=tmp_path / "out")
    assert found.verdict.verdict is Verdict.IMPROVED
    assert found.verdict.exit_code() == 0


def test_a_case_that_one_side_lacks_is_invalid_and_never_passes(suite: LoadedSuite, side: Make, tmp_path: Path) -> None:
    asked = settings(side("a"), side("b", (1.0, 1.0, 1.0)))
    found = run_gate(suite, asked, out=tmp_path / "out")
    assert [case.reasons for case in found.verdict.having(Verdict.INVALID)] == [(Reason.ONE_SIDED,)]
    assert found.verdict.exit_code() == 5


def test_sides_that_differ_in_more_than_the_code_are_refused_before_any_block(
    suite: LoadedSuite, side: Make, tmp_path: Path
) -> None:
    asked = settings(side("a"), side("b", facts={"threads": 3}))
    with pytest.raises(NotComparableError, match="threads") as refused:
        run_gate(suite, asked, out=tmp_path / "out")
    assert refused.value.exit_code == 4
    assert not list((tmp_path / "out").glob("*/blocks/screen-*"))


def test_a_side_that_does_not_run_says_why_and_exits_4(suite: LoadedSuite, side: Make, tmp_path: Path) -> None:
    asked = settings(side("a", fails="no axis engine.blocksize"), side("b"))
    with pytest.raises(CannotRunError, match="base: no axis"):
        run_gate(suite, asked, out=tmp_path / "out")


def test_nothing_in_common_is_missing_data(suite: LoadedSuite, side: Make, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no case in common"):
        run_gate(suite, settings(side("a", ()), side("b")), out=tmp_path / "out")


def test_a_stopped_gate_goes_on_with_the_blocks_it_has(
    suite: LoadedSuite, side: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(stage: str, done: int, _count: int, _discarded: bool) -> None:
        if (stage, done) == ("screen", 3):
            raise KeyboardInterrupt

    rule = replace(RULE, screen_blocks=6)
    with monkeypatch.context() as patch:
        patch.setattr(gate_run, "_tell", stop)
        with pytest.raises(gate_run.GateInterruptedError, match="finished blocks are in") as stopped:
            run_gate(suite, settings(side("a"), side("b"), rule=rule), out=tmp_path / "out")
    assert stopped.value.exit_code == 130
    (folder,) = (tmp_path / "out").iterdir()
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("blocks/screen-*/block.json")}
    assert len(kept) == 3
    found = resume_gate(folder)
    assert found.blocks["screen"] == 6
    assert all(path.stat().st_mtime_ns == then for path, then in kept.items())


def test_a_termination_signal_ends_a_gate_as_ctrl_c_does(
    suite: LoadedSuite, side: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CI job that is cancelled: no process and no worktree may stay behind, and the folder can be resumed."""
    monkeypatch.setattr(gate_run, "_tell", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(gate_run.GateInterruptedError):
        run_gate(suite, settings(side("a"), side("b")), out=tmp_path / "out")


def test_disturbed_blocks_are_taken_again_at_most_a_fifth(suite: LoadedSuite, side: Make, tmp_path: Path) -> None:
    asked = settings(side("a"), side("b", warning="cpu_stolen"), rule=replace(RULE, screen_blocks=10))
    found = run_gate(suite, asked, out=tmp_path / "out")
    assert found.blocks["screen"] == 10
    assert found.blocks["screen discarded"] == 2
    assert found.verdict.verdict is not Verdict.INVALID, "noise is in the intervals"


def test_throttling_beyond_the_budget_is_no_verdict(suite: LoadedSuite, side: Make, tmp_path: Path) -> None:
    found = run_gate(suite, settings(side("a"), side("b", warning="throttled")), out=tmp_path / "out")
    assert {case.reasons for case in found.verdict.cases} == {(Reason.DISTURBED,)}
    assert found.verdict.exit_code() == 5


@pytest.mark.parametrize(
    ("readings", "reasons"),
    [
        ({"sm_clock_mean_hz": 1.55e9}, (Reason.DISTURBED,)),
        ({"sm_clock_mean_hz": 1.501e9}, ()),
        ({"sm_clock_mean_hz": None}, ()),
    ],
)
def test_sides_at_clocks_that_differ_by_more_than_one_percent_are_no_block(
    suite: LoadedSuite, side: Make, tmp_path: Path, readings: dict[str, Any], reasons: tuple[Reason, ...]
) -> None:
    base = side("a", row={"sm_clock_mean_hz": 1.5e9})
    found = run_gate(suite, settings(base, side("b", row=readings)), out=tmp_path / "out")
    assert {case.reasons for case in found.verdict.cases} == {reasons}
    assert found.blocks["screen discarded"] == (1 if reasons else 0)


def test_the_base_may_not_change_while_it_is_measured(
    suite: LoadedSuite, side: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(stage: str, done: int, _count: int, _discarded: bool) -> None:
        if (stage, done) == ("screen", 2):
            side("a", facts={"engine_digest": "edited"})

    monkeypatch.setattr(gate_run, "_tell", change)
    with pytest.raises(NotComparableError):
        run_gate(suite, settings(side("a"), side("b")), out=tmp_path / "out")


def test_a_side_is_a_process_with_its_own_source_and_says_why_it_fails(tmp_path: Path) -> None:
    here = str(Path(__file__).resolve().parents[2])
    suite = tmp_path / "tiny.toml"
    suite.write_text(VIRTUAL)
    with checked_out({"base": here}, tmp_path) as sides:
        found = REAL_MEASURE(sides["base"], suite, tmp_path / "out", tmp_path / "log.txt")
        assert [row["status"] for row in found.case_rows] == ["ok"]
        suite.write_text(VIRTUAL.replace("max_sequences", "max_sequence"))
        with pytest.raises(CannotRunError, match=r"exit 2.*max_sequence") as failed:
            REAL_MEASURE(sides["base"], suite, tmp_path / "again", tmp_path / "log.txt")
    assert failed.value.exit_code == 4


def test_order_is_balanced_in_every_pair_and_shuffled() -> None:
    orders = balanced(40, "x")
    assert all(one != other for one, other in zip(orders[::2], orders[1::2], strict=True))
    assert len({tuple(balanced(40, str(seed))) for seed in range(20)}) == 20
    assert len(balanced(5, "x")) == 5


def test_revisions_become_worktrees_that_are_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "clone"
    (top / "kvbench").mkdir(parents=True)
    (top / "kvbench" / "__init__.py").write_text("one = 1\n")
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(top), *arguments],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, **identity},
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    first = git("rev-parse", "HEAD")
    (top / "kvbench" / "__init__.py").write_text("two = 2\n")
    git("commit", "-qam", "two")
    monkeypatch.chdir(top)
    work = tmp_path / "work"
    with checked_out({"base": "HEAD~1", "candidate": "."}, work) as sides:
        assert sides["base"].commit == first
        assert (sides["base"].folder / "kvbench" / "__init__.py").read_text() == "one = 1\n"
        assert sides["candidate"].folder == top
        assert sides["base"].cache != sides["candidate"].cache
        environment = sides["base"].environment()
        assert environment["PYTHONPATH"].startswith(str(sides["base"].folder))
        assert environment["PYTHONSAFEPATH"] == "1"
    assert len(git("worktree", "list").splitlines()) == 1
    git("commit", "-q", "--allow-empty", "-m", "three")
    with checked_out({"base": "HEAD~1"}, work, commits={"base": first}) as sides:
        assert (sides["base"].commit, sides["base"].is_worktree) == (first, True)
    with pytest.raises(UsageError, match="neither a folder nor a revision"), checked_out({"base": "no-such"}, work):
        pass
    with pytest.raises(UsageError, match="neither a folder nor a revision"), checked_out({"base": "--all"}, work):
        pass
    with pytest.raises(UsageError, match="without kvbench's source"), checked_out({"base": str(tmp_path)}, work):
        pass
    monkeypatch.chdir("/")
    with pytest.raises(UsageError, match="in no git repository"), checked_out({"base": "main"}, work):
        pass


def test_a_side_that_is_not_there_leaves_no_folder(suite: LoadedSuite, side: Make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such"):
        run_gate(suite, settings("no-such", side("b")), out=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_resumed_gate_measures_the_commits_that_it_began_with(tmp_path: Path) -> None:
    folder = GateFolder.create(tmp_path, "small", {"settings": {}, "suite": {}})
    folder.keep_commits({"base": "a" * 40})
    again = GateFolder.resume(folder.path)
    assert again.asked["commits"] == {"base": "a" * 40}
    assert again.asked["settings"] == {}


def test_what_is_no_gate_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no gate's folder"):
        resume_gate(tmp_path)
    (tmp_path / "gate.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        resume_gate(tmp_path)
    (tmp_path / "gate.json").write_text('{"schema_version": 99}')
    with pytest.raises(UsageError, match="newer kvbench"):
        resume_gate(tmp_path)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("gate.json", {"settings": None}),
        ("gate.json", {"suite": 3}),
        ("gate.json", {"settings": {"base": 0, "candidate": "b"}}),
        ("gate.json", {"settings": {"base": "a", "candidate": "b", "rule": {"margin": "junk"}}}),
        ("gate.json", {"settings": {"base": "a", "candidate": "b", "self_test": "sometimes"}}),
        ("blocks/screen-001/block.json", {"number": None}),
        ("blocks/screen-001/block.json", {"baseline": ["x"]}),
        ("blocks/screen-001/block.json", {"disturbances": {"case": 1}}),
        ("blocks/screen-001/block.json", {"more": 1}),
    ],
)
def test_a_gate_with_a_damaged_file_is_not_resumed(
    suite: LoadedSuite, side: Make, tmp_path: Path, file: str, changes: dict[str, Any]
) -> None:
    folder = run_gate(suite, settings(side("a"), side("b")), out=tmp_path / "out").folder
    found = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**found, **changes}))
    with pytest.raises(DataError, match="is damaged"):
        resume_gate(folder)


def test_a_gate_that_goes_on_takes_no_other_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["gate", "run", "--resume", str(tmp_path), "--seed", "0"]) == 2
    assert "--resume goes on with what was asked" in capsys.readouterr().err
