"""`--trace` and its companions put a recorded workload into a suite."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.errors import UsageError
from kvbench.spec.cases import expand
from kvbench.spec.load import from_effective, load_suite
from kvbench.spec.trace_options import with_trace
from tests.spec.build import suite_of


def workload_of(loaded: Any) -> Any:
    return expand(loaded.suite)[0].workload


def test_traffic_needs_a_trace_and_takes_one() -> None:
    traffic = load_suite("traffic")
    assert workload_of(traffic).trace is None
    given = with_trace(traffic, "a.csv", limit=5, scale_time=0.5, scale_tokens="1/16", format="azure")
    found = workload_of(given)
    assert (found.source, found.trace, found.limit, found.format) == ("trace", "a.csv", 5, "azure")
    assert (found.scale_time, found.scale_tokens, found.arrival.kind) == (0.5, 1 / 16, "recorded")
    assert from_effective(given.effective).suite == given.suite
    assert given.digest != traffic.digest


def test_what_the_trace_decides_leaves_the_suite_and_the_rest_stays() -> None:
    workload = {"requests": 3, "input_tokens": 9, "prefix": {"groups": 2}, "seed": 4, "max_input_tokens": 7}
    found = with_trace(suite_of(workload=workload), "a.csv")
    assert found.effective["workload"] == {
        "seed": 4, "max_input_tokens": 7, "source": "trace", "trace": "a.csv", "arrival": {"kind": "recorded"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "sections",
    [
        {"workload": {"arrival": {"kind": "poisson", "rate": 3}}},
        {"workload": {"arrival": {"rate": 3}}, "axes": {"workload.arrival.kind": ["poisson"]}},
    ],
)
def test_arrivals_that_the_suite_names_stay(sections: dict[str, Any]) -> None:
    assert workload_of(with_trace(suite_of(**sections), "a.csv")).arrival.kind == "poisson"


def test_without_options_nothing_changes() -> None:
    loaded = load_suite("smoke")
    assert with_trace(loaded, None) is loaded


@pytest.mark.parametrize(
    ("sections", "path", "options", "wanted"),
    [
        ({"axes": {"workload.requests": [1, 2]}}, "a.csv", {}, "varies workload.requests, which the trace"),
        ({"axes": {"workload.sessions.turns": [1, 2]}}, "a.csv", {}, "varies workload.sessions.turns"),
        ({"kernel": {}}, "a.csv", {}, "has no engine cases"),
        ({"engine": {}}, None, {"limit": 3}, "--limit: suite t reads no trace"),
        ({"engine": {}}, "a.csv", {"scale_tokens": "1/0"}, "'1/0' is not a ratio"),
        ({"engine": {}}, "a.csv", {"scale_tokens": "2"}, "a number above 0 and at most 1"),
        ({"engine": {}}, "a.csv", {"scale_time": -1.0}, "expected a number above 0, got -1.0"),
        ({"engine": {}}, "a.csv", {"limit": 0}, "expected a whole number of at least 1, got 0"),
        ({"engine": {}}, "a.csv", {"format": "azur"}, 'did you mean "azure"?'),
        ({"engine": {}}, "", {}, "cannot be the path of a trace"),
        ({"engine": {}}, "a\x1b.csv", {}, "cannot be the path of a trace"),
        ({"engine": {}}, "a\udcff.csv", {}, "cannot be the path of a trace"),
        (
            {"workload": {"arrival": {"kind": "all-at-once"}}},
            "a.csv",
            {"scale_time": 0.5},
            '--scale-time has no effect while workload.arrival.kind is not "recorded"',
        ),
    ],
)
def test_an_option_that_cannot_work_is_one_clear_error(
    sections: dict[str, Any], path: str | None, options: dict[str, Any], wanted: str
) -> None:
    with pytest.raises(UsageError) as caught:
        with_trace(suite_of(**sections), path, **options)
    assert wanted in caught.value.message
