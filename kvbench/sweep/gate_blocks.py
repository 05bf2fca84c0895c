"""Interleaved blocks: in each, one fresh process per side measures the same cases in the same shuffled order.

Which side goes first is balanced over the blocks and shuffled. A block in which the machine was disturbed (throttled,
used by others …) is taken again, at most a fifth of the blocks; beyond that it is kept and its cases say so.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.console import plain
from kvbench.errors import CannotRunError, ExitCode, KvbenchError
from kvbench.spec.keys import Kind
from kvbench.spec.narrow import narrowed
from kvbench.spec.toml_write import to_toml
from kvbench.store.run import Run, open_run
from kvbench.sweep.gate_folder import Block, GateFolder, Stage
from kvbench.sweep.sides import Side

DISTURBING = frozenset({"throttled", "foreign_process", "cpu_stolen", "descheduled", "page_faults", "swapped"})
"""Warnings of a row that say that the machine, not the code, was measured."""
INVALIDATING = frozenset({"throttled", "swapped", "clocks_differ"})
"""Those that no statistics can answer for: a case that still has them when the budget is spent has no verdict. The
others are noise, and noise is in the intervals."""
REDO_SHARE = 0.2
CLOCK_TOLERANCE = 0.01
"""Mean SM clocks of the two sides of a block may differ by this share."""
WARMER_K = 10.0
"""So many degrees of the GPU, between the sides of a block, are another starting point."""
_KEPT = (ExitCode.OK, ExitCode.PARTIAL)
_GRACE_S = 20.0
_TAIL_LINES = 3
Tell = Callable[[Stage, int, int, bool], None]
Wanted = tuple[Kind, Mapping[str, Any]]
"""A case by its kind and its axes."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How blocks are taken. `suite` is the suite's content, `seed` decides every order."""

    folder: GateFolder
    suite: Mapping[str, Any]
    seed: int
    tell: Tell

    def take(
        self, stage: Stage, sides: tuple[Side, Side], count: int, only: Sequence[Wanted] | None = None
    ) -> list[Block]:
        """`count` blocks of baseline and candidate that may be used; what is there already is not taken again. `only`
        names the cases by kind and axis values, None means all."""
        done = self.folder.blocks(stage)
        spare = int(REDO_SHARE * count) - sum(not block.is_kept for block in done)
        orders = balanced(len(done) + count + int(REDO_SHARE * count), f"{self.seed}/{stage}")
        while (kept := sum(block.is_kept for block in done)) < count:
            number = len(done)
            block = self._take(stage, number, sides, orders[number], only, may_discard=spare > 0)
            spare -= not block.is_kept
            done.append(block)
            self.tell(stage, kept + block.is_kept, count, not block.is_kept)
        return [block for block in done if block.is_kept]

    def _take(
        self,
        stage: Stage,
        number: int,
        sides: tuple[Side, Side],
        baseline_first: bool,
        only: Sequence[Wanted] | None,
        may_discard: bool,
    ) -> Block:
        folder = self.folder.fresh(stage, number)
        suite = folder / "suite.toml"
        suite.write_text(to_toml(self._content(f"{self.seed}/{stage}/{number}", only)))
        runs: dict[str, Run] = {}
        names = ("baseline", "candidate") if baseline_first else ("candidate", "baseline")
        for name in names:
            side = sides[0] if name == "baseline" else sides[1]
            runs[name] = measure(side, suite, folder / name, self.folder.log(f"{stage}-{number:03d}-{name}"))
        found = disturbances(runs["baseline"], runs["candidate"])
        block = Block(
            stage=stage,
            number=number,
            baseline_first=baseline_first,
            is_kept=not (found and may_discard),
            disturbances=found,
            baseline=str(runs["baseline"].path.relative_to(self.folder.path)),
            candidate=str(runs["candidate"].path.relative_to(self.folder.path)),
        )
        self.folder.finish(block)
        return block

    def _content(self, seed: str, only: Sequence[Wanted] | None) -> dict[str, Any]:
        """The suite with one repetition, the block's own order of cases, and the cases that are wanted."""
        measure = {**self.suite.get("measure", {}), "repetitions": 1, "seed": random.Random(seed).getrandbits(40)}
        content = {**self.suite, "measure": measure}
        return content if only is None else narrowed(content, only)


def balanced(count: int, seed: str) -> list[bool]:
    """Whether the baseline goes first: in every pair of blocks once, in shuffled order."""
    rng = random.Random(seed)
    found: list[bool] = []
    while len(found) < count:
        first = rng.random() < 0.5
        found += [first, not first]
    return found[:count]


def disturbances(baseline: Run, candidate: Run) -> dict[str, list[str]]:
    """Case id → what keeps the two sides of a block from being alike: warnings that speak of the machine, and clocks
    and temperatures of the GPU that differ."""
    sides = [{row["case_id"]: row for row in run.case_rows} for run in (baseline, candidate)]
    found: dict[str, set[str]] = {}
    for case_id, row in (item for side in sides for item in side.items()):
        names = {warning["name"] for warning in _warnings(row)} & DISTURBING
        found[case_id] = found.get(case_id, set()) | names | _unlike(*(side.get(case_id, {}) for side in sides))
    return {case_id: sorted(names) for case_id, names in found.items() if names}


def _unlike(left: Mapping[str, Any], right: Mapping[str, Any]) -> set[str]:
    """Readings outside their tolerance; one that a side lacks says nothing."""
    found = set()
    clocks = _both(left, right, "sm_clock_mean_hz")
    if clocks is not None and min(clocks) > 0 and max(clocks) / min(clocks) > 1.0 + CLOCK_TOLERANCE:
        found.add("clocks_differ")
    heat = _both(left, right, "temperature_max_c")
    if heat is not None and max(heat) - min(heat) > WARMER_K:
        found.add("temperatures_differ")
    return found


def _both(left: Mapping[str, Any], right: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    one, other = left.get(name), right.get(name)
    return None if one is None or other is None else (float(one), float(other))


def _warnings(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    stored = row.get("warnings")
    return list(json.loads(stored)) if isinstance(stored, str) else list(stored or ())


def measure(side: Side, suite: Path, out: Path, log: Path) -> Run:
    """One fresh process of the side sweeps the suite once; its run. Raises `CannotRunError` when it could not."""
    command = side.command("sweep", str(suite.resolve()), "--out", str(out.resolve()), "--format", "json")
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            env=side.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C is ours to pass on
        )
        try:
            code = process.wait()
        finally:
            _stop(process)
    if code not in _KEPT:
        raise CannotRunError(
            f"{side.name} ({side.describe()}) could not run the suite (exit {code}): {_last_words(log)}",
            hint=f"what it said is in {log}",
        )
    try:
        return open_run(next(path for path in sorted(out.iterdir()) if path.is_dir()))
    except (StopIteration, OSError, KvbenchError) as error:
        raise CannotRunError(
            f"{side.name} ({side.describe()}) left no run that this kvbench can read", hint=f"see {log} and {out}"
        ) from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that is still there, with time to keep what it has."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return plain(" / ".join(lines[-_TAIL_LINES:])) or "it said nothing"
