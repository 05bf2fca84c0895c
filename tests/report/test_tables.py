from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvbench.errors import DataError, UsageError
from kvbench.report.cells import metric_cell, metric_label
from kvbench.report.tables import render_run
from kvbench.store.case_columns import METRICS
from kvbench.store.parts import Sample
from kvbench.store.run import Run, open_run
from kvbench.store.run_folder import RunFolder
from kvbench.tabulate import FORMATS
from tests.store.samples import case_id, plan, run_folder, sample

EVIL = "[red]x[/red] <script>alert(1)</script> \x1b[31m\x9b2J | `a` **b** \u202e\r\n# c"


def shown(run: Run, format: str = "table", width: int = 400, **options: Any) -> str:
    out = io.StringIO()
    render_run(run, format, Console(file=out, width=width, highlight=False), **options)
    return out.getvalue()


def run_of(tmp_path: Path, rows: list[dict[str, Any]], **plan_changes: Any) -> Run:
    """One case per row, one sample each."""
    with RunFolder.create(tmp_path, plan(len(rows), 1, **plan_changes)) as folder:
        for number, row in enumerate(rows):
            folder.add(sample(number, 0, **row))
        return open_run(folder.path)


def evil_run(tmp_path: Path) -> Run:
    wanted = plan(2, 1)
    wanted["suite"]["title"] = EVIL
    for case in wanted["cases"]:
        case["axes"]["trace"] = EVIL + case["case_id"]
    with RunFolder.create(tmp_path, wanted) as folder:
        folder.add(sample(0, trace=EVIL, device_name=EVIL, warnings=[{"name": EVIL, "numbers": {EVIL: EVIL}}]))
        folder.add(sample(1, status="error", error=EVIL, device_name=EVIL))
        return open_run(folder.path)


@pytest.mark.parametrize("format", FORMATS)
def test_m68_text_from_outside_is_shown_as_text(tmp_path: Path, format: str) -> None:
    """Suite title, error, axis value, device and warning with markup, HTML and terminal escapes."""
    text = shown(evil_run(tmp_path), format)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "alert(1)" in text
    if format == "md":
        assert "<script>" not in text
        assert "[red]" not in text.replace("\\[red\\]", "")
    if format == "table":
        assert "[red]x[/red]" in text


def test_axes_come_first_then_status_then_headline_metrics_with_units(tmp_path: Path) -> None:
    run = run_of(tmp_path, [{"ttft_p50_s": 0.0123, "tpot_p50_s": 1e-4}, {"ttft_p50_s": 2.0, "tpot_p50_s": None}])
    lines = shown(run).splitlines()
    head = next(line for line in lines if "block_size" in line)
    assert head.split()[:3] == ["block_size", "status", "samples"]
    assert head.index("output tokens/s") < head.index("ttft p50") < head.index("tpot p50")
    first, second = (line for line in lines if re.match(r"\s*(8|16) ", line))
    assert "12.3 ms" in first
    assert "100 µs" in first
    assert "–" in second


def test_what_is_the_same_everywhere_is_said_once_above(tmp_path: Path) -> None:
    text = shown(run_of(tmp_path, [{"threads": 2, "preemptions": 0, "slo_tpot_s": 0.1}] * 2))
    assert text.count("tiny") == 1
    assert "model tiny" in text
    assert "preemptions 0" in text.splitlines()[1]
    assert "SLO TPOT 100 ms" in text


def test_a_count_that_is_the_same_in_every_case_is_no_column_and_a_zero_of_what_is_off_is_not_said(
    tmp_path: Path,
) -> None:
    same = {"kv_capacity_tokens": 512, "swap_out_bytes": 0, "prefix_lookup_s": 0.25, "prefix_hit_rate": None}
    run = run_of(tmp_path, [{**same, "host_promotions": n, "output_tokens_per_s": 10.0} for n in (0, 3)])
    text = shown(run)
    head = next(line for line in text.splitlines() if "status" in line)
    assert "kv capacity tokens 512" in text.splitlines()[1]
    assert "kv capacity tokens" not in head
    assert "host promotions" in head
    assert "output tokens/s" in head
    assert "swap out" not in text
    assert "prefix lookup" not in text
    assert next(csv.DictReader(io.StringIO(shown(run, "csv"))))["kv_capacity_tokens"] == "512.0"


def test_what_of_the_held_slots_has_a_token(tmp_path: Path) -> None:
    """Of the pool 80 % held, 10 % tails and 30 % reserved: half of what is held is filled."""
    shares = {"kv_utilisation_mean": 0.8, "internal_share_mean": 0.1, "reserved_share_mean": 0.3}
    cases = json.loads(shown(run_of(tmp_path, [shares, {}]), "json"))["cases"]
    assert cases[0]["metrics"]["filled_share"]["median"] == pytest.approx(0.5)


def test_the_best_of_a_column_is_marked_in_every_tie_and_not_where_nothing_differs(tmp_path: Path) -> None:
    run = run_of(tmp_path, [{"ttft_p50_s": t, "tpot_p50_s": 0.5} for t in (0.1, 0.1, 0.2, 0.3)])
    text = shown(run, metrics=["ttft_p50_s", "tpot_p50_s"])
    assert text.count("100 ms *") == 2
    assert "500 ms *" not in text


def test_m38_the_front_is_marked_and_a_case_without_a_value_is_not_on_it(tmp_path: Path) -> None:
    """Throughput against p50 TTFT and TPOT; the third is dominated, the fourth lacks a value."""
    values = [(10.0, 1.0, 1.0), (20.0, 2.0, 1.0), (9.0, 1.0, 1.0), (99.0, None, 1.0)]
    rows = [dict(zip(("output_tokens_per_s", "ttft_p50_s", "tpot_p50_s"), v, strict=True)) for v in values]
    run = run_of(tmp_path, rows)
    cases = json.loads(shown(run, "json"))["cases"]
    assert [case["pareto"] for case in cases] == [True, True, False, False]
    assert sum("◆" in line for line in shown(run).splitlines() if re.match(r"\s*\d", line)) == 2


def test_failed_and_missing_cases_are_rows_too_and_their_errors_stand_below(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, plan(3, 2)) as folder:
        folder.add(sample(0, 0))
        folder.add(sample(0, 1, status="crash", error="exit -11"))
        folder.add(Sample(case_id(1), 0, "f", {"status": "oom", "error": "out of memory"}))
        text = shown(open_run(folder.path))
    assert "ok, crash" in text
    assert "1 of 2" in text
    assert "0 of 1" in text
    assert "not run" in text
    assert "error: exit -11 (block_size=8)" in text
    assert "error: out of memory (block_size=16)" in text


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_a_narrow_terminal_loses_columns_and_says_which(tmp_path: Path, width: int) -> None:
    row = {name: 0.5 for name, column in METRICS.items() if column.type == "float64"}
    run = run_of(tmp_path, [row, {**row, "ttft_p50_s": 0.25}])
    text = shown(run, width=width)
    if width >= 60:
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    heads = [metric_label(METRICS[n]) for n in ("output_tokens_per_s", "ttft_p50_s", "kv_utilisation_peak")]
    flat = " ".join(text.split())
    assert all(head in flat for head in heads)
    whole = shown(run, width=width, show_all=True)
    assert "left out" not in whole
    assert metric_label(METRICS["busy_share"]) in whole


def test_many_axes_are_shortened_to_those_that_tell_the_cases_apart(tmp_path: Path) -> None:
    """Two block sizes times three zipped groups of ten settings: two axes name a case, the others go first."""
    wanted = plan(6, 1)
    for n, case in enumerate(wanted["cases"]):
        case["axes"] = {f"setting_number_{i}": n % 3 for i in range(10)} | {"block_size": 8 + n // 3}
    with RunFolder.create(tmp_path, wanted) as folder:
        for n in range(6):
            folder.add(sample(n, 0, ttft_p50_s=0.1 * n))
        run = open_run(folder.path)
    head = next(line for line in shown(run, width=90).splitlines() if "status" in line)
    assert head.split()[:2] == ["setting_number_0", "block_size"]
    assert "ttft p50" in head
    assert "setting_number_9" not in head
    assert "setting_number_9" in shown(run, width=90)
    assert "setting_number_9" in next(line for line in shown(run, width=400).splitlines() if "status" in line)


def test_csv_and_json_keep_names_and_base_units(tmp_path: Path) -> None:
    run = run_of(tmp_path, [{"ttft_p50_s": 0.0123, "kv_capacity_tokens": 64}, {"ttft_p50_s": None}])
    first, second = csv.DictReader(io.StringIO(shown(run, "csv")))
    assert (first["block_size"], first["ttft_p50_s"], first["kv_capacity_tokens"]) == ("8", "0.0123", "64.0")
    assert second["ttft_p50_s"] == ""
    cases = json.loads(shown(run, "json"))["cases"]
    assert cases[0]["metrics"]["ttft_p50_s"] == {"median": 0.0123, "min": 0.0123, "max": 0.0123, "count": 1}
    assert cases[1]["metrics"]["ttft_p50_s"] is None


def test_samples_are_condensed_to_median_and_range(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, plan(1, 3)) as folder:
        for number, value in enumerate((10.0, 30.0, 20.0)):
            folder.add(sample(0, number, output_tokens_per_s=value))
        run = open_run(folder.path)
    assert json.loads(shown(run, "json"))["cases"][0]["metrics"]["output_tokens_per_s"] == {
        "median": 20.0, "min": 10.0, "max": 30.0, "count": 3,
    }  # fmt: skip
    assert "100.0%" in shown(run)


def test_kernel_cases_have_their_own_table(tmp_path: Path) -> None:
    wanted = plan(2, 1)
    wanted["cases"][1] |= {"kind": "kernel", "axes": {"context": 1024}}
    with RunFolder.create(tmp_path, wanted) as folder:
        folder.add(sample(0, 0))
        row = {"status": "ok", "kind": "kernel", "decode_s": 5e-5, "bytes_per_s": 4e9, "copy_bytes_per_s": 8e9}
        folder.add(Sample(case_id(1), 0, "f", row))
        run = open_run(folder.path)
    heads = [line for line in shown(run).splitlines() if "status" in line]
    assert len(heads) == 2
    assert "output tokens/s" in heads[0]
    assert "output tokens/s" not in heads[1]
    assert "50.0 µs" in shown(run)
    assert json.loads(shown(run, "json"))["cases"][1]["metrics"]["copy_share"] == {"median": 0.5}


def test_a_metric_that_is_none_is_a_usage_error_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ttft_p5_s") as caught:
        shown(open_run(run_folder(tmp_path)), metrics=["ttft_p5_s"])
    assert "ttft_p50_s" in str(caught.value.hint)


def test_a_run_without_a_finished_sample_is_bad_data(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, plan()) as folder, pytest.raises(DataError, match="no finished sample"):
        shown(open_run(folder.path))


def test_a_missing_value_is_a_dash_and_small_numbers_are_not_zero() -> None:
    assert metric_cell(None, METRICS["ttft_p50_s"]) == metric_cell(float("nan"), METRICS["wall_s"]) == "–"
    assert metric_cell(1.5e-5, METRICS["error_max_abs"]) == "1.50e-05"
    assert metric_cell(2048, METRICS["host_offload_bytes"]) == "2.00 KiB"
    assert metric_cell(0.123, METRICS["prefix_hit_rate"]) == "12.3%"


@pytest.mark.parametrize("format", FORMATS)
def test_what_importing_changed_is_noted_for_the_cases_it_concerns(tmp_path: Path, format: str) -> None:
    """Dropped rows and clipped lengths are never silent: they stand below the table of every run."""
    wanted = plan(2, 1)
    wanted["cases"][0]["workload_digest"] = "w1"
    wanted["cases"][1]["workload_digest"] = "w2"
    report = {"source": "chat.csv", "notes": ["3 rows were dropped: zero input tokens"]}
    wanted["workloads"] = {"w1": {"seed": 0, "report": report}, "w2": {"seed": 0, "report": {"notes": []}}}
    with RunFolder.create(tmp_path, wanted) as folder:
        for number in range(2):
            folder.add(sample(number, 0))
        run = open_run(folder.path)
    if format != "csv":
        expected = "note: chat.csv: 3 rows were dropped: zero input tokens (1 of 2 engine cases)"
        assert expected in shown(run, format).replace("\\", "")


def test_a_reader_that_goes_away_does_not_end_the_process_with_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rich's own way out is exit code 1, which means "the answer is no" here."""

    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    run = run_of(tmp_path, [{}])
    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(BrokenPipeError):
        render_run(run)
