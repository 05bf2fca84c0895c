"""The story of `gate run`: two sides → self-test → screen → confirm → judge → write.

Every number comes from fresh processes that the two sides run in turns; rules and statistics are `analysis/gate`.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvbench.analysis.gate.rules import candidates, judge
from kvbench.analysis.gate.self_test import SelfTest, self_test
from kvbench.analysis.gate.types import CaseBlocks, Inconclusive, Rule, SuiteVerdict
from kvbench.analysis.interleaved import interleaved_blocks
from kvbench.console import say
from kvbench.errors import DataError, ExitCode, KvbenchError, UsageError
from kvbench.report.ci.context import GateContext
from kvbench.report.ci.data import json_document
from kvbench.report.stored_gate import stored_cases
from kvbench.store.comparability import DEFAULT_VARY, Comparability, FieldDifference, compare_manifests
from kvbench.store.comparability_rules import role_of
from kvbench.store.manifest import flat_paths
from kvbench.sweep.gate_blocks import INVALIDATING, Blocks
from kvbench.sweep.gate_folder import Block, GateFolder, Stage
from kvbench.sweep.gate_self_test import remember, remembered
from kvbench.sweep.sides import Side, SideName, checked_out
from kvbench.sweep.termination import termination_is_an_interrupt
from kvbench.sweep.typed_json import from_json

if TYPE_CHECKING:
    from kvbench.spec.load import LoadedSuite

SelfTesting = Literal["auto", "fresh", "none"]


class GateInterruptedError(KvbenchError):
    """Ctrl-C or a termination signal; finished blocks are kept."""

    exit_code = ExitCode.INTERRUPTED


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What `gate run` was asked. `metrics` empty means the usual ones of each kind of case."""

    base: str
    candidate: str
    rule: Rule = field(default_factory=Rule)
    metrics: tuple[str, ...] = ()
    vary: tuple[str, ...] = DEFAULT_VARY
    self_test: SelfTesting = "auto"
    base_python: str | None = None
    candidate_python: str | None = None
    own_environments: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GateResult:
    """The verdict and where the evidence is."""

    verdict: SuiteVerdict
    folder: Path
    suite: str
    base: str
    candidate: str
    """What was asked, and its commit"""
    blocks: dict[str, int]
    """Stage → blocks that count; `<stage> discarded` → those that were disturbed and taken again"""
    differences: tuple[FieldDifference, ...]

    def context(self, inconclusive: Inconclusive = "neutral") -> GateContext:
        """What the writers of verdicts want to know."""
        taken = ", ".join(f"{count} {stage}" for stage, count in self.blocks.items() if count)
        return GateContext(
            suite=self.suite,
            baselines=[self.base],
            candidates=[self.candidate],
            exit_code=int(self.verdict.exit_code(inconclusive)),
            differences=self.differences,
            notes=[f"blocks: {taken}", *_on_self_test(self.verdict), f"evidence: {self.folder}"],
        )


def run_gate(suite: LoadedSuite, settings: GateSettings, *, out: Path) -> GateResult:
    """Measure and judge. Raises `NotComparableError` (exit 4) where the sides differ in more than the treatment,
    `CannotRunError` for a side that does not run, `GateInterruptedError` after Ctrl-C."""
    asked = {"settings": asdict(settings), "suite": suite.effective, "suite_name": suite.suite.name}
    folder = GateFolder.create(out, suite.suite.name, asked)
    try:
        return _run(folder)
    except UsageError:
        folder.remove_if_nothing_was_measured()
        raise


def resume_gate(path: Path) -> GateResult:
    """Go on with a gate that was stopped: finished blocks are kept. `DataError` for a folder that is damaged."""
    return _run(GateFolder.resume(path))


def _run(folder: GateFolder) -> GateResult:
    settings = _settings(folder)
    asked: dict[SideName, str] = {"base": settings.base, "candidate": settings.candidate}
    pythons: dict[SideName, Path | None] = {
        "base": Path(settings.base_python) if settings.base_python else None,
        "candidate": Path(settings.candidate_python) if settings.candidate_python else None,
    }
    try:
        with (
            termination_is_an_interrupt(),
            checked_out(
                asked,
                folder.path,
                pythons=pythons,
                commits=folder.asked.get("commits"),
                own_environments=settings.own_environments,
            ) as sides,
        ):
            folder.keep_commits({name: side.commit for name, side in sides.items() if side.commit and side.is_worktree})
            return _Gate(folder, settings, sides["base"], sides["candidate"]).run()
    except KeyboardInterrupt:
        raise GateInterruptedError(
            f"interrupted; finished blocks are in {folder.path}", hint=f"go on with --resume {folder.path}"
        ) from None


def _settings(folder: GateFolder) -> GateSettings:
    asked = folder.asked
    try:
        if not isinstance(asked.get("suite"), dict) or not isinstance(asked.get("suite_name"), str):
            raise ValueError("no suite")
        return from_json(GateSettings, asked.get("settings"))
    except ValueError as error:
        raise DataError(f"{folder.path / 'gate.json'} is damaged: {error}", hint="start a new gate") from error


@dataclass(slots=True)
class _Gate:
    """One gate in progress."""

    folder: GateFolder
    settings: GateSettings
    base: Side
    candidate: Side

    def run(self) -> GateResult:
        rule, pair = self.settings.rule, (self.base, self.candidate)
        say(f"gate: base {self.base.describe()} against candidate {self.candidate.describe()}; {self.folder.path}")
        taker = Blocks(self.folder, self.folder.asked["suite"], self.settings.seed, _tell)
        shared = self._check(taker.take("warm-up", pair, 1))
        tested = self._self_test(taker)
        screened = self._cases(taker.take("screen", pair, rule.screen_blocks))
        open_cases = candidates(screened, rule=rule, self_test=tested)
        confirmed = self._confirm(taker, open_cases) if open_cases else []
        verdict = judge(screened, confirmed, rule=rule, self_test=tested)
        result = GateResult(
            verdict,
            self.folder.path,
            self.folder.asked["suite_name"],
            self.base.describe(),
            self.candidate.describe(),
            self._counts(),
            shared.differences,
        )
        self.folder.write("verdict.json", json_document(verdict, result.context()))
        return result

    def _check(self, warm_up: list[Block]) -> Comparability:
        """The treatment, and nothing else, is what the sides differ in; they have cases in common."""
        found = compare_manifests(*self._manifests(warm_up[0]), vary=self.settings.vary, is_stored=False)
        if not found.pairs:
            raise DataError("the two sides have no case in common", hint="choose a suite that both revisions know")
        found.check()
        return found

    def _self_test(self, taker: Blocks) -> SelfTest | None:
        """What unchanged code does here: remembered from today under the same conditions, or taken now."""
        if self.settings.self_test == "none":
            return None
        fingerprint = self._fingerprint()
        known = remembered(fingerprint) if self.settings.self_test == "auto" else None
        if known is not None:
            say("self-test: the one of the last day under these very conditions is used")
            return known
        blocks = taker.take("self-test", (self.base, self.base), self.settings.rule.screen_blocks)
        found = self_test(self._cases(blocks), rule=self.settings.rule, fingerprint=fingerprint)
        say(
            f"self-test: noise floor {found.noise_floor:.2%}; "
            + ("valid" if found.valid else "; ".join(found.problems))
        )
        if found.valid:
            remember(found)
        return found

    def _confirm(self, taker: Blocks, open_cases: Sequence[CaseBlocks]) -> list[CaseBlocks]:
        wanted = {case.case_id for case in open_cases}
        say(f"confirm: {len(wanted)} cases are open and are measured afresh")
        only = [(case["kind"], case["axes"]) for case in self._plan_cases() if case["case_id"] in wanted]
        blocks = taker.take("confirm", (self.base, self.candidate), self.settings.rule.confirm_blocks, only)
        # Among fewer cases an axis may have one value and no name: labels are those of the screen.
        labels = {case.key: case.label for case in open_cases}
        return [replace(case, label=labels[case.key]) for case in self._cases(blocks) if case.key in labels]

    def _cases(self, blocks: Sequence[Block]) -> list[CaseBlocks]:
        """The blocks of one stage as the rules want them, each checked to be of the code and machine it began with."""
        self._check_unchanged(blocks)
        runs = [[self.folder.run(path) for path in paths] for paths in zip(*map(_runs_of, blocks), strict=True)]
        left, right = runs[0][0], runs[1][0]
        shared = compare_manifests(left.manifest, right.manifest, vary=self.settings.vary, is_stored=False)
        cases = interleaved_blocks(
            stored_cases(left, right, shared),
            *runs,
            order=[1 if block.baseline_first else -1 for block in blocks],
            metrics=self.settings.metrics,
        )
        disturbed = {
            case_id
            for block in blocks
            for case_id, names in block.disturbances.items()
            if INVALIDATING.intersection(names)
        }
        return [replace(case, disturbed=case.disturbed or case.case_id in disturbed) for case in cases]

    def _check_unchanged(self, blocks: Sequence[Block]) -> None:
        first = self._manifests(self.folder.blocks("warm-up")[0])
        for block in blocks:
            sides = self._manifests(block)
            starts = (first[0], first[0]) if block.stage == "self-test" else first
            for start, manifest in zip(starts, sides, strict=True):
                compare_manifests(_without_seed(start), _without_seed(manifest), vary=(), is_stored=False).check()

    def _manifests(self, block: Block) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.folder.run(block.baseline).manifest, self.folder.run(block.candidate).manifest

    def _plan_cases(self) -> list[dict[str, Any]]:
        block = self.folder.blocks("screen")[0]
        return [case for run in (block.baseline, block.candidate) for case in self.folder.run(run).plan["cases"]]

    def _fingerprint(self) -> str:
        """Digest of everything that must be equal, the treatment apart: the machine, the cases, the rule."""
        manifest = _without_seed(self.folder.run(self.folder.blocks("warm-up")[0].baseline).manifest)
        facts = [
            (path, value)
            for path, value in flat_paths(manifest["controlled"])
            if role_of(path, self.settings.vary) == "equal"
        ]
        text = json.dumps([facts, asdict(self.settings.rule), self.settings.metrics], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _counts(self) -> dict[str, int]:
        stages: tuple[Stage, ...] = ("self-test", "screen", "confirm")
        found = {stage: self.folder.blocks(stage) for stage in stages}
        kept: dict[str, int] = {stage: sum(block.is_kept for block in blocks) for stage, blocks in found.items()}
        lost = {f"{stage} discarded": sum(not block.is_kept for block in blocks) for stage, blocks in found.items()}
        return {**kept, **lost}


def _on_self_test(verdict: SuiteVerdict) -> list[str]:
    test = verdict.self_test
    if test is None:
        return ["no self-test"]
    answer = "valid" if test.valid else "; ".join(test.problems)
    return [f"self-test of {test.blocks} blocks: noise floor {test.noise_floor:.2%}; {answer}"]


def _runs_of(block: Block) -> tuple[str, str]:
    return block.baseline, block.candidate


def _without_seed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Every block shuffles its cases anew; within a block both sides have the same order, which `order_seed` shows."""
    controlled = {key: value for key, value in manifest["controlled"].items() if key != "order_seed"}
    measure = {key: value for key, value in controlled.get("measure", {}).items() if key != "seed"}
    return {**manifest, "controlled": {**controlled, "measure": measure}}


def _tell(stage: Stage, done: int, count: int, was_discarded: bool) -> None:
    say(f"{stage} {done}/{count}" + ("  (disturbed: taken again)" if was_discarded else ""))


def new_seed() -> int:
    """For a gate whose orders nobody asked to repeat."""
    return random.SystemRandom().getrandbits(32)
