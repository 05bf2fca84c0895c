"""What a gate keeps on disk: its settings, and every block with both sides' runs, so that a kill costs one block.

gate.json                                       what was asked, and the commits that revisions stood for
blocks/<stage>-<number>/block.json              written last: a block without it never happened
blocks/<stage>-<number>/{baseline,candidate}/   a run folder each (in a self-test both are of the base)
logs/                                           what the sides' processes said
caches/ checkouts/ environments/                what the sides run from
verdict.json                                    the answer, with every number
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kvbench.errors import DataError, UsageError
from kvbench.store.parts import now
from kvbench.store.run import Run, open_run
from kvbench.sweep.typed_json import from_json

Stage = Literal["warm-up", "self-test", "screen", "confirm"]
GATE_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Block:
    """Both sides measured once. `baseline_first` is the order; `disturbances` are case id → reasons of what the
    machine did meanwhile, on either side."""

    stage: Stage
    number: int
    baseline_first: bool
    is_kept: bool
    disturbances: dict[str, list[str]]
    baseline: str
    candidate: str
    """Run folders, relative to the gate's"""


class GateFolder:
    """One gate on disk, new or taken up again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, out: Path, name: str, asked: Mapping[str, Any]) -> GateFolder:
        stamp = now().replace("-", "").replace(":", "")[:15] + "Z"
        for attempt in range(1000):
            path = out / f"gate-{name}-{stamp}{f'-{attempt}' if attempt else ''}"
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise UsageError(f"cannot write to {out}: {error.strerror}", hint="choose another --out") from error
        folder = cls(path)
        folder.write("gate.json", {"schema_version": GATE_SCHEMA_VERSION, "created_at": now(), **asked})
        return folder

    @classmethod
    def resume(cls, path: Path) -> GateFolder:
        """`UsageError` for what is no gate's folder, or is of a newer kvbench."""
        folder = cls(path)
        if folder.asked["schema_version"] > GATE_SCHEMA_VERSION:
            raise UsageError(f"{path} was written by a newer kvbench", hint="update kvbench to go on with it")
        return folder

    @property
    def asked(self) -> dict[str, Any]:
        """gate.json."""
        try:
            found = json.loads((self.path / "gate.json").read_text())
        except FileNotFoundError as error:
            raise UsageError(f"{self.path} is no gate's folder", hint="a folder that `gate run` made") from error
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path / 'gate.json'} is damaged", hint="start a new gate") from error
        if not isinstance(found, dict) or type(found.get("schema_version")) is not int:
            raise DataError(f"{self.path / 'gate.json'} is damaged", hint="start a new gate")
        return found

    def remove_if_nothing_was_measured(self) -> None:
        """A side that is not there, say, leaves no folder behind."""
        if not self.blocks("warm-up"):
            shutil.rmtree(self.path, ignore_errors=True)

    def keep_commits(self, commits: Mapping[str, str]) -> None:
        """What the revisions stand for (side → commit), for a resume: a branch may move."""
        self.write("gate.json", {**self.asked, "commits": dict(commits)})

    def blocks(self, stage: Stage) -> list[Block]:
        """Finished blocks of a stage in the order of their numbers, discarded ones too."""
        found = []
        for path in sorted((self.path / "blocks").glob(f"{stage}-*/block.json")):
            try:
                found.append(from_json(Block, json.loads(path.read_text())))
            except (OSError, ValueError) as error:
                raise DataError(f"{path} is damaged", hint=f"remove {path.parent} and go on with --resume") from error
        return sorted(found, key=lambda block: block.number)

    def fresh(self, stage: Stage, number: int) -> Path:
        """An empty folder for a block; what an interrupted one left there goes."""
        path = self.path / "blocks" / f"{stage}-{number:03d}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def finish(self, block: Block) -> None:
        self.write(f"blocks/{block.stage}-{block.number:03d}/block.json", asdict(block))

    def run(self, relative: str) -> Run:
        return open_run(self.path / relative)

    def log(self, name: str) -> Path:
        path = self.path / "logs" / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        return path

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """A JSON file that appears whole."""
        path = self.path / name
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(document, indent=1))
        os.replace(partial, path)
