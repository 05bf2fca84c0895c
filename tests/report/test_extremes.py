"""Numbers that nothing can have measured, in every form of a report: no crash, no garbage, and it is said."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.analysis.effects import effect
from kvbench.analysis.side_by_side import change
from kvbench.analysis.summary import is_plausible
from kvbench.report.build import CaseLine, build_report
from kvbench.report.data import csv_report, json_report
from kvbench.report.html import distributions, front, over_time
from kvbench.report.html.contents import Contents
from kvbench.report.html.figure import LeftOut
from kvbench.report.text import markdown_report
from kvbench.store.case_columns import METRICS
from kvbench.store.parts import Sample
from kvbench.store.run import Run, open_run
from kvbench.store.run_folder import RunFolder
from kvbench.units import format_bytes, format_count, format_seconds, scientific
from tests.report.html_runs import axes_run
from tests.store.samples import case_id, plan, request_record, step_record

GARBAGE = re.compile(r"(?<![\w])(nan|NaN|inf|Infinity|None|undefined)(?![\w])|e[+-]\d{3}|\d{25}")
VALUES = (1e300, 1e-300, 1.0, 5e-324, -1.0, 1.79e308, 0.0, -0.0, 1e29, 1e-9)
AXES = {"block_size": [8, 16, 32, 64, 128], "kv_dtype": ["fp32", "int8"]}
FLOATS = [name for name, column in METRICS.items() if column.type == "float64"]
COUNTS = [name for name, column in METRICS.items() if column.type == "int64"]


def extreme(axes: dict[str, Any], number: int) -> dict[str, Any]:
    """Another value for every metric, case and sample; counts at the end of their type."""
    at = AXES["block_size"].index(axes["block_size"]) * 3 + AXES["kv_dtype"].index(axes["kv_dtype"]) + number
    floats = {name: VALUES[(at + place) % len(VALUES)] for place, name in enumerate(FLOATS)}
    return {**floats, **dict.fromkeys(COUNTS, 2**63 - 1 - at), "output_tokens_per_s": VALUES[at % len(VALUES)]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return axes_run(tmp_path_factory.mktemp("run"), AXES, extreme, samples=2)


def test_tables_have_no_garbage_and_say_what_they_are_without(run: Run) -> None:
    report = build_report(run)
    assert report.notes[0].startswith("warning: left out, because it is no number or of a size that nothing has: ")
    assert not GARBAGE.search(markdown_report(report))
    csv = csv_report(report)
    assert not re.search(r"\b(nan|inf)\b|e[+-]?\d{3}", csv)
    json.loads(json_report(report), parse_constant=pytest.fail)


@pytest.mark.parametrize("is_static", [False, True])
def test_the_page_of_extremes_is_whole_within_its_limit_and_has_no_garbage(run: Run, is_static: bool) -> None:
    pytest.importorskip("altair", reason="HTML reports are drawn by altair")
    pytest.importorskip("vl_convert", reason="HTML reports are drawn by vl-convert")
    from kvbench.report.html.page import LIMITS, page

    found = page(Contents(run), is_static=is_static)
    assert len(found.encode()) <= LIMITS[is_static]
    for chart in re.findall(r'<script type="application/json">(.*?)</script>', found):
        json.loads(chart, parse_constant=pytest.fail)
    words = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]*>", " ", found, flags=re.S)
    assert not GARBAGE.search(words), GARBAGE.search(words)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1e31, 1e-300, 5e-324, True, None])
def test_what_nothing_can_have_measured_is_not_plausible(value: object) -> None:
    assert not is_plausible(value)
    assert all(map(is_plausible, (0, -0.0, 1e-30, -1e30, 3, 2**63 - 1)))


@pytest.mark.parametrize(("left", "right"), [(1e-300, 1e300), (1e300, 1e-300), (5e-324, 1.79e308), (1.79e308, 5e-324)])
def test_a_change_between_extremes_is_finite_and_more_than_losing_all(left: float, right: float) -> None:
    found = effect([({0: left, 1: left}, {0: right, 1: right})])
    assert found is not None
    assert -1 < found.change < math.inf
    other = change(np.array([left, left]), np.array([right, right]), "higher")
    assert math.isfinite(other.change)


def test_numbers_of_any_size_are_short_for_people() -> None:
    assert scientific(1.5e300) == "1.50×10³⁰⁰"
    assert scientific(-2e-7) == "-2.00×10⁻⁷"
    assert scientific(math.nan) == "–"
    for value in (1e300, -1e300, 1.79e308, 5e-324, 2.0**62, math.inf, math.nan):
        for text in (format_bytes(value), format_count(value), format_seconds(value)):
            assert len(text) < 20
            assert not GARBAGE.search(text)
    assert (format_count(123_456_789), format_seconds(1e-12), format_bytes(2.0**60)) == (
        "123,456,789", "0.001 ns", "1048576 TiB"
    )  # fmt: skip


def test_of_many_cases_the_plot_draws_the_front_and_an_even_choice_of_the_others() -> None:
    lines = [CaseLine(str(n), {}, {}, "ok", 1, 1, None, is_pareto=n < 9) for n in range(2000)]
    found = front.drawn(lines)
    assert len({line.case_id for line in found}) == front.DOTS_MOST
    assert found[:9] == lines[:9]
    assert found[-1] is lines[-1]
    every = front.drawn([CaseLine(str(n), {}, {}, "ok", 1, 1, None, is_pareto=True) for n in range(2000)])
    assert len({line.case_id for line in every}) == front.DOTS_MOST
    assert front.drawn(lines[:150]) == lines[:150]


def test_steps_and_requests_that_no_clock_gives_are_no_picture_and_it_is_said(tmp_path: Path) -> None:
    row = {"status": "ok", "kind": "engine", "clock": "wall", "output_tokens_per_s": 1.0}
    requests = [request_record(0, ttft_s=1e300, itl_s=[1e300, math.inf, math.nan])]
    steps = [step_record(n, t_s=n * 1e300, kv_bytes_used=1) for n in (1, 2)]
    with RunFolder.create(tmp_path, plan(1, 1)) as folder:
        folder.add(Sample(case_id(0), 0, "f", row, requests, steps))
        folder.seal()
        contents = Contents(open_run(folder.path))
    assert [type(make(contents)) for make in (distributions.figure, over_time.figure)] == [LeftOut, LeftOut]
