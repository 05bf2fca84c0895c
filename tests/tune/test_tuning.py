"""A tuning from end to end on kernels of the tests' own: what is wrong is found, what hangs or dies is survived."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kvbench.errors import CannotRunError, DataError, UsageError
from kvbench.measure.timers import Timing
from kvbench.tune.recorded import read_recording
from kvbench.tune.session import Session
from kvbench.tune.space import Space
from kvbench.tune.worker import Workbench
from kvbench.tuned.files import keep, read_store
from tests.tune.planted import LOG, SHAPE
from tests.tune.tuning import run, tuning


def errors(session: Session) -> dict[str, str | None]:
    return {t.configuration["kind"]: t.error for t in session.records[0].trials}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one finished tuning with every kind of fault in its space."""
    tmp_path = tmp_path_factory.mktemp("planted")
    (outcome,) = run(tuning(tmp_path, timeout_s=3.0))
    assert outcome.winner is not None
    return tmp_path


def statuses(session: Session) -> dict[str, str]:
    return {t.configuration["kind"]: t.status for t in session.records[0].trials if t.configuration["ms"] == 2}


def test_k25_a_configuration_that_kills_its_process_is_typed_and_the_search_goes_on(planted: Path) -> None:
    """K25: a configuration that takes its process with it is `runtime`, and a fresh process goes on; one that hangs is
    a `timeout`, one that gives a wrong number `correctness`, one that the compiler refuses, or dies of at the first
    launch, `compile`."""
    session = Session.open(planted / "tune")
    assert statuses(session) == {
        "right": "correct",
        "wrong": "correctness",
        "half": "correctness",
        "hang": "timeout",
        "crash": "runtime",
        "refuse": "compile",
        "abort": "compile",
    }
    assert len(session.records[0].trials) == 9
    assert "SIGABRT" in str(errors(session)["crash"])


def test_k26_configurations_that_leave_output_unwritten_do_not_pass_on_each_others_results(planted: Path) -> None:
    """K26: before the one that writes half of the output, a right one and a wrong one have filled all of it."""
    session = Session.open(planted / "tune")
    assert statuses(session)["half"] == "correctness"
    assert "NaN" in str(errors(session)["half"])


def test_the_quickest_right_configuration_wins_and_is_kept_with_its_evidence(planted: Path) -> None:
    (winner,) = read_store(planted / "store").table.winners
    assert (winner.configuration, winner.verdict) == ({"ms": 2, "kind": "right"}, "improved")
    assert winner.default == {"ms": 4, "kind": "right"}
    assert 1 < winner.gain_low <= winner.gain <= winner.gain_high
    assert winner.rounds == 3
    assert json.loads((planted / "tune" / "winners.json").read_text())["winners"][0]["digest"] == winner.digest


def test_every_trial_is_in_parquet_and_our_t4_is_a_recorded_space(planted: Path) -> None:
    table = pq.read_table(planted / "tune" / "trials.parquet")
    rows = table.to_pylist()
    assert Counter(row["status"] for row in rows)["correct"] == 3
    assert all((row["time_s"] is None) == (row["status"] != "correct") for row in rows)
    assert all(field.metadata[b"description"] for field in table.schema)
    recording = read_recording(planted / "tune" / "shape-0.t4.json")
    assert (len(recording.space), recording.failed) == (9, 6)
    best = min(row["time_s"] for row in rows if row["time_s"] is not None)
    assert recording.best == pytest.approx(best * 1e3)


def test_a_wrong_default_is_no_winner_and_nothing_is_kept(tmp_path: Path) -> None:
    (outcome,) = run(tuning(tmp_path, "Broken", trials=2))
    assert outcome.winner is None
    assert "correctness" in str(outcome.failure)
    assert not read_store(tmp_path / "store").table.winners


def test_a_resumed_tuning_repeats_no_finished_trial_and_no_finished_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill: the journal ends in the middle of a line. The search began with the default, and nothing beats
    it. Meanwhile the likest shape has got another winner, which a new search would begin with."""
    (outcome,) = run(tuning(tmp_path, "Healthy", strategy="random", trials=2, rounds=2))
    assert outcome.winner is not None
    assert (outcome.winner.verdict, outcome.winner.gain) == ("confirmed", 1.0)
    assert outcome.winner.configuration == {"ms": 2, "kind": "right"}
    folder = tmp_path / "tune"
    trials = Session.open(folder).records[0].trials
    assert len(trials) == 2
    assert trials[0].configuration == {"ms": 2, "kind": "right"}
    journal = folder / "trials.jsonl"
    first, second = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(first + second[:40])
    log = tmp_path / "launches"
    monkeypatch.setenv(LOG, str(log))
    untried = {"ms": ({2, 4, 8} - {t.configuration["ms"] for t in trials}).pop(), "kind": "right"}
    keep(replace(outcome.winner, key=replace(outcome.winner.key, batch=64), configuration=untried), tmp_path / "store")
    (outcome,) = run(tuning(tmp_path, "Healthy", session=Session.open(folder, repair=True)))
    assert outcome.winner is not None
    assert len(Session.open(folder).records[0].trials) == 2
    assert set(log.read_text().splitlines()) == {f"{trials[1].configuration['ms']} right"}


def test_a_trial_that_hangs_does_not_outlive_a_tuner_that_was_killed() -> None:
    """As after kill -9: the tuner's end of the pipe closes while a trial is stuck."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "kvbench.tune.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    shape = {"tunable": "tests.tune.planted:Planted", "shape": asdict(SHAPE), "device": "cpu", "seed": 0, "threads": 1}
    for request in ({"op": "prepare", **shape}, {"op": "check", "configuration": {"ms": 2, "kind": "hang"}}):
        worker.stdin.write(json.dumps(request) + "\n")
    worker.stdin.flush()
    while '"runtime"' not in worker.stdout.readline():
        pass
    worker.stdin.close()
    assert worker.wait(timeout=60) == 1
    worker.stdout.close()


@pytest.mark.parametrize(
    "damage",
    [
        ("tune.json", lambda text: text[:-30]),
        ("tune.json", lambda text: text.replace('"rounds": 3', '"rounds": "3"')),
        ("tune.json", lambda text: text.replace('"strategy"', '"strategie"')),
        ("trials.jsonl", lambda text: text.replace('"correct"', '"corect"', 1)),
        ("trials.jsonl", lambda text: text.replace('"shape": 0', '"shape": 7', 1)),
        ("trials.jsonl", lambda text: "x" + text),
        ("rounds.jsonl", lambda text: text.replace('"times": [', '"times": ["a", ', 1)),
    ],
)
def test_a_damaged_folder_is_said_to_be_damaged(planted: Path, tmp_path: Path, damage: Any) -> None:
    folder = shutil.copytree(planted / "tune", tmp_path / "tune")
    name, change = damage
    before = (folder / name).read_text(encoding="utf-8")
    assert change(before) != before
    (folder / name).write_text(change(before), encoding="utf-8")
    with pytest.raises(DataError):
        Session.open(folder)


def test_another_source_compiler_or_device_is_not_gone_on_with(planted: Path) -> None:
    session = Session.open(planted / "tune")
    facts = {name: session.plan[name] for name in ("source", "compiler", "device")}
    session.refuse_other(facts)
    for name in facts:
        with pytest.raises(UsageError, match=name):
            session.refuse_other({**facts, name: "other"})


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Rewrites the first line of a file of JSON, or all of it."""

    def edit(path: Path) -> None:
        first, *rest = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        data = json.loads(first)
        change(data)
        path.write_text("\n".join([json.dumps(data), *rest, ""]))

    return edit


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("finished")
    run(tuning(tmp_path, "Healthy", trials=2, rounds=2))
    return tmp_path / "tune"


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "another shape": ("tune.json", edited(lambda d: d["shapes"][0].update(block_size=32))),
    "no kernel": ("tune.json", edited(lambda d: d.pop("kernel"))),
    "another seed": ("tune.json", edited(lambda d: d.update(seed="x"))),
    "a list": ("tune.json", lambda path: path.write_text("[]")),
    "no text": ("trials.jsonl", lambda path: path.write_bytes(b"\xff\n")),
    "a number": ("trials.jsonl", lambda path: path.write_text("5\n")),
    "a folder": ("trials.jsonl", lambda path: (path.unlink(), path.mkdir())),
    "the last shape from behind": ("trials.jsonl", edited(lambda d: d.update(shape=-1))),
    "a time of NaN": ("trials.jsonl", edited(lambda d: d["trial"].update(time_s=float("nan")))),
    "a time before 0": ("trials.jsonl", edited(lambda d: d["trial"].update(time_s=-1.0))),
    "a time of text": ("trials.jsonl", edited(lambda d: d["trial"].update(time_s="1"))),
    "correct without a time": ("trials.jsonl", edited(lambda d: d["trial"].update(time_s=None))),
    "a list in a configuration": ("trials.jsonl", edited(lambda d: d["trial"]["configuration"].update(ms=[2]))),
    "an error of text": ("trials.jsonl", edited(lambda d: d["trial"].update(error_rel="1"))),
    "an endless error": ("trials.jsonl", edited(lambda d: d["trial"].update(error_rel=float("inf")))),
    "a list for words": ("trials.jsonl", edited(lambda d: d["trial"].update(error=[1]))),
    "an endless number in a configuration": (
        "trials.jsonl",
        edited(lambda d: d["trial"]["configuration"].update(ms=float("inf"))),
    ),
    "a start of nothing": ("starts.jsonl", edited(lambda d: d.update(first=[]))),
    "a start with half a configuration": ("starts.jsonl", edited(lambda d: d.update(left=[[2]]))),
    "no search time": ("trials.jsonl", edited(lambda d: d["trial"].update(trial_s=None))),
    "fewer times than finalists": ("rounds.jsonl", edited(lambda d: d["times"].pop())),
    "rounds of time 0": ("rounds.jsonl", edited(lambda d: d.update(times=[0] * len(d["times"])))),
    "finalists of other rounds": ("rounds.jsonl", edited(lambda d: d["finalists"].reverse())),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused_and_never_gone_on_with(damage: str, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tune"
    folder.mkdir()
    for path in finished.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    Session.open(folder, repair=True)
    name, spoil = DAMAGE[damage]
    spoil(folder / name)
    with pytest.raises(DataError):
        Session.open(folder, repair=True)


def test_a_resumed_search_has_the_space_that_pruning_left_when_it_began(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compiler that is busier today would leave another one, and with it another search."""

    def prune_again(*_: Any) -> Space:
        raise AssertionError("pruned again")

    folder = shutil.copytree(finished, tmp_path / "tune")
    tried = [trial.configuration for trial in Session.open(folder).records[0].trials]
    left = [list(configuration.values()) for configuration in tried]
    edited(lambda d: d.update(left=left))(folder / "starts.jsonl")
    found = tuning(tmp_path, "Healthy", session=Session.open(folder, repair=True))
    found.narrow = prune_again
    (outcome,) = run(found)
    assert outcome.winner is not None
    assert "2 configurations, 2 trials are there already" in capsys.readouterr().err
    edited(lambda d: d.update(left=[*left, [3, "right"]]))(folder / "starts.jsonl")
    with pytest.raises(DataError, match="not in this space"):
        run(tuning(tmp_path, "Healthy", session=Session.open(folder, repair=True)))


def test_a_full_disk_ends_the_tuning_and_is_no_shape_without_a_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next shape's lines would be written behind half a line of this one."""
    found = tuning(tmp_path, "Healthy", shapes=(SHAPE, replace(SHAPE, batch=4)))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CannotRunError, match="no space left") as raised:
            run(found)
    assert "kvbench tune --resume" in str(raised.value.hint)
    assert len((found.session.path / "starts.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("seconds", [0.0, -1e-6, float("nan"), float("inf")])
def test_a_clock_that_tells_no_time_fails_the_trial(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two events of a GPU may have one stamp: log time would be −∞, and the search would stay there."""
    monkeypatch.setattr("kvbench.tune.worker._set_up", lambda threads: None)
    monkeypatch.setattr("kvbench.measure.timers.timer_for", lambda *_: lambda call: Timing(seconds, seconds))
    bench = Workbench(lambda *_: None)
    prepare = {"tunable": "tests.tune.planted:Healthy", "shape": asdict(SHAPE), "device": "cpu", "seed": 0}
    bench.answer({"op": "prepare", **prepare, "threads": 1})
    configuration = {"ms": 2, "kind": "right"}
    found = bench.answer({"op": "time", "configuration": configuration, "calls": 3, "min_s": 0.0, "max_s": 0.1})
    assert found["status"] == "runtime"
    assert "clock" in found["error"]


def test_two_processes_do_not_go_on_with_one_folder(tmp_path: Path) -> None:
    found = tuning(tmp_path, "Healthy")
    with found.session.writing():
        for act in (lambda: run(found), lambda: Session.open(found.session.path, repair=True)):
            with pytest.raises(UsageError, match="another kvbench is tuning"):
                act()
    assert Session.open(found.session.path, repair=True).records[0].trials == []


def test_winners_that_the_store_cannot_take_are_in_the_folder_and_said(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the store should be")
    with pytest.raises(CannotRunError) as raised:
        run(tuning(tmp_path, "Healthy", trials=1, rounds=2))
    assert "winners.json" in str(raised.value.hint)
    folder = tmp_path / "tune"
    assert len(json.loads((folder / "winners.json").read_text())["winners"]) == 1
    assert (folder / "trials.parquet").is_file()
