from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.consistency import identical_latency
from kvbench.analysis.summary import spread, stored_warnings, summarise


def row(case: str = "a", number: int = 0, **changes: Any) -> dict[str, Any]:
    return {"case_id": case, "sample": number, "kind": "engine", "status": "ok", **changes}


@given(st.lists(st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) >= 1e-30), min_size=1, max_size=9))
def test_spread_is_median_and_range(values: list[float]) -> None:
    found = spread([*values, None, math.nan, math.inf, 1e31, -1e-31])
    assert found is not None
    assert (found.median, found.low, found.high, found.count) == (
        statistics.median(values), min(values), max(values), len(values),
    )  # fmt: skip


def test_no_value_has_no_spread_and_is_never_zero() -> None:
    assert spread([]) is spread([None, math.nan]) is None


def test_failed_samples_enter_no_metric_and_are_counted() -> None:
    rows = [row(x=1.0), row(number=1, status="timeout", x=99.0, error="slow"), row(number=2, x=3.0)]
    (found,) = summarise(rows, ["x"])
    assert (found.metrics["x"].median, found.metrics["x"].count, found.ok_samples) == (2.0, 2, 2)
    assert (found.statuses, found.errors) == ({"ok": 2, "timeout": 1}, ["slow"])


def test_facts_are_what_the_samples_agree_on() -> None:
    (found,) = summarise(
        [row(model="m", threads=2), row(number=1, model="m", threads=4), row(number=2, model=None)], ["x"]
    )
    assert found.facts["model"] == "m"
    assert "threads" not in found.facts


@pytest.mark.parametrize("text", ["{", "5", '[{"name": 1}]', "[3]"])
def test_damaged_warnings_are_a_warning_themselves(text: str) -> None:
    assert stored_warnings({"warnings": text})[0][0] == "unreadable_warnings"


LATENCIES = {"ttft_mean_s": 0.123456789, "tpot_mean_s": 0.01, "e2e_mean_s": 1.5}


def test_m37_hit_rates_that_differ_at_identical_latency_are_flagged() -> None:
    """Hit rate differs 4×, every latency identical to the last digit."""
    rows = [row("a", prefix_hit_rate=0.2, **LATENCIES), row("b", prefix_hit_rate=0.8, **LATENCIES)]
    (found,) = identical_latency(rows)
    assert found["numbers"] == {"hit_rate_min": 0.2, "hit_rate_max": 0.8}
    assert found["samples"] == [("a", 0), ("b", 0)]


def test_m37_nothing_is_flagged_without_that_contradiction() -> None:
    """The last digit differs; the hit rate is the same; there is no latency at all; a sample failed."""
    one = row("a", prefix_hit_rate=0.2, **LATENCIES)
    other = row("b", prefix_hit_rate=0.8, **{**LATENCIES, "ttft_mean_s": math.nextafter(0.123456789, 1)})
    assert identical_latency([one, other]) == []
    assert identical_latency([one, {**one, "case_id": "b"}]) == []
    assert identical_latency([row("a", prefix_hit_rate=0.2), row("b", prefix_hit_rate=0.8)]) == []
    assert identical_latency([one, row("b", status="error", prefix_hit_rate=0.8, **LATENCIES)]) == []
