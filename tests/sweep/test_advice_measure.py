"""`recommend --measure`: which cases it takes, as which suite, and that it decides on what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvbench.analysis.advice.lengths import LengthSample
from kvbench.errors import CannotRunError
from kvbench.spec.cases import expand
from kvbench.spec.load import LoadedSuite
from kvbench.store.run import Run
from kvbench.sweep import advise_measure as measuring
from kvbench.sweep.advice.question import Question
from kvbench.sweep.advise import Advice, advise
from tests.sweep.synthetic_run import BLOCK_SIZES_ONLY, planted_run

PLAIN = BLOCK_SIZES_ONLY.replace("[4, 16, 64]", "[8, 16, 32]")


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kept fits and tuned kernels of whoever runs the tests stay out of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVBENCH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def advice(tmp_path_factory: pytest.TempPathFactory) -> Advice:
    """One noisy run: its candidates are tied."""
    run = planted_run(tmp_path_factory.mktemp("noisy"), PLAIN, noise=0.4)
    rng = np.random.default_rng(2)
    sample = LengthSample(rng.integers(20, 150, 40), rng.integers(4, 40, 40), "mine", "trace", 40)
    return advise(Question(sample=sample, results=(run.path,)))


def test_what_is_tied_is_measured_as_one_suite_with_the_same_lengths_and_pool(advice: Advice, tmp_path: Path) -> None:
    places = measuring.undecided(advice)
    assert 2 <= len(places) <= measuring.MOST_CANDIDATES
    assert set(places) <= set(advice.decision.tied)
    assert advice.decision.chosen in places
    suite = measuring.suite_of(advice, places, advice.sample, tmp_path)
    cases = expand(suite.suite)
    assert [case.axes for case in cases] == [advice.rows[at].candidate.settings for at in places]
    assert {case.engine.kv_memory for case in cases if case.engine} == {1 << 20}
    assert suite.suite.measure.threads == 1
    lines = Path(str(suite.suite.workload.trace)).read_text().split()
    assert lines[1:] == [f"{a},{b}" for a, b in zip(advice.sample.inputs, advice.sample.outputs, strict=True)]


def test_the_decision_is_made_on_what_was_measured(
    advice: Advice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_suite(suite: LoadedSuite, *, out: Path, repetitions: int) -> Run:
        return planted_run(out, suite.text, repetitions=repetitions, noise=0.02)

    monkeypatch.setattr(measuring, "run_suite", run_suite)
    found = measuring.measure_and_decide(advice, tmp_path, 2)
    assert all(row.is_measured for row in found.rows)
    assert found.decision.chosen is not None
    rates = [row.candidate.tokens_per_s.value for row in found.rows if row.candidate.tokens_per_s]
    best = max(rates)
    assert rates[found.decision.chosen] >= 0.99 * best
    assert any("candidates were measured" in note for note in found.notes)


def test_another_device_is_not_measured_here() -> None:
    sample = LengthSample(np.full(4, 30), np.full(4, 8), "mine", "trace", 4)
    question = Question(sample=sample, model="tiny-llama", gpu="l4", overrides=("block_size=16,64", "max_sequences=4"))
    with pytest.raises(CannotRunError, match="the device at hand"):
        measuring.measure_and_decide(advise(question), Path("nowhere"), 2)
