"""Recorded series in every form that they come in, and the nights made of them."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from kvbench.analysis.gate.recordings import read_recordings
from kvbench.analysis.gate.series import Recording, Series, halves, neighbours, pairs
from kvbench.errors import DataError, UsageError
from tests.shared_data import shared_data

_HEAD = "toolchain: {}\nsuite: nightly\ngoos: linux\n"
_CSV = "session,case,metric,worse,block,side,first,value\n"


def _go(toolchain: str, values: dict[str, list[str]]) -> str:
    return _HEAD.format(toolchain) + "".join(f"Benchmark{name} {line}\n" for name, ls in values.items() for line in ls)


def _night(folder, date: str, base: dict, tip: dict, toolchains=("Base", "Tip")) -> None:
    for label, toolchain, values in zip(
        ("Go1.17-opt", f"24239120{date[7]}f-opt"), toolchains, (base, tip), strict=True
    ):
        (folder / f"{label}.{date}.txt.gz").write_bytes(gzip.compress(_go(toolchain, values).encode()))


def _json(**facts: object) -> bytes:
    series = {"session": "s", "case": "c", **facts}
    return json.dumps({"format": "kvbench-gate-series", "version": 1, "series": [series]}).encode()


def test_files_of_a_night_are_paired_by_the_date_in_the_name_and_not_by_digits_of_a_commit(tmp_path):
    for date in ("20220101T213211", "20220102T213211"):
        _night(tmp_path, date, {"A-12": ["100 7 ns/op"] * 6}, {"A-12": ["100 8 ns/op"] * 6}, ("x", "x"))
    series = read_recordings([tmp_path])[0].series
    assert [(one.session, one.case, set(one.baseline), set(one.candidate)) for one in series] == [
        ("20220101T213211", "BenchmarkA-12", {7.0}, {8.0}),
        ("20220102T213211", "BenchmarkA-12", {7.0}, {8.0}),
    ]


def test_the_base_is_what_says_so(tmp_path):
    _night(tmp_path, "20220101T213211", {"A": ["1 7 ns/op"]}, {"A": ["1 8 ns/op"]}, ("Tip", "Base"))
    (one,) = read_recordings([tmp_path])[0].series
    assert (one.baseline, one.candidate) == ([8.0], [7.0])


def test_a_benchmark_on_one_side_only_units_and_values_that_are_no_numbers(tmp_path):
    lines = {
        "A": ["10 5.5 ns/op 100 MB/s 0 B/op", "10 oops ns/op 90 MB/s 0 B/op"],
        "Gone": ["10 1 ns/op"],
        "Bad": ["x"],
    }
    _night(tmp_path, "20220101", lines, {"A": ["10 6 ns/op"]})
    usual = {one.case: one for one in read_recordings([tmp_path])[0].series}
    assert set(usual) == {"BenchmarkA", "BenchmarkGone"}
    assert usual["BenchmarkA"].baseline[0] == 5.5
    assert np.isnan(usual["BenchmarkA"].baseline[1])
    assert usual["BenchmarkGone"].candidate == []
    (rate,) = read_recordings([tmp_path], ["MB/s"])[0].series
    assert (rate.metric, rate.worse, rate.baseline) == ("MB/s", "lower", [100.0, 90.0])


def test_benchmarks_of_one_name_in_two_packages_stay_apart(tmp_path):
    text = "pkg: a\nBenchmarkX 1 1 ns/op\npkg: b\nBenchmarkX 1 2 ns/op\n"
    (tmp_path / "base.txt").write_text(text)
    assert [one.case for one in read_recordings([tmp_path])[0].series] == ["a:BenchmarkX", "b:BenchmarkX"]


def test_csv_rows_come_in_any_order_and_a_missing_value_costs_its_block(tmp_path):
    rows = [
        f"s,c,decode_s,higher,{block},{side},{side if block % 2 else 'baseline'},{value}"
        for block in range(7)
        for side, value in (("baseline", 1 + block), ("candidate", "" if block == 3 else 10 + block))
    ]
    (tmp_path / "r.csv").write_text(_CSV + "\n".join(reversed(rows)))
    (night,) = pairs(read_recordings([tmp_path / "r.csv"])[0])
    (case,) = night.cases
    assert case.baseline.tolist() == [1, 2, 3, 5, 6, 7]
    assert case.candidate.tolist() == [10, 11, 12, 14, 15, 16]
    assert case.order.size == 6


def test_json_and_csv_of_the_same_series_are_read_alike(tmp_path):
    series = {"session": "s", "case": "c", "metric": "m", "worse": "lower", "baseline": [1, 2], "candidate": [3, 4]}
    data = {"format": "kvbench-gate-series", "version": 1, "series": [series]}
    (tmp_path / "r.json").write_text(json.dumps(data))
    rows = [
        "s,c,m,lower,,baseline,,1",
        "s,c,m,lower,,baseline,,2",
        "s,c,m,lower,,candidate,,3",
        "s,c,m,lower,,candidate,,4",
    ]
    (tmp_path / "r.csv").write_text(_CSV + "\n".join(rows))
    assert read_recordings([tmp_path / "r.json"]) == read_recordings([tmp_path / "r.csv"])


@pytest.mark.parametrize(
    ("name", "content", "error", "said"),
    [
        ("r.csv", b"a,b\n1,2\n", UsageError, "no column session, case, side, value"),
        ("r.csv", _CSV.encode() + b"s,c,m,higher,0,left,,1\n", UsageError, "line 2"),
        ("r.csv", _CSV.encode() + b"s,c,m,sideways,0,baseline,,1\n", UsageError, "sideways"),
        ("r.csv", _CSV.encode() + b"s,c,m,higher,0,baseline,,1\ns,c,m,higher,0,baseline,,1\n", UsageError, "twice"),
        ("r.csv", _CSV.encode() + b"s,c,m,higher,x,baseline,,1\n", UsageError, "whole number"),
        ("r.csv", _CSV.encode(), DataError, "no series"),
        ("r.json", b"{", UsageError, "not JSON"),
        ("r.json", b"[]", UsageError, "no recorded series"),
        ("r.json", b'{"format": "kvbench-gate-series", "version": 2}', UsageError, "newer"),
        (
            "r.json",
            b'{"format": "kvbench-gate-series", "version": 1, "series": [{}]}',
            UsageError,
            "series 1: no session",
        ),
        ("r.json", b'{"format": "kvbench-gate-series", "version": 1, "series": 3}', UsageError, "no list of series"),
        ("r.json", _json(baseline="abc"), UsageError, "series 1: baseline is no list"),
        ("r.json", _json(order=["x"]), UsageError, "order is not 1 or -1"),
        ("r.json", _json(baseline=[1, 2], order=[1]), UsageError, "for each block"),
        ("r.txt.gz", b"\x1f\x8bnonsense", UsageError, "broken gzip"),
        ("r.txt.gz", gzip.compress(b"BenchmarkA 1 1 ns/op\n", mtime=0)[:-9], UsageError, "broken gzip"),
        ("r.txt", b"\xff\xfe\x00", UsageError, "UTF-8"),
        ("r.txt", b"", UsageError, "no column"),
    ],
)
def test_what_is_no_recording_is_said_with_its_path(tmp_path, name, content, error, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=said) as caught:
        read_recordings([tmp_path / name])
    assert name in caught.value.message


def test_a_path_that_is_not_there_and_an_empty_folder_are_usage_errors(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(UsageError):
            read_recordings([path])


def test_halves_use_every_run_once_and_neighbours_in_time_make_a_block():
    values = [float(at + 1) for at in range(25)]
    recording = Recording((Series("night", "c", "ns/op", "higher", values, values[:11]),), same_code=False)
    base, tip = halves(recording, seed=0)
    (case,) = base.cases
    assert sorted([*case.baseline, *case.candidate]) == values[:24]
    assert {abs(a - b) for a, b in zip(case.baseline, case.candidate, strict=True)} == {1.0}
    assert ((case.order > 0) == (case.baseline < case.candidate)).all()
    assert tip.cases[0].baseline.size == 5
    assert halves(recording, seed=0)[0].cases[0].order.tolist() == case.order.tolist()


def test_series_that_are_too_short_or_zero_are_counted_as_dropped():
    short = Series("n", "short", "m", "higher", [1.0] * 9, [])
    zero = Series("n", "zero", "B/op", "higher", [0.0] * 25, [])
    nan = Series("n", "nan", "m", "higher", [float("nan")] * 25, [])
    (night,) = halves(Recording((short, zero, nan), same_code=False), seed=0)
    assert (night.cases, night.dropped) == ((), 3)


def test_neighbours_hold_the_baselines_of_two_nights_against_each_other():
    nights = [Series(name, "c", "m", "higher", [float(at)] * 6, [99.0] * 6) for at, name in enumerate("abc", start=1)]
    found = neighbours(Recording(tuple(nights), same_code=False))
    assert [(night.cases[0].baseline[0], night.cases[0].candidate[0]) for night in found] == [(1.0, 2.0), (2.0, 3.0)]


def test_the_recorded_nights_of_the_go_project_are_read_whole():
    recording = read_recordings([shared_data("gate/nightly_base_vs_base")])[0]
    assert len({one.session for one in recording.series}) == 14
    assert all(one.baseline and one.candidate for one in recording.series)
    assert len(recording.series) == 14 * 101


def test_parquet_says_what_the_same_csv_says(tmp_path):
    csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    text = (
        _CSV + "s,c,m,higher,0,baseline,baseline,1.5\ns,c,m,higher,0,candidate,baseline,\ns,c,m,lower,1,baseline,,7\n"
    )
    text += "s,c,m,higher,1,candidate,candidate,2e-05\n"
    (tmp_path / "a.csv").write_text(text)
    parquet.write_table(csv.read_csv(tmp_path / "a.csv"), tmp_path / "a.parquet")
    ours, theirs = (read_recordings([tmp_path / name])[0] for name in ("a.parquet", "a.csv"))
    assert repr(ours) == repr(theirs)
    assert ours.series[0].baseline == [1.5, 7.0]


@pytest.mark.parametrize("content", [b"PAR1 and no table", b"PAR1" + bytes(40) + b"PAR1"])
def test_a_broken_parquet_is_refused_by_name(tmp_path, content):
    (tmp_path / "broken.parquet").write_bytes(content)
    with pytest.raises(UsageError, match=r"broken\.parquet is no readable Parquet"):
        read_recordings([tmp_path / "broken.parquet"])
