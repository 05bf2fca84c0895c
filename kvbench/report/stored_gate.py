"""Folders of stored runs to a verdict: opened, held to be comparable, judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from kvbench.analysis.gate.types import Inconclusive, SuiteVerdict
from kvbench.analysis.sides import all_defaults, chosen_metrics, read_side
from kvbench.analysis.stored import StoredCase, judge_stored
from kvbench.errors import UsageError
from kvbench.report.ci.context import GateContext
from kvbench.store.comparability import Comparability, FieldDifference, compare_manifests
from kvbench.store.run import Run, open_run


def judge_folders(
    baselines: Sequence[Path],
    candidates: Sequence[Path],
    metrics: Sequence[str] = (),
    vary: Sequence[str] = ("git_commit",),
    *,
    inconclusive: str = "neutral",
) -> tuple[SuiteVerdict, GateContext]:
    """The verdict on stored runs, the first folder of each side being the one that decides which cases there are.

    Raises `NotComparableError` (exit 4) with the table of fields that differ beyond `vary`, `UsageError` for what is no
    run folder or an unknown metric, `DataError` for a damaged one.
    """
    chosen_metrics(metrics)
    runs = [[open_run(path) for path in side] for side in (baselines, candidates)]
    _refuse_twice([run for side in runs for run in side])
    first, second = runs[0][0], runs[1][0]
    sessions = [*((run, ()) for run in runs[0][1:]), *((run, vary) for run in runs[1])]
    found = [compare_manifests(first.manifest, run.manifest, vary=declared) for run, declared in sessions]
    for comparability in found:
        comparability.check()
    main = found[len(runs[0]) - 1]
    sides = [[read_side(run, metrics or all_defaults()) for run in side] for side in runs]
    cases = stored_cases(first, second, main)
    judged = judge_stored(cases, sides[0], sides[1], metrics)
    code = judged.suite.exit_code(cast("Inconclusive", inconclusive))
    context = GateContext(
        suite=str(first.plan["suite"]["name"]),
        baselines=[run.run_id for run in runs[0]],
        candidates=[run.run_id for run in runs[1]],
        exit_code=int(code),
        differences=_once(found),
        notes=[*_damage(runs[0] + runs[1]), *judged.notes],
    )
    return judged.suite, context


def stored_cases(left: Run, right: Run, found: Comparability) -> list[StoredCase]:
    """All cases of two runs, those on one side only included, in the order of the first run's plan."""
    facts = [{case["case_id"]: case for case in run.plan["cases"]} for run in (left, right)]
    pairs = [(pair.left, pair.right) for pair in found.pairs]
    pairs += [(case_id, case_id) for case_id in (*found.left_only, *found.right_only)]
    cases = []
    for mine, theirs in pairs:
        case = facts[0].get(mine) or facts[1][theirs]
        label = str(case.get("label") or _label(case) or mine)
        cases.append(StoredCase(mine, theirs, str(case.get("kind", "engine")), label))
    return cases


def _label(case: dict[str, object]) -> str:
    axes = case.get("axes")
    return " ".join(f"{name}={value}" for name, value in axes.items()) if isinstance(axes, dict) else ""


def _refuse_twice(runs: Sequence[Run]) -> None:
    """Neither a folder nor a copy of it is another session."""
    first: dict[str, Run] = {}
    for run in runs:
        earlier = first.setdefault(run.run_id, run)
        if earlier is not run:
            raise UsageError(
                f"a run is given twice: {earlier.path} and {run.path} are {run.run_id}",
                hint="every session is a run of its own; a copy holds nothing new",
            )


def _damage(runs: Sequence[Run]) -> list[str]:
    return [f"left out: {problem}" for run in runs for problem in run.problems]


def _once(found: Sequence[Comparability]) -> tuple[FieldDifference, ...]:
    """Differences of all sessions, each said once."""
    seen = {repr(difference): difference for one in found for difference in one.differences}
    return tuple(seen.values())
