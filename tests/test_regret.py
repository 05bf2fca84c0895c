"""The regret benchmark's parts: the lengths that it writes and the suites that it measures."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from kvbench.spec.cases import expand
from kvbench.spec.load import load_suite
from kvbench.workload.importers.read import read_trace
from tests.shared_data import shared_data
from tests.sweep.synthetic_run import BLOCK_SIZES_ONLY, planted_run

PLANTED = (
    BLOCK_SIZES_ONLY.replace("{ kind", "{{ kind")
    .replace(" }\n", " }}\n")
    .replace('"planted"', '"regret-{name}"')
    .replace("median = 40", "median = {median}")
    .replace("[4, 16, 64]", "[8, 32, 256]")
    .replace("requests = 24", "requests = 14")
)
BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kept fits and tuned kernels of whoever runs the tests stay out of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVBENCH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


@pytest.fixture
def workloads(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return benchmark("regret_workloads", monkeypatch)


def lengths_of(path: Path) -> np.ndarray:
    return np.array([(row.input_tokens, row.output_tokens) for row in read_trace(path, "vidur").rows])


def test_half_of_the_distributions_are_parametric_and_half_recorded(workloads):
    drawn = [of for of in workloads.DISTRIBUTIONS if of.draw is not None]
    recorded = [of for of in workloads.DISTRIBUTIONS if of.trace]
    assert (len(drawn), len(recorded)) == (6, 6)
    assert len({of.name for of in workloads.DISTRIBUTIONS}) == 12


def test_parametric_lengths_are_the_same_every_time_within_the_limits_and_cost_about_what_is_asked(workloads, tmp_path):
    for of in (of for of in workloads.DISTRIBUTIONS if of.draw is not None):
        counts = [workloads.write_lengths(tmp_path / name, of, tmp_path, 4.0) for name in ("a.csv", "b.csv")]
        first, second = lengths_of(tmp_path / "a.csv"), lengths_of(tmp_path / "b.csv")
        assert counts == [len(first), len(second)]
        assert (first == second).all()
        assert first.min() >= 1
        assert first[:, 0].max() <= workloads.MAX_INPUT
        assert first[:, 1].max() <= workloads.MAX_OUTPUT
        seconds = (first[:, 0] * workloads.PREFILL_S + first[:, 1] * workloads.DECODE_S).sum()
        assert 4.0 <= seconds < 4.3


def test_a_sample_of_a_trace_is_its_rows_from_the_named_one_on_scaled_up_to_whole_tokens(workloads, tmp_path):
    data = shared_data("traces")
    of = next(of for of in workloads.DISTRIBUTIONS if of.name == "azure-8")
    count = workloads.write_lengths(tmp_path / "a.csv", of, data, 1.0)
    rows = read_trace(data / of.trace, limit=of.first + count).rows[of.first :]
    wanted = [(min(-(-r.input_tokens // 8), 480), min(max(-(-r.output_tokens // 8), 2), 128)) for r in rows]
    assert lengths_of(tmp_path / "a.csv").tolist() == [list(pair) for pair in wanted]


def test_every_distribution_is_an_ordinary_suite_of_seven_block_sizes_whose_longest_request_fits(
    workloads, monkeypatch, tmp_path
):
    regret = benchmark("regret", monkeypatch)
    of = workloads.DISTRIBUTIONS[0]
    for name in ("traces", "suites", "runs"):
        (tmp_path / name).mkdir()
    regret._prepare(tmp_path, of, tmp_path, 1.0, 0.5)
    cases = expand(load_suite(tmp_path / "suites" / f"{of.name}.toml").suite)
    assert [case.engine.block_size for case in cases] == list(regret.BLOCK_SIZES)
    tokens = cases[0].engine.kv_memory // 2048
    assert tokens // 256 * 256 >= workloads.MAX_INPUT + workloads.MAX_OUTPUT


def test_lengths_that_are_there_stay(workloads, monkeypatch, tmp_path):
    regret = benchmark("regret", monkeypatch)
    for name in ("traces", "suites"):
        (tmp_path / name).mkdir()
    trace = tmp_path / "traces" / "chat.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n5,7\n")
    regret._prepare(tmp_path, workloads.DISTRIBUTIONS[0], tmp_path, 1.0, 0.5)
    assert lengths_of(trace).tolist() == [[5, 7]]


def test_judging_compares_each_pick_with_the_best_by_the_runs_of_the_others(workloads, monkeypatch, tmp_path, capsys):
    """On runs without noise the pick is as good as the best."""
    regret = benchmark("regret", monkeypatch)
    (tmp_path / "traces").mkdir()
    monkeypatch.setattr(regret, "BLOCK_SIZES", (8, 32, 256))
    monkeypatch.setattr(regret, "DEFAULT", 32)
    for name, median in (("chat", 30), ("constant", 60)):
        planted = PLANTED.format(name=name, median=median)
        (tmp_path / "runs" / name).mkdir(parents=True)
        run = planted_run(tmp_path / "runs" / name, planted, repetitions=2)
        rows = zip(run.workload["input_tokens"], run.workload["output_tokens"], strict=True)
        lines = "".join(f"{a},{b}\n" for a, b in rows)
        (tmp_path / "traces" / f"{name}.csv").write_text("num_prefill_tokens,num_decode_tokens\n" + lines)
    found = regret.judge(tmp_path, ["chat", "constant", "uniform"])
    assert [one.name for one in found] == ["chat", "constant"]
    for one in found:
        rates = {size: values[0] for size, values in regret.rounds_of(tmp_path, one.name).items()}
        assert one.best == max(rates, key=rates.__getitem__)
        assert one.loses == pytest.approx(1 - rates[one.pick] / rates[one.best])
        assert one.loses <= 0.01
        assert one.default_loses == pytest.approx(1 - rates[32] / rates[one.best])
    assert regret.show(found, True) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["within_2_percent"] == 2


def test_a_tie_counts_as_best_only_where_an_interval_is_known(workloads, monkeypatch):
    regret = benchmark("regret", monkeypatch)
    loses, half = regret._lost({0: 100.0, 1: 102.0, 2: 98.0}, {0: 103.0, 1: 103.0, 2: 103.0})
    gaps = np.log([103 / 100, 103 / 102, 103 / 98])
    low, high = stats.t.interval(0.95, 2, gaps.mean(), stats.sem(gaps))
    assert loses == pytest.approx(1 - np.exp(-gaps.mean()))
    assert half == pytest.approx((high - low) / 2)
    assert regret._lost({4: 100.0}, {4: 110.0, 5: 99.0}) == (pytest.approx(1 / 11), None)
