"""The folder of a tuning: what was asked, and a line for every finished trial and round, written when it is finished.

A kill loses the trial in progress. A resumed search is played again from its seed with the recorded answers, so that it
goes on exactly where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvbench.errors import DataError, UsageError
from kvbench.store.files import make_folder, read_json, replace_file, to_json, write_errors
from kvbench.tune.t4 import t4_document
from kvbench.tune.trial import STATUSES, Trial
from kvbench.tune.trials_table import trial_row, write_trials

SCHEMA_VERSION = 1
PLAN, TRIALS, ROUNDS, WINNERS = "tune.json", "trials.jsonl", "rounds.jsonl", "winners.json"
_MUST_AGREE = ("source", "compiler", "device")


@dataclass(slots=True)
class ShapeRecord:
    """What is known of one shape: trials in order, rounds of the finals (`finalists` are configurations)."""

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
            replace_file(path / PLAN, to_json(full), path)
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
        try:
            _check_plan(plan)
            records = [ShapeRecord() for _ in plan["shapes"]]
            for line in _lines(path / TRIALS, repair):
                record = records[line["shape"]]
                record.bytes_per_call = line["bytes_per_call"]
                record.trials.append(_trial(line["trial"]))
            for line in _lines(path / ROUNDS, repair):
                record = records[line["shape"]]
                record.finalists = line["finalists"]
                record.rounds.append([None if x is None else float(x) for x in line["times"]])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}", hint="it is damaged") from None
        return cls(path, plan, records)

    def refuse_other(self, facts: Mapping[str, Any]) -> None:
        """Old trials say nothing about another source, compiler or device."""
        for name in _MUST_AGREE:
            if self.plan.get(name) != facts[name]:
                raise UsageError(
                    f"{self.path} was tuned with {name} {self.plan.get(name)}, and now it is {facts[name]}",
                    hint="start a new tuning, without --resume",
                )

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
        with write_errors(self.path), (self.path / name).open("ab") as file:
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


def _lines(path: Path, repair: bool) -> list[dict[str, Any]]:
    """Whole lines; one that a kill cut short, or that is just being written, is left out."""
    if not path.is_file():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if repair and whole != data:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def _trial(data: dict[str, Any]) -> Trial:
    trial = Trial(**data)
    if trial.status not in STATUSES or not isinstance(trial.configuration, dict):
        raise ValueError(f"a trial with status {trial.status!r}")
    return trial
