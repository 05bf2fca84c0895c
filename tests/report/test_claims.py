"""Verdicts stand below the tables for people, in the document for machines, and nowhere in CSV."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from kvbench.analysis.claims.registry import CHECKERS
from kvbench.report.claims import claim_lines, claim_markdown
from kvbench.report.tables import render_run
from kvbench.spec.load import load_suite
from kvbench.store.run import Run, open_run
from kvbench.store.run_folder import RunFolder
from tests.analysis.claims.test_judge import CLAIM
from tests.report.test_tables import EVIL
from tests.store.samples import plan, sample

SIZES = (8, 16, 24)


SHIPPED = load_suite("block-size").suite.claim


def run_of(tmp_path: Path, suite: str, clock: str = "wall", claim: str = "") -> Run:
    facts = plan(len(SIZES), 2, clock=clock)
    facts["suite"] |= {"name": suite, "claim": claim or SHIPPED}
    with RunFolder.create(tmp_path, facts) as folder:
        for case in range(len(SIZES)):
            for number in range(2):
                folder.add(sample(case, number, clock=clock, output_tokens_per_s=100.0 + case % 2 + number / 100))
        return open_run(folder.path)


def shown(run: Run, form: str, width: int = 400) -> str:
    out = io.StringIO()
    render_run(run, form, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_json_has_every_verdict_with_its_numbers(tmp_path: Path) -> None:
    claims = {c["claim"]: c for c in json.loads(shown(run_of(tmp_path, "block-size"), "json"))["claims"]}
    best = claims["The sweet spot is 16 to 64"]
    assert (best["held"], best["is_modelled"]) == ("held", False)
    assert best["numbers"]["points"][0]["samples"] == 2
    assert claims["Tiny blocks (4) cost kernel time per look-up"]["held"] == "not tested"


@pytest.mark.parametrize("form", ["table", "md"])
def test_people_read_the_verdict_the_claim_and_the_reason(tmp_path: Path, form: str) -> None:
    text = shown(run_of(tmp_path, "block-size"), form)
    where = text.index("Did the claims")
    assert text.index("The sweet spot is 16 to 64") > where
    assert "not tested" in text
    assert "no kernel case with block_size=4" in text
    assert "no engine case with block_size=128" in text


def test_a_suite_without_a_checker_has_no_verdicts_and_csv_never_has(tmp_path: Path) -> None:
    mine = run_of(tmp_path / "a", "mine")
    assert json.loads(shown(mine, "json"))["claims"] == []
    assert "claims" not in shown(mine, "table")
    assert shown(run_of(tmp_path / "b", "block-size"), "csv").splitlines()[0] == shown(mine, "csv").splitlines()[0]


def test_a_suite_of_the_users_with_the_name_of_another_has_no_verdicts_on_what_it_does_not_claim(
    tmp_path: Path,
) -> None:
    mine = run_of(tmp_path, "block-size", claim="The moon is cheese.")
    assert json.loads(shown(mine, "json"))["claims"] == []
    assert "Did the claims" not in shown(mine, "table")


@pytest.mark.parametrize("suite", CHECKERS)
def test_a_run_of_a_suite_that_ships_has_verdicts(tmp_path: Path, suite: str) -> None:
    assert json.loads(shown(run_of(tmp_path, suite, claim=load_suite(suite).suite.claim), "json"))["claims"]


def test_numbers_of_the_virtual_clock_are_called_modelled(tmp_path: Path) -> None:
    text = shown(run_of(tmp_path, "block-size", "virtual"), "md")
    line = next(line for line in text.splitlines() if "sweet spot" in line)
    assert "modelled" in line


@pytest.mark.parametrize("width", [1, 24, 60, 100])
def test_lines_fit_the_terminal_and_text_from_outside_stays_text(width: int) -> None:
    from kvbench.analysis.claims.judge import not_tested

    verdict = not_tested(CLAIM, EVIL)
    lines = list(claim_lines([verdict], width))
    assert all(len(line) <= max(width, 24) for line in lines[1:] if " " in line.strip())
    assert "\x1b" not in "".join(lines)
    assert "<script>" not in claim_markdown([verdict])
