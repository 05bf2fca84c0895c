"""The regret benchmark's parts: the lengths that it writes and the suites that it measures."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvbench.spec.cases import expand
from kvbench.spec.load import load_suite
from kvbench.workload.importers.read import read_trace
from tests.shared_data import shared_data

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


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
    regret._prepare(tmp_path, of, tmp_path, 1.0)
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
    regret._prepare(tmp_path, workloads.DISTRIBUTIONS[0], tmp_path, 1.0)
    assert lengths_of(trace).tolist() == [[5, 7]]
