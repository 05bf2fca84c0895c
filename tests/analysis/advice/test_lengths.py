"""Length distributions from every source, and samples of them."""

from __future__ import annotations

import gzip
import math
from collections import Counter
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.analysis.advice.lengths import ONE_LENGTH, LengthSample
from kvbench.analysis.advice.rule_of_thumb import rule_of_thumb
from kvbench.analysis.advice.sources import from_histogram, from_run, from_sides, from_trace
from kvbench.errors import UsageError
from kvbench.store.run import open_run
from tests.store.samples import run_folder
from tests.workload.helpers import FIXTURES
from tests.workload.helpers import from_trace as workload_of


def _sample(inputs: list[int], outputs: list[int]) -> LengthSample:
    return LengthSample(np.array(inputs), np.array(outputs), "lengths", "trace", len(inputs))


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _pairs(sample: LengthSample) -> list[tuple[int, int]]:
    return list(zip(sample.inputs.tolist(), sample.outputs.tolist(), strict=True))


@pytest.mark.parametrize("path", sorted(p.name for p in FIXTURES.iterdir() if p.name != "own.jsonl"))
def test_a_trace_gives_the_lengths_and_arrivals_of_its_workload(path: str) -> None:
    kind = "all-at-once" if path == "vidur.csv" else "recorded"
    workload = workload_of(FIXTURES / path, arrival={"kind": kind})
    found = from_trace(FIXTURES / path)
    assert _pairs(found) == [(r.input_tokens, r.output_tokens) for r in workload.requests]
    arrivals = None if found.arrivals_s is None else found.arrivals_s.tolist()
    assert arrivals == (None if path == "vidur.csv" else [r.arrival_s for r in workload.requests])
    assert (found.digest, found.requests_total) == (workload.report.sha256, len(workload.requests))
    dropped = [f"{count:,} rows were dropped: {reason}" for reason, count in workload.report.dropped.items()]
    assert [note for note in found.notes if "dropped" in note] == dropped


def test_columns_and_rows_of_one_trace_are_one_sample(tmp_path: Path) -> None:
    text = (FIXTURES / "azure2023.csv").read_text()
    quoted = _write(tmp_path / "azure2023.csv", text.replace("ContextTokens", '"ContextTokens"'))
    fast, slow = from_trace(FIXTURES / "azure2023.csv"), from_trace(quoted)
    assert (_pairs(fast), fast.notes) == (_pairs(slow), slow.notes)
    assert fast.arrivals_s is not None
    assert slow.arrivals_s is not None
    assert fast.arrivals_s.tolist() == slow.arrivals_s.tolist()


def test_outputs_that_a_trace_does_not_record_must_be_said(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.jsonl", '{"input_tokens": 5}\n{"input_tokens": 6, "output_tokens": 3}\n')
    with pytest.raises(UsageError, match="1 of 2 requests do not say how long their output is"):
        from_trace(path)
    found = from_trace(path, outputs="7")
    assert _pairs(found) == [(5, 7), (6, 3)]
    assert found.notes == ("1 outputs were drawn from 7, for the trace does not record them",)


@pytest.mark.parametrize(("text", "said"), [("", "is empty"), ("num_prefill_tokens,num_decode_tokens\n", "no usable")])
def test_an_empty_trace_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        from_trace(_write(tmp_path / "t.csv", text))
    assert raised.value.hint


def test_one_length_is_taken_and_said_to_be_no_distribution(tmp_path: Path) -> None:
    row = "num_prefill_tokens,num_decode_tokens\n30,4\n"
    assert from_trace(_write(tmp_path / "t.csv", row)).notes == (ONE_LENGTH,)
    assert from_trace(_write(tmp_path / "t.csv", row + "30,4\n")).notes == (ONE_LENGTH,)
    assert from_trace(_write(tmp_path / "t.csv", row + "31,4\n")).notes == ()
    assert ONE_LENGTH in from_sides("8k", "100").notes


def test_lengths_beyond_a_context_are_counted_left_out_and_noted() -> None:
    sample = _sample([100, 5000, 90, 7000], [28, 1, 39, 1])
    assert sample.beyond(128).requests == 3
    kept = sample.fitting(129)
    assert _pairs(kept) == [(100, 28), (90, 39)]
    assert kept.requests_total == 2
    assert kept.notes == (
        "2 of 4 requests (50.00%) are longer than 129 tokens (the longest has 7,001): left out, as an engine would "
        "reject them",
    )
    assert sample.fitting(7001) is sample
    with pytest.raises(UsageError, match="all 4 requests are longer than 100 tokens") as raised:
        sample.fitting(100)
    assert "longer context" in (raised.value.hint or "")


@pytest.mark.parametrize("bad", [([0, 4], [1, 1]), ([3, 4], [1, -1]), ([], []), ([1, 2], [1])])
def test_lengths_that_are_none_are_refused(bad: tuple[list[int], list[int]]) -> None:
    with pytest.raises(UsageError) as raised:
        LengthSample(np.array(bad[0], dtype=np.int64), np.array(bad[1], dtype=np.int64), "bad", "trace", 2)
    assert raised.value.hint


def test_a_lognormal_has_its_quantiles_on_both_sides_and_no_correlation() -> None:
    found = from_sides("lognormal(1000,4000)", "lognormal(200,500)")
    for values, median, p95 in ((found.inputs, 1000, 4000), (found.outputs, 200, 500)):
        sigma = math.log(p95 / median) / NormalDist().inv_cdf(0.95)
        for q in (0.05, 0.5, 0.9, 0.95, 0.99):
            expected = median * math.exp(sigma * NormalDist().inv_cdf(q))
            assert np.quantile(values, q) == pytest.approx(expected, rel=0.004, abs=1)
        assert values.mean() == pytest.approx(median * math.exp(sigma**2 / 2), rel=0.01)
    assert abs(np.corrcoef(np.argsort(np.argsort(found.inputs)), np.argsort(np.argsort(found.outputs)))[0, 1]) < 0.001
    assert found.notes == ("prompts and outputs are taken as independent",)


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        ("lognormal(4000,1000)", "10", "below the median"),
        ("lognormal(nan,10)", "10", "not a number of tokens"),
        ("0", "10", "outside 1"),
        ("-5", "10", "not a number of tokens"),
        ("1k,2k", "10", "names 2 lengths"),
        ("10 tokens", "10", "not a number of tokens"),
        ("lognormal(1,1000000000)", "10", "more than any model takes"),
        ("", "10", "no lengths given"),
        ("10", None, "nothing how long outputs are"),
        ("no/such.csv", "10", "there is no trace"),
    ],
)
def test_sides_that_cannot_be_meant_are_refused(inputs: str, outputs: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        from_sides(inputs, outputs)
    assert raised.value.hint


def test_counted_lengths_are_repeated_exactly_as_often_as_counted(tmp_path: Path) -> None:
    counts = {5: 3, 100: 0, 17: 12_000, 64: 1}
    path = _write(tmp_path / "h.csv", "length,count\n" + "".join(f"{k},{v}\n" for k, v in counts.items()))
    found = from_histogram(path, "32")
    assert Counter(found.inputs.tolist()) == {k: v for k, v in counts.items() if v}
    assert set(found.outputs.tolist()) == {32}
    assert found.requests_total == 12_004


def test_two_counted_sides_keep_their_own_counts(tmp_path: Path) -> None:
    _write(tmp_path / "in.csv", "length,count\n10,20000\n20,5000\n")
    _write(tmp_path / "out.csv", "length,requests\n1,12500\n2,12500\n")
    found = from_histogram(tmp_path / "in.csv", tmp_path / "out.csv")
    assert Counter(found.inputs.tolist()) == {10: 20_000, 20: 5000}
    assert Counter(found.outputs.tolist()) == {1: 12_500, 2: 12_500}
    joint = Counter(_pairs(found))
    assert joint[10, 1] == pytest.approx(10_000, rel=0.001)
    assert joint[20, 2] == pytest.approx(2500, rel=0.002)


def test_pairs_keep_the_joint_counts_and_need_no_independence(tmp_path: Path) -> None:
    _write(tmp_path / "p.csv", "input_tokens,output_tokens,count\n10,1,3\n2000,500,7\n")
    found = from_histogram(tmp_path / "p.csv")
    assert Counter(_pairs(found)) == {(10, 1): 3, (2000, 500): 7}
    assert (found.requests_total, found.notes) == (10, ())
    with pytest.raises(UsageError, match="both sides already"):
        from_histogram(tmp_path / "p.csv", "32")


def test_bins_are_spread_evenly_and_half_open_unless_they_touch(tmp_path: Path) -> None:
    half_open = from_histogram(_write(tmp_path / "a.csv", "low,high,count\n1,9,80\n9,11,20\n"), "1")
    assert Counter(half_open.inputs.tolist()) == dict.fromkeys(range(1, 11), 1000)
    closed = from_histogram(_write(tmp_path / "b.csv", "low,high,count\n1,8,80\n9,10,20\n"), "1")
    assert Counter(closed.inputs.tolist()) == Counter(half_open.inputs.tolist())
    assert any("include their upper end" in note for note in closed.notes)
    assert (len(closed), closed.requests_total) == (10_000, 100)
    zero = from_histogram(_write(tmp_path / "c.csv", "low,high,count\n0,5,40\n"), "1")
    assert Counter(zero.inputs.tolist()) == dict.fromkeys(range(1, 5), 2500)
    assert any("from 1 on" in note for note in zero.notes)


def test_shares_and_large_counts_keep_their_proportions(tmp_path: Path) -> None:
    shares = from_histogram(_write(tmp_path / "s.csv", "length,count\n8,0.25\n16,0.75\n"), "1")
    assert Counter(shares.inputs.tolist()) == {8: 2500, 16: 7500}
    many = from_histogram(_write(tmp_path / "m.csv", f"length,count\n8,{10**9}\n16,{3 * 10**9}\n"), "1")
    assert np.count_nonzero(many.inputs == 8) * 4 == len(many) <= 1_000_000
    assert many.requests_total == 4 * 10**9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("length,count\n", "no row under its header"),
        ("length,count\n8,nan\n", "count is 'nan'"),
        ("length,count\n8,-1\n", "not a number of requests or a share"),
        ("length,count\n8,inf\n", "not a number of requests or a share"),
        ("length,count\n8,1e300\n", "not a number of requests or a share"),
        ("length,count\n8,12%\n", "count is '12%', not a number"),
        ("length,count\n8k,5\n", "'8k', not a token count"),
        ("length,count\n0,5\n", "at least one token"),
        ("length,count\n-3,5\n", "at least one token"),
        ("length,count\n1.5,5\n", "not a token count"),
        ("length,count\n8,0\n", "counts no request"),
        ("length\n8\n", "no histogram has the columns 'length'"),
        ("low,high,count\n8,8,1\n", "holds no length"),
        ("low,high,count\n9,4,1\n", "holds no length"),
        ("low,high,count\n1,10,1\n5,20,1\n", "overlap"),
        ("low,high,count\n0,1,1\n", "the length 0 only"),
        ("length,count\n8,1,2\n", "3 fields where the header has 2"),
    ],
)
def test_a_bad_histogram_is_refused_with_the_way_out(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        from_histogram(_write(tmp_path / "h.csv", text), "1")
    assert raised.value.hint


def test_an_unknown_format_and_a_limit_that_leaves_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="no trace format is called 'foo'"):
        from_trace(FIXTURES / "vidur.csv", "foo")
    with pytest.raises(UsageError, match="leaves none"):
        from_trace(FIXTURES / "vidur.csv", limit=0)


def test_shares_as_small_as_floats_can_be_are_shares(tmp_path: Path) -> None:
    found = from_histogram(_write(tmp_path / "h.csv", "length,count\n8,1e-310\n9,3e-310\n"), "1")
    assert Counter(found.inputs.tolist()) == {8: 2500, 9: 7500}


def test_a_histogram_may_be_gzip(tmp_path: Path) -> None:
    (tmp_path / "h.csv.gz").write_bytes(gzip.compress(b"length,count\n8,2\n9,1\n"))
    assert Counter(from_histogram(tmp_path / "h.csv.gz", "1").inputs.tolist()) == {8: 2, 9: 1}


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_run_gives_the_lengths_of_its_workload(tmp_path: Path, is_sealed: bool) -> None:
    run = open_run(run_folder(tmp_path, is_sealed=is_sealed))
    found = from_run(run)
    assert (_pairs(found), found.source) == ([(10, 4), (10, 4)], "run")
    assert found.arrivals_s is not None
    assert found.arrivals_s.tolist() == [0.0, 0.5]
    assert found.shared is not None
    assert found.shared.tokens.tolist() == [0, 6]
    with pytest.raises(UsageError, match="no one workload begins with 'x'"):
        from_run(run, "x")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_sample_takes_one_row_of_every_stratum(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60))
    n, seed = data.draw(st.integers(1, 80)), data.draw(st.integers(0, 2**32))
    sample = _sample([a for a, _ in rows], [b for _, b in rows])
    found = sample.sample(n, seed)
    assert len(found) == n
    assert _pairs(found) == _pairs(sample.sample(n, seed))
    assert not Counter(_pairs(found)).keys() - Counter(rows).keys()
    if n <= len(rows):
        assert not Counter(_pairs(found)) - Counter(rows)
    if n == len(rows):
        assert Counter(_pairs(found)) == Counter(rows)
    totals = sorted(a + b for a, b in rows)
    for place, total in enumerate(np.sort(found.totals).tolist()):
        low, high = place * len(rows) // n, -(-(place + 1) * len(rows) // n) - 1
        assert totals[low] <= total <= totals[high]


def test_a_small_sample_keeps_means_and_the_joint_distribution() -> None:
    rng = np.random.default_rng(3)
    inputs = np.rint(np.exp(rng.normal(6, 1, 50_000))).astype(np.int64) + 1
    whole = LengthSample(inputs, 1 + inputs // 10 + rng.integers(0, 20, 50_000), "x", "trace", 50_000)
    samples = [whole.sample(200, seed) for seed in range(30)]
    errors = [found.totals.mean() / whole.totals.mean() - 1 for found in samples]
    naive = [rng.choice(whole.totals, 200).mean() / whole.totals.mean() - 1 for _ in range(30)]
    assert np.std(errors) < np.std(naive) / 3
    ratio = np.mean([(found.outputs / found.inputs).mean() for found in samples])
    assert ratio == pytest.approx((whole.outputs / whole.inputs).mean(), rel=0.03)


def test_a_sample_of_a_trace_stays_in_order_of_arrival_and_forgets_what_was_shared() -> None:
    whole = from_trace(FIXTURES / "mooncake.jsonl")
    found = whole.sample(len(whole), 5)
    assert found.arrivals_s is not None
    assert (np.diff(found.arrivals_s) >= 0).all()
    assert _pairs(found) == _pairs(whole)
    assert (whole.shared is None, found.shared) == (False, None)
    with pytest.raises(UsageError, match="empty"):
        whole.sample(0, 1)


@pytest.mark.parametrize(("tokens", "block"), [(6, 32), (512, 32), (513, 64), (2048, 64), (2049, 128), (100_000, 128)])
def test_the_rule_of_thumb_looks_at_the_median_of_the_whole_length(tokens: int, block: int) -> None:
    assert rule_of_thumb(_sample([1, 1, tokens - 5, 200_000, 200_000], [1, 1, 5, 1, 1])) == block
