"""The rules of other tools against scipy, and all rules on recorded nights."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from kvbench.analysis.gate.baselines import BASELINES
from kvbench.analysis.gate.recordings import read_recordings, shipped
from kvbench.analysis.gate.replay import replay
from kvbench.analysis.gate.rules import judge
from kvbench.analysis.gate.self_test import with_slowdown
from kvbench.analysis.gate.series import Night, halves, neighbours, pairs
from kvbench.analysis.gate.types import Verdict
from kvbench.cli.main import run
from tests.gate.blocks import suite
from tests.shared_data import shared_data


def _samples(seed: int, rows: int = 60, size: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shift = rng.uniform(-0.03, 0.03, (rows, 1))
    return np.exp(rng.normal(0, 0.02, (rows, size))), np.exp(shift + rng.normal(0, 0.03, (rows, size)))


def test_u_test_is_that_of_scipy_row_by_row():
    a, b = _samples(1)
    a, b = np.round(a, 2), np.round(b, 2)
    a[30:], b[30:] = _samples(2, 30)
    expected = []
    for x, y in zip(a, b, strict=True):
        tied = len(set(x) | set(y)) < x.size + y.size
        p = stats.mannwhitneyu(x, y, method="asymptotic" if tied else "exact").pvalue
        expected.append(p < 0.05 and np.median(y) > np.median(x))
    assert BASELINES["u-test"](a, b).tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_welch_t_is_that_of_scipy():
    a, b = _samples(3)
    found = stats.ttest_ind(b, a, axis=1, equal_var=False)
    assert BASELINES["welch-t"](a, b).tolist() == ((found.pvalue < 0.05) & (found.statistic > 0)).tolist()


def test_fixed_thresholds_look_at_the_means_alone():
    a, b = np.ones((3, 4)), np.array([[1.04] * 4, [1.06] * 4, [1.11] * 4])
    assert BASELINES["mean+5%"](a, b).tolist() == [False, True, True]
    assert BASELINES["mean+10%"](a, b).tolist() == [False, False, True]


def test_criterion_calls_clear_slowdowns_and_leaves_small_or_uncertain_ones_alone():
    rng = np.random.default_rng(5)
    quiet = np.exp(rng.normal(0, 0.003, (3, 20)))
    wide = np.exp(rng.normal(0, 0.5, (1, 20)))
    baseline = np.concatenate([quiet, wide])
    candidate = baseline[:, ::-1] * np.array([[1.0], [1.005], [1.05], [1.05]])
    assert BASELINES["criterion"](baseline, candidate).tolist() == [False, False, True, False]


def test_rules_are_silent_on_equal_samples():
    same = np.full((2, 10), 3.0)
    for says in BASELINES.values():
        assert not says(same, same).any()


def test_power_is_what_judging_each_slowed_case_by_itself_gives():
    cases = tuple(suite(4, 6, sd=0.012, blocks=12))
    ours = replay([Night("n", "pairs", cases, 0)], others=())[0]
    for effect, share in ours.power.items():
        found = 0
        for at in range(len(cases)):
            changed = [with_slowdown(case, effect) if at == i else case for i, case in enumerate(cases)]
            found += judge(changed).cases[at].verdict is Verdict.FAIL
        assert share == pytest.approx(found / len(cases))


def test_the_shipped_recording_never_fails_a_session():
    nights = pairs(read_recordings([shipped()])[0])
    ours = replay(nights, others=())[0]
    assert (ours.nights, ours.cells) == (3, 18)
    assert ours.false_nights == 0
    assert all(share is None or share >= 0.95 for share in ours.power_detectable.values())


@pytest.mark.parametrize("design", [lambda found: halves(found, 0), neighbours])
def test_nights_of_the_go_project_have_at_most_one_false_alarm_in_14(design):
    nights = design(read_recordings([shared_data("gate/nightly_base_vs_base")])[0])
    scores = {score.rule: score for score in replay(nights, others=("u-test",))}
    ours = scores["kvbench"]
    assert ours.false_nights <= ours.nights / 14
    assert ours.detectable[0.05] > ours.cells / 2
    assert ours.power_detectable[0.05] >= 0.95
    assert scores["u-test"].false_nights > ours.nights / 2


def test_the_command_prints_every_rule_in_every_format(capsys):
    assert run(["gate", "replay", "--format", "json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["rule"] for record in records] == ["kvbench", *BASELINES]
    for form in ("table", "md", "csv"):
        assert run(["gate", "replay", "--format", form]) == 0
        out = capsys.readouterr().out
        assert all(rule in out for rule in ("kvbench", *BASELINES))


@pytest.mark.parametrize(
    ("content", "code"), [("session,case,side,value\n", 5), ("session,case,side,value\ns,c,baseline,1\n", 5), ("x", 2)]
)
def test_data_without_anything_to_judge_is_5_and_no_data_is_2(tmp_path, capsys, content, code):
    (tmp_path / "r.csv").write_text(content)
    assert run(["gate", "replay", str(tmp_path / "r.csv")]) == code
    assert "error:" in capsys.readouterr().err
