"""The folder of a tuning: what was asked, and a line for every finished trial and round, written when it is finished.

A kill loses the trial in progress. A resumed search is played again from its seed with the recorded answers, so that it
goes on exactly where it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvbench.errors import DataError, UsageError
from kvbench.store.files import is_utf8, make_folder, read_json, replace_file, to_json, write_errors
from kvbench.tune.t4 import t4_document
from kvbench.tune.trial import STATUSES, Trial
from kvbench.tune.trials_table import trial_row, write_trials

SCHEMA_VERSION = 1
PLAN, STARTS, TRIALS, ROUNDS = "tune.json", "starts.jsonl", "trials.jsonl", "rounds.jsonl"
WINNERS = "winners.json"
_MUST_AGREE = ("source", "compiler", "device")


@dataclass(frozen=True, slots=True)
class Start:
    """What a search began with, which depends on what the store and the compiler had to say then: the configurations
    that came `first`, and the values of all those that pruning `left`, None where nothing was pruned."""

    first: list[dict[str, Any]]
    left: list[list[Any]] | None = None


@dataclass(slots=True)
class ShapeRecord:
    """What is known of one shape: trials in order, rounds of the finals (`finalists` are configurations)."""

    start: Start | None = None
    trials: list[Trial] = field(default_factory=list)
    bytes_per_call: int = 0
    finalists: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[list[float | None]] = field(default_factory=list)

    @property
    def searched_s(self) -> float:
        return sum(trial.trial_s for trial in self.trials)


class Session:
    """`plan` is JSON: kernel, shapes, strategy, budgets, seed, and the facts that winners are keyed by."""

    def __init__(self, path: Path, plan: dict[str, Any], records: list[ShapeRecord]) -> None:
        self.path, self.plan, self.records = path, plan, records

    @classmethod
    def create(cls, out: Path, plan: Mapping[str, Any], name: str) -> Session:
        """A new folder `name` under `out`; a number is added to a name that is taken."""
        path, number = out / name, 1
        if not is_utf8(out):
            raise UsageError(f"{out} is no UTF-8 path: Parquet files cannot lie there", hint="choose another --out")
        with write_errors(out):
            make_folder(out)
            while True:
                try:
                    path.mkdir()
                    break
                except FileExistsError:
                    number += 1
                    path = out / f"{name}-{number}"
            full = {"schema_version": SCHEMA_VERSION, **plan}
            replace_file(path / PLAN, to_json({**full, "digest": _digest(full)}), path)
        return cls(path, full, [ShapeRecord() for _ in full["shapes"]])

    @classmethod
    def open(cls, path: Path, *, repair: bool = False) -> Session:
        """A folder as it is, finished or not; `repair` to go on with it, which cuts off a line that a kill cut short.

        `UsageError` for one that is none, `DataError` for a damaged one."""
        if not (path / PLAN).is_file():
            raise UsageError(f"{path} is no folder of a tuning", hint=f"one that kvbench tune wrote has a {PLAN}")
        plan = read_json(path / PLAN)
        if plan.get("schema_version") != SCHEMA_VERSION:
            raise UsageError(f"{path} was written by another version of kvbench", hint="tune again")
        if plan.pop("digest", None) != _digest(plan):
            raise DataError(f"{path / PLAN} is not what was written: its digest does not match", hint="tune again")
        try:
            _check_plan(plan)
            with cls(path, plan, []).writing() if repair else nullcontext():
                records = _records(path, plan, repair)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}", hint="it is damaged") from None
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}", hint="it is damaged") from None
        return cls(path, plan, records)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Only one process goes on with a folder at a time; `UsageError` for a second one."""
        with write_errors(self.path):
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"another kvbench is tuning in {self.path}", hint="wait for it") from None
            yield
        finally:
            os.close(handle)

    def refuse_other(self, facts: Mapping[str, Any]) -> None:
        """Old trials say nothing about another source, compiler or device."""
        for name in _MUST_AGREE:
            if self.plan.get(name) != facts[name]:
                raise UsageError(
                    f"{self.path} was tuned with {name} {self.plan.get(name)}, and now it is {facts[name]}",
                    hint="start a new tuning, without --resume",
                )

    def add_start(self, shape: int, start: Start) -> None:
        self.records[shape].start = start
        self._append(STARTS, {"shape": shape, **asdict(start)})

    def add_trial(self, shape: int, trial: Trial, bytes_per_call: int) -> None:
        record = self.records[shape]
        record.trials.append(trial)
        record.bytes_per_call = bytes_per_call
        self._append(TRIALS, {"shape": shape, "bytes_per_call": bytes_per_call, "trial": asdict(trial)})

    def add_round(self, shape: int, finalists: list[dict[str, Any]], times: list[float | None]) -> None:
        record = self.records[shape]
        record.finalists = finalists
        record.rounds.append(times)
        self._append(ROUNDS, {"shape": shape, "finalists": finalists, "times": times})

    def write_tables(self) -> None:
        """Parquet of all trials, and one T4 file per shape."""
        rows = [
            trial_row(
                trial,
                kernel=self.plan["kernel"],
                shape=shape,
                number=number,
                bytes_per_call=record.bytes_per_call,
            )
            for shape, record in zip(self.plan["shapes"], self.records, strict=True)
            for number, trial in enumerate(record.trials)
        ]
        write_trials(self.path / "trials.parquet", rows, {n: self.plan.get(n) for n in ("kernel", *_MUST_AGREE)})
        for number, record in enumerate(self.records):
            if record.trials:
                replace_file(self.path / f"shape-{number}.t4.json", to_json(t4_document(record.trials)), self.path)

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        hint = f"kvbench tune --resume {self.path} goes on where it was, once there is space to write"
        with write_errors(self.path, hint), (self.path / name).open("ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _check_plan(plan: dict[str, Any]) -> None:
    """`KeyError` or `TypeError` for what cannot be gone on with."""
    if not isinstance(plan["shapes"], list) or not all(isinstance(shape, dict) for shape in plan["shapes"]):
        raise TypeError("shapes are no list of shapes")
    kinds = {"kernel": str, "strategy": str, "seed": int, "rounds": int, "threads": int, "timeout_s": int | float}
    for name, kind in kinds.items():
        if not isinstance(plan[name], kind):
            raise TypeError(f"{name} is {plan[name]!r}")
    for name in ("trials", "seconds"):
        if not isinstance(plan[name], int | float | None):
            raise TypeError(f"{name} is {plan[name]!r}")


def _records(path: Path, plan: Mapping[str, Any], repair: bool) -> list[ShapeRecord]:
    records = [ShapeRecord() for _ in plan["shapes"]]
    for line in _lines(path / STARTS, repair):
        records[_index(line)].start = _start(line)
    for line in _lines(path / TRIALS, repair):
        record = records[_index(line)]
        record.bytes_per_call = int(line["bytes_per_call"])
        record.trials.append(_trial(line["trial"]))
    for line in _lines(path / ROUNDS, repair):
        record = records[_index(line)]
        record.finalists = _finalists(line, record)
        record.rounds.append([None if x is None else _seconds(x) for x in line["times"]])
    return records


def _lines(path: Path, repair: bool) -> list[dict[str, Any]]:
    """Whole lines; one that a kill cut short, or that is just being written, is left out."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if repair and whole != data:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def _index(line: dict[str, Any]) -> int:
    shape = line["shape"]
    if type(shape) is not int or shape < 0:
        raise ValueError(f"shape {shape!r}")
    return shape


def _start(line: dict[str, Any]) -> Start:
    start = Start(line["first"], line["left"])
    if not start.first:
        raise ValueError("a search that began with nothing")
    for configuration in start.first:
        _configuration(configuration)
    for values in start.left or ():
        _configuration(dict(zip(start.first[0], values, strict=True)))
    return start


def _trial(data: dict[str, Any]) -> Trial:
    trial = Trial(**data)
    if trial.status not in STATUSES or (trial.status == "correct") != trial.is_timed:
        raise ValueError(f"a trial with status {trial.status!r} and time {trial.time_s!r}")
    _configuration(trial.configuration)
    for seconds in ([] if trial.time_s is None else [trial.time_s], trial.times):
        for value in seconds:
            _seconds(value)
    if not isinstance(trial.times, list) or not 0 <= float(trial.trial_s) < math.inf:
        raise ValueError(f"a trial that took {trial.trial_s!r} s with times {trial.times!r}")
    for name in ("error_rel", "compile_s", "check_s"):
        value = getattr(trial, name)
        if value is not None and not (type(value) in (int, float) and math.isfinite(value)):
            raise ValueError(f"a trial with {name} {value!r}")
    texts = (trial.error or "", trial.finished_at)
    if not isinstance(trial.is_dropped, bool) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a trial whose words are none")
    return trial


def _finalists(line: dict[str, Any], record: ShapeRecord) -> list[dict[str, Any]]:
    """Those of every round of a shape, a time or None for each."""
    finalists: list[dict[str, Any]] = line["finalists"]
    if not finalists or len(line["times"]) != len(finalists) or record.finalists not in ([], finalists):
        raise ValueError("finalists and their times do not go together")
    for configuration in finalists:
        _configuration(configuration)
    return finalists


def _configuration(value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(x, str) or abs(x) < math.inf for x in value.values()):
        raise ValueError(f"a configuration that is none: {value!r}")


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"a time of {value!r} s")
    return float(value)


def _digest(plan: Mapping[str, Any]) -> str:
    """An edited plan is another search than the recorded one: its winner would be kept for another shape."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:32]
