"""What a CI system reads: well-formed whatever the names are, and nothing in it that was not in the verdict."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.analysis.gate.rules import judge
from kvbench.analysis.gate.types import CaseBlocks, SuiteVerdict, Verdict
from kvbench.errors import UsageError
from kvbench.report.ci.annotations import MOST, annotation_lines, command
from kvbench.report.ci.context import GateContext, headline, percent
from kvbench.report.ci.data import CASE_FIELDS, json_document
from kvbench.report.ci.junit import junit_xml
from kvbench.report.ci.markdown import markdown_summary
from kvbench.report.ci.write import FORMS, SUMMARY, tell_github, write_verdict
from kvbench.tabulate import as_json

HOSTILE = '<script>alert(1)</script> | `x` \x1b[31m ::error::boo\n::warning::%0A & "q" ]]> *b* \x00\ufffe'
CONTEXT = GateContext("small", ["run-a"], ["run-b"], 1, notes=["a note"])


def case(name: str, effect: float, *, blocks: int = 20, spread: float = 0.005, label: str = "") -> CaseBlocks:
    rng = np.random.default_rng(len(name) * 7 + round(1000 * (1 + effect)))
    noise = rng.normal(0.0, spread, (2, blocks))
    return CaseBlocks(name, "ttft_mean_s", "higher", np.exp(noise[0]), (1 + effect) * np.exp(noise[1]), label=label)


def all_kinds(label: str = "") -> SuiteVerdict:
    broken = CaseBlocks("broken", "decode_s", "higher", np.array([1.0, math.nan]), np.array([1.0, 1.0]))
    found = [case("slow", 0.10, label=label), case("fast", -0.10), case("same", 0.0), case("few", 0.0, blocks=3)]
    return judge([*found, broken])


def firm(verdict: SuiteVerdict) -> SuiteVerdict:
    """The same as with a valid self-test."""
    return replace(verdict, advisory=False, cases=tuple(replace(c, advisory=False) for c in verdict.cases))


def test_every_verdict_has_its_place_in_junit() -> None:
    root = ElementTree.fromstring(junit_xml(firm(all_kinds()), CONTEXT))
    suite = root.find("testsuite")
    assert suite is not None
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    found = {c.get("name"): [child.tag for child in c if child.tag != "properties"] for c in suite.iter("testcase")}
    assert found == {"slow": ["failure"], "broken": ["error"], "few": ["skipped"], "fast": [], "same": []}
    numbers = {p.get("name"): p.get("value") for p in next(iter(suite.iter("testcase"))).iter("property")}
    assert {"verdict", "reasons"} <= set(numbers)
    assert set(numbers) <= set(CASE_FIELDS)


def test_a_failure_that_is_only_advice_is_skipped_and_a_warning() -> None:
    verdict = judge([case("slow", 0.10), case("same", 0.0)])
    root = ElementTree.fromstring(junit_xml(verdict, CONTEXT))
    assert [e.tag for e in root.iter() if e.tag in ("failure", "skipped")] == ["skipped"]
    assert [line.split(" ")[0] for line in annotation_lines(verdict, CONTEXT)] == ["::warning"]
    assert "advice only" in headline(verdict)


def test_json_has_every_number_and_no_nan() -> None:
    verdict = all_kinds()
    document = json.loads(as_json(json_document(verdict, CONTEXT)))
    assert [set(c) for c in document["cases"]] == [set(CASE_FIELDS)] * 5
    assert document["counts"] == {str(v): 1 for v in Verdict}
    slow = next(c for c in document["cases"] if c["case_id"] == "slow")
    assert slow["effect"] == pytest.approx(0.10, abs=0.01)
    assert next(c for c in document["cases"] if c["case_id"] == "broken")["effect"] is None


def test_parquet_has_one_row_per_case_and_metric(tmp_path: Path) -> None:
    verdict = all_kinds()
    write_verdict(verdict, CONTEXT, [tmp_path / "deep" / "v.parquet"])
    table = pq.read_table(tmp_path / "deep" / "v.parquet")
    assert table.num_rows == 5
    assert set(CASE_FIELDS) < set(table.column_names)
    effects = dict(zip(table["case_id"].to_pylist(), table["effect"].to_pylist(), strict=True))
    assert effects == {c.case_id: None if math.isnan(c.effect) else c.effect for c in verdict.cases}


@pytest.mark.parametrize("suite", ["small", HOSTILE, 'a "quoted" name'])
def test_an_earlier_verdict_is_replaced_in_every_form_and_no_other_file_is(suite: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"v{ending}" for ending in FORMS]
    context = replace(CONTEXT, suite=suite)
    write_verdict(all_kinds(), context, paths)
    before = [path.read_bytes() for path in paths]
    write_verdict(firm(all_kinds()), context, paths)
    assert all(path.read_bytes() != old for path, old in zip(paths, before, strict=True))
    for path, other in zip(paths, [*paths[1:], paths[0]], strict=True):
        kept = other.read_bytes()
        path.write_bytes(kept)
        with pytest.raises(UsageError, match="there already"):
            write_verdict(all_kinds(), context, [path])
        assert path.read_bytes() == kept


def test_an_ending_that_no_writer_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"v\.html"):
        write_verdict(all_kinds(), CONTEXT, [tmp_path / "v.html"])


def test_what_needs_attention_comes_first_and_passes_are_folded_away() -> None:
    text = markdown_summary(firm(all_kinds()), CONTEXT)
    places = [text.index(f"| {name}") for name in ("INVALID", "FAIL", "INCONCLUSIVE", "IMPROVED", "PASS")]
    assert places == sorted(places)
    assert text.index("<details>") < places[-1]
    assert "a note" in text


def test_m68_hostile_names_are_text_in_every_ci_output() -> None:
    """Markup, HTML, terminal escapes and workflow commands in a case's label, a suite's name and a note."""
    verdict = firm(all_kinds(HOSTILE))
    context = GateContext(HOSTILE, [HOSTILE], [HOSTILE], 1, notes=[HOSTILE])
    root = ElementTree.fromstring(junit_xml(verdict, context))
    assert any("<script>" in (c.get("name") or "") for c in root.iter("testcase"))
    text = markdown_summary(verdict, context)
    assert "<script" not in text
    assert "\x1b" not in text + junit_xml(verdict, context)
    lines = annotation_lines(verdict, context)
    assert all("\n" not in line and "\x1b" not in line for line in lines)
    assert all(re.match(r"::(error|warning|notice) title=[^:,]*::", line) for line in lines)
    json.loads(as_json(json_document(verdict, context)))


@given(st.text(), st.text())
@settings(max_examples=200, deadline=None)
def test_an_annotation_is_one_line_that_reads_back(title: str, message: str) -> None:
    """Decoded as GitHub's runner does (ActionCommand.TryParseV2): properties end at the next `::`."""
    line = command("error", title, message)
    assert len(line.splitlines()) == 1
    found = re.fullmatch(r"::error title=([^:]*?)::(.*)", line)
    assert found is not None
    for text in found.groups():
        assert "%" not in re.sub(r"%(25|0D|0A|3A|2C)", "", text)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_junit_is_well_formed_whatever_a_case_is_called(name: str) -> None:
    verdict = judge([case("a", 0.0, label=name)])
    ElementTree.fromstring(junit_xml(verdict, GateContext(name, [name], [], 0)))


def test_beyond_ten_annotations_of_a_level_the_rest_is_counted() -> None:
    verdict = firm(judge([case(f"c{n}", 0.2 + n / 100) for n in range(30)]))
    lines = [line for line in annotation_lines(verdict, CONTEXT) if line.startswith("::error")]
    assert len(lines) == MOST
    uniform = verdict.uniform
    failed = len(verdict.having(Verdict.FAIL)) + (uniform is not None and uniform.verdict is Verdict.FAIL)
    assert f"and {failed - MOST + 1} more" in lines[-1]


def test_the_summary_of_a_github_job_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SUMMARY, raising=False)
    assert tell_github(all_kinds(), CONTEXT)
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    monkeypatch.setenv(SUMMARY, str(path))
    tell_github(all_kinds(), CONTEXT)
    assert path.read_text() == "before\n" + markdown_summary(all_kinds(), CONTEXT)


def test_an_endless_effect_says_so_in_few_letters() -> None:
    shown = [percent(value) for value in (0.031, -0.5, 1e30, math.nan, math.inf)]
    assert shown == ["+3.1 %", "-50.0 %", "> 1000 %", "–", "> 1000 %"]
