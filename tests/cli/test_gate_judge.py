"""`kvbench gate judge` on stored runs: the exit code is the answer, and nothing bad ends in 0 or 1."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from kvbench.cli.main import run
from tests.store.stored import stored_run

NOISE = np.random.default_rng(3).normal(0.0, 0.004, (8, 5, 20))
METRIC = "output_tokens_per_s"


def side(session: int, factor: float = 1.0) -> dict[str, Callable[[int, int], float | None]]:
    return {METRIC: lambda c, n: float(100 * factor * np.exp(NOISE[session, c, n]))}


def judge(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any, str]:
    code = run(["gate", "judge", *map(str, arguments), "--format", "json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, json.loads(out) if out else None, err


def test_unchanged_code_passes_and_numbers_are_those_of_a_paired_t_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (stored_run(tmp_path / name, side(at), samples=20) for at, name in enumerate("ab"))
    code, found, _ = judge(capsys, a, b)
    assert (code, found["verdict"], found["exit_code"], found["advisory"]) == (0, "PASS", 0, True)
    ours = {case["label"]: case for case in found["cases"]}
    theirs = stats.ttest_rel(NOISE[0, 0], NOISE[1, 0], alternative="greater")
    assert ours["block_size=8"]["p_worse"] == pytest.approx(theirs.pvalue)
    assert (found["baselines"], found["candidates"]) == ([a.name], [b.name])


def test_a_slowdown_between_two_stored_runs_is_advice_and_exits_3_or_as_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = stored_run(tmp_path / "a", side(0), samples=20), stored_run(tmp_path / "b", side(1, 0.9), samples=20)
    code, found, _ = judge(capsys, a, b)
    assert (code, found["verdict"], {c["verdict"] for c in found["cases"]}) == (3, "FAIL", {"FAIL"})
    assert [judge(capsys, a, b, "--inconclusive", word)[0] for word in ("pass", "fail", "neutral")] == [0, 1, 3]


def test_three_sessions_make_a_slowdown_a_fail_by_session_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = [stored_run(tmp_path / f"a{n}", side(n)) for n in range(5)]
    new = stored_run(tmp_path / "b", side(5, 0.8))
    sessions = [item for path in old[1:] for item in ("--baseline", path)]
    code, found, _ = judge(capsys, old[0], new, *sessions)
    assert (code, found["verdict"], found["advisory"]) == (1, "FAIL", False)
    means = [-NOISE[n, 0, :10].mean() for n in range(5)]
    new_mean = -(NOISE[5, 0, :10].mean() + math.log(0.8))
    theirs = stats.ttest_ind([new_mean], means, alternative="greater")
    ours = next(c for c in found["cases"] if c["label"] == "block_size=8")
    assert ours["p_worse"] == pytest.approx(theirs.pvalue)
    code, found, _ = judge(capsys, old[0], stored_run(tmp_path / "c", side(6)), *sessions)
    assert (code, found["verdict"]) in ((0, "PASS"), (3, "INCONCLUSIVE"))


def test_a_case_that_was_disturbed_beyond_the_budget_is_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(case: int, sample: int) -> dict[str, Any]:
        is_told = case == 0 and sample < 5
        return (
            {"warnings": json.dumps([{"name": "not_redone", "numbers": {"reasons": ["swapped"], "budget_left": 0}}])}
            if is_told
            else {}
        )

    a, b = stored_run(tmp_path / "a", side(0), samples=20), stored_run(tmp_path / "b", side(1), samples=20, row=told)
    code, found, _ = judge(capsys, a, b)
    verdicts = {case["label"]: case["verdict"] for case in found["cases"]}
    assert (code, verdicts["block_size=8"], verdicts["block_size=16"]) == (5, "INVALID", "PASS")


def test_m60_a_stored_baseline_of_another_driver_is_refused_with_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stored baseline from another driver and power limit: exit 4 and both fields, unless they are the treatment."""

    def other(facts: dict[str, Any]) -> None:
        facts["environment"]["controlled"]["driver"]["version"] = "580"
        facts["environment"]["controlled"]["gpus"][0]["power_limit_w"] = 350.0
        facts["environment"]["controlled"]["kvbench"]["git_commit"] = "b" * 40

    a, b = stored_run(tmp_path / "a", side(0)), stored_run(tmp_path / "b", side(1), change=other)
    code, found, err = judge(capsys, a, b)
    assert (code, sorted((row["field"], row["left"], row["right"]) for row in found)) == (
        4,
        [("system.driver.version", "570", "580"), ("system.gpus.0.power_limit_w", 700.0, 350.0)],
    )
    assert "--vary driver" in err
    assert judge(capsys, a, b, "--vary", "git_commit", "--vary", "driver", "--vary", "power")[0] == 0


def nothing(_: int, __: int) -> None:
    return None


@pytest.mark.parametrize(
    ("change", "row", "code"),
    [
        ("a case on one side", None, 5),
        ("", lambda c, n: {"status": "crash", METRIC: None} if (c, n) == (1, 4) else {}, 5),
        ("", lambda c, n: {METRIC: float("nan")} if (c, n) == (1, 4) else {}, 5),
        ("", lambda c, n: {METRIC: 0.0} if c == 1 else {}, 5),
        ("", lambda c, n: {METRIC: None} if c == 1 else {}, 5),
        ("no case in common", None, 5),
    ],
)
def test_m61_missing_values_and_lone_cases_exit_5(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, row: Any, code: int
) -> None:
    """NaN, zero, a lost sample, a case on one side only, no case in common."""

    def edit(facts: dict[str, Any]) -> None:
        if change == "a case on one side":
            facts["cases"].pop()
        elif change:
            for n, case in enumerate(facts["cases"]):
                case |= {"case_id": f"f{n:011d}", "axes": {"block_size": 999 + n}}

    a = stored_run(tmp_path / "a", side(0))
    b = stored_run(tmp_path / "b", side(1), change=edit, row=row)
    found = judge(capsys, a, b)
    assert (found[0], found[1]["verdict"]) == (code, "INVALID")
    assert judge(capsys, b, a)[0] == code


@pytest.mark.parametrize(
    "row",
    [
        lambda c, n: {"status": "crash", METRIC: None} if c == 1 else {},
        lambda c, n: {METRIC: float("nan")} if c == 1 else {},
        lambda c, n: (
            {METRIC: None, "warnings": json.dumps([{"name": "not_a_number", "numbers": {METRIC: None}}])}
            if c == 1
            else {}
        ),
    ],
)
def test_m61_a_case_that_lost_its_value_on_both_sides_exits_5_even_for_a_metric_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: Any
) -> None:
    """A case that crashed, or has NaN, in every sample of both sides, beside cases that pass."""
    a, b = (stored_run(tmp_path / name, side(at), row=row) for at, name in enumerate("ab"))
    assert [judge(capsys, a, b, *asked)[0] for asked in ((), ("--metric", METRIC))] == [5, 5]


def test_a_metric_asked_for_that_a_sound_case_does_not_have_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(c: int, n: int) -> dict[str, Any]:
        return {METRIC: None} if c == 1 else {}

    a, b = (stored_run(tmp_path / name, side(at), row=row) for at, name in enumerate("ab"))
    code, found, _ = judge(capsys, a, b, "--metric", METRIC)
    assert (code, found["notes"]) == (0, [f"block_size=16 has no {METRIC}"])


def test_a_copy_of_a_run_is_no_further_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three copies of one baseline have no spread between sessions, and would make any difference a FAIL."""
    a, b = stored_run(tmp_path / "a", side(0)), stored_run(tmp_path / "b", side(1, 0.9))
    copies = [shutil.copytree(a, tmp_path / f"copy-{n}") for n in range(2)]
    code, found, err = judge(capsys, a, b, *(item for copy in copies for item in ("--baseline", copy)))
    assert (code, found) == (2, None)
    assert "a run is given twice" in err
    assert judge(capsys, a, copies[0])[0] == 2


def test_a_case_that_fits_on_neither_side_is_named_and_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(c: int, n: int) -> dict[str, Any]:
        return {"status": "oom", METRIC: None} if c == 1 else {}

    a, b = (stored_run(tmp_path / name, side(at), row=row) for at, name in enumerate("ab"))
    code, found, _ = judge(capsys, a, b)
    assert (code, len(found["cases"])) == (0, 2)
    assert found["notes"] == ["not judged, it fits on neither side: block_size=16"]


def test_samples_of_which_one_side_has_more_are_paired_by_number_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = stored_run(tmp_path / "a", side(0), samples=10), stored_run(tmp_path / "b", side(1), samples=8)
    _, found, _ = judge(capsys, a, b)
    assert {case["blocks"] for case in found["cases"]} == {8}
    assert found["notes"] == ["10 samples against 8: the 8 with the same number are compared"]


def test_bad_input_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (stored_run(tmp_path / name, side(at)) for at, name in enumerate("ab"))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert judge(capsys, a, empty)[0] == 2
    assert judge(capsys, a, tmp_path / "nowhere")[0] == 2
    assert judge(capsys, a, a)[0] == 2
    assert judge(capsys, a, b, "--metric", "speed")[0] == 2
    assert judge(capsys, a, b, "--metric", "wall_s")[0] == 2
    assert judge(capsys, a, b, "--metric", "decode_s")[0] == 5
    assert judge(capsys, a, b, "--vary", "git_comit")[0] == 2
    assert judge(capsys, a, b, "--write", tmp_path / "x.html")[0] == 2
    for held in (b / "manifest.json", b / "cases.parquet"):
        before = held.read_bytes()
        code, _, err = judge(capsys, a, b, "--write", held)
        assert (code, held.read_bytes()) == (2, before)
        assert "there already" in err
    cut = b / "cases.parquet"
    cut.write_bytes(cut.read_bytes()[:100])
    assert judge(capsys, a, b)[0] == 5


def test_m67_a_run_of_a_newer_version_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A baseline whose manifest a newer version wrote: exit 2, and it says so."""
    a, b = (stored_run(tmp_path / name, side(at)) for at, name in enumerate("ab"))
    found = json.loads((a / "manifest.json").read_text())
    (a / "manifest.json").write_text(json.dumps({**found, "schema_version": 99}))
    code, _, err = judge(capsys, a, b)
    assert code == 2
    assert "newer kvbench" in " ".join(err.split())


def test_m66_a_ci_log_gets_plain_annotations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FORCE_COLOR=1 in a CI log: annotations stand at the start of their lines, without escapes."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    a, b = stored_run(tmp_path / "a", side(0)), stored_run(tmp_path / "b", side(1, 0.9))
    code, _, err = judge(capsys, a, b, "--github", "--write", tmp_path / "v.xml")
    lines = err.splitlines()
    assert code == 3
    assert [line.startswith("::warning title=FAIL block_size=") for line in lines] == [True] * 3
    assert "\x1b" not in err
    assert (tmp_path / "summary.md").read_text().startswith("## kvbench gate small: FAIL")
    assert (tmp_path / "v.xml").read_text().startswith("<?xml")


@pytest.mark.parametrize("form", ["table", "md", "csv"])
def test_every_form_names_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    a, b = (stored_run(tmp_path / name, side(at)) for at, name in enumerate("ab"))
    assert run(["gate", "judge", str(a), str(b), "--format", form]) == 0
    out = capsys.readouterr().out
    assert all(f"block\\_size={n}" in out or f"block_size={n}" in out for n in (8, 16, 24))


def test_a_creep_is_found_against_a_pinned_reference_when_it_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = [stored_run(tmp_path / f"r{n}", side(n)) for n in range(5)]
    weeks = [stored_run(tmp_path / f"w{n}", side(5 + n, factor)) for n, factor in enumerate((0.995, 0.985, 0.95))]
    references = [item for path in pinned for item in ("--reference", str(path))]
    code = run(["gate", "trend", *map(str, weeks), *references, "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    verdicts = [[row["verdict"] for row in found if row["run"] == str(week)] for week in weeks]
    assert "FAIL" not in verdicts[0] + verdicts[1]
    assert set(verdicts[2]) == {"FAIL"}
    assert code == 1, "the last run decides"
    assert run(["gate", "trend", str(weeks[0]), *references]) != 1
    assert str(weeks[0]) in capsys.readouterr().out
    assert run(["gate", "trend", str(weeks[2]), *references[:2]]) == 3, "one reference makes it advice"
    assert run(["gate", "trend", str(tmp_path / "none"), *references]) == 2
