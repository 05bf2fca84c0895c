"""`kvbench compare` and `kvbench export` on stored runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvbench.analysis.side_by_side import change
from kvbench.cli.main import run
from tests.store.stored import stored_run

NOISE = np.random.default_rng(5).normal(0.0, 0.01, (3, 5, 10))
METRIC = "ttft_mean_s"


def side(session: int, factor: float = 1.0) -> dict[str, Callable[[int, int], float | None]]:
    return {METRIC: lambda c, n: float(0.1 * factor * np.exp(NOISE[session, c, n]))}


def compare(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any, str]:
    code = run(["compare", *map(str, arguments), "--format", "json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, json.loads(out) if out else None, err


def test_the_change_and_its_interval_are_welchs_on_logarithms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = (stored_run(tmp_path / n, side(at, 1 - 0.2 * at)) for at, n in enumerate("abc"))
    code, found, _ = compare(capsys, a, b, c)
    assert code == 0
    assert found["runs"] == {"A": a.name, "B": b.name, "C": c.name}
    line = next(x for x in found["lines"] if x["run"] == "B" and x["case"] == "block_size=16")
    logs = NOISE[0, 1], NOISE[1, 1] + math.log(0.8)
    low, high = stats.ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(0.95)
    assert line["low"] == pytest.approx(math.expm1(low))
    assert line["high"] == pytest.approx(math.expm1(high))
    assert (line["word"], line["samples"]) == ("better", 10)
    assert {x["change"] for x in found["lines"] if x["run"] == "A"} == {None}


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8), st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8))
@settings(max_examples=200, deadline=None)
def test_a_word_never_goes_beyond_the_interval(left: list[float], right: list[float]) -> None:
    for direction, good in (("higher", 1.0), ("lower", -1.0)):
        found = change(np.array(left), np.array(right), direction)
        assert found.low <= found.change <= found.high
        if found.word in ("better", "worse"):
            assert found.low > 0 or found.high < 0
            assert (found.word == "better") == (found.change * good > 0)
        else:
            assert found.low <= 0 <= found.high


def test_one_sample_has_no_interval_and_no_word_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = stored_run(tmp_path / "a", side(0), samples=1), stored_run(tmp_path / "b", side(1, 0.5), samples=1)
    _, found, _ = compare(capsys, a, b)
    assert {x["word"] for x in found["lines"] if x["run"] == "B"} == {"no interval"}
    assert {x["low"] for x in found["lines"]} == {None}


def test_a_setting_is_compared_when_it_is_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def eight_bits(facts: dict[str, Any]) -> None:
        for n, case in enumerate(facts["cases"]):
            case["engine"]["kv_dtype"] = "int8"
            case["case_id"] = f"b{n:011d}"

    def four_bytes(facts: dict[str, Any]) -> None:
        for case in facts["cases"]:
            case["engine"]["kv_dtype"] = "fp32"

    a, b = (
        stored_run(tmp_path / "a", side(0), change=four_bytes),
        stored_run(tmp_path / "b", side(1), change=eight_bits),
    )
    code, found, err = compare(capsys, a, b)
    assert (code, [(r["field"], r["left"], r["right"], r["cases"]) for r in found]) == (
        4,
        [("engine.kv_dtype", "fp32", "int8", 3)],
    )
    assert "--vary kv_dtype" in err
    code, found, _ = compare(capsys, a, b, "--vary", "kv_dtype")
    assert (code, len(found["lines"])) == (0, 6)
    assert [(d["role"], d["field"]) for d in found["differences"]] == [("treatment", "engine.kv_dtype")]


def test_cases_of_one_run_only_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = stored_run(tmp_path / "a", side(0), cases=3), stored_run(tmp_path / "b", side(1), cases=4)
    code, found, _ = compare(capsys, a, b)
    assert (code, found["only_in"]) == (0, [{"runs": ["B"], "case": "block_size=32"}])
    assert len(found["lines"]) == 6


def test_m61_what_cannot_be_compared_is_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No common case, no value of a metric, a damaged table, no run at all; and NaN is a missing value."""

    def others(facts: dict[str, Any]) -> None:
        for n, case in enumerate(facts["cases"]):
            case |= {"case_id": f"f{n:011d}", "axes": {"block_size": 999 + n}}

    a, b = stored_run(tmp_path / "a", side(0)), stored_run(tmp_path / "b", side(1), change=others)
    assert compare(capsys, a, b)[0] == 5
    c = stored_run(tmp_path / "c", side(1), row=lambda c, n: {METRIC: float("nan")} if n < 9 else {})
    code, found, _ = compare(capsys, a, c)
    assert (code, {x["samples"] for x in found["lines"]}, {x["word"] for x in found["lines"]}) == (
        0, {10, 1}, {None, "no interval"},
    )  # fmt: skip
    assert compare(capsys, a, c, "--metric", "decode_s")[0] == 5
    assert compare(capsys, a, c, "--metric", "nothing")[0] == 2
    assert compare(capsys, a)[0] == 2
    assert compare(capsys, a, tmp_path)[0] == 2
    (c / "cases.parquet").write_bytes(b"PAR1")
    assert compare(capsys, a, c)[0] == 5


def test_m68_hostile_labels_are_text_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Markup, HTML and terminal escapes in the label of a case, in every form."""

    def hostile(facts: dict[str, Any]) -> None:
        facts["cases"][0]["label"] = "<script> | `x` \x1b[31m [bold]"

    a, b = (stored_run(tmp_path / n, side(at), change=hostile) for at, n in enumerate("ab"))
    for form in ("table", "md", "csv", "json"):
        assert run(["compare", str(a), str(b), "--format", form]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert form != "md" or "<script>" not in out


def test_exports_hold_medians_and_one_direction_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {**side(0), "output_tokens_per_s": lambda c, n: 100.0 + c + n}
    a = stored_run(tmp_path / "a", values, row=lambda c, n: {"status": "oom", METRIC: None} if (c, n) == (0, 0) else {})

    def exported(form: str) -> Any:
        assert run(["export", str(a), "--to", form]) == 0
        return json.loads(capsys.readouterr().out)

    smaller, bigger = exported("github-action-smaller"), exported("github-action-bigger")
    assert [set(entry) for entry in smaller] == [{"name", "unit", "value", "range", "extra"}] * 3
    assert {entry["unit"] for entry in smaller} == {"s"}
    assert [entry["value"] for entry in bigger] == [105.0, 105.5, 106.5]
    assert smaller[1]["value"] == pytest.approx(float(np.median(0.1 * np.exp(NOISE[0, 1]))))
    bencher = exported("bencher")
    assert bencher["small block_size=16"]["output_tokens_per_s"] == {
        "value": 105.5, "lower_value": 101.0, "upper_value": 110.0,
    }  # fmt: skip
    assert run(["export", str(a), "--to", "bencher", "--metric", "decode_s"]) == 5


@pytest.mark.parametrize("place", ["suite", "cases", "system", "workloads", "models", "measure", "earlier_systems"])
@pytest.mark.parametrize("value", [5, "x", [1], {"a": 1}, None])
def test_a_manifest_that_was_edited_never_ends_in_a_traceback_or_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, value: Any
) -> None:
    a, b = (stored_run(tmp_path / n, side(at), samples=2) for at, n in enumerate("ab"))
    manifest = json.loads((b / "manifest.json").read_text())
    manifest["controlled"][place] = value
    (b / "manifest.json").write_text(json.dumps(manifest))
    for command in (
        ["compare", str(a), str(b)],
        ["gate", "judge", str(a), str(b)],
        ["manifest", "diff", str(a), str(b)],
    ):
        code = run(command)
        assert code in ((2, 4, 5) if not isinstance(value, dict) else (0, 3, 4, 5)), command
    assert run(["reproduce", str(b), "--dry-run"]) in (2, 4, 5)
    assert "Traceback" not in capsys.readouterr().err
