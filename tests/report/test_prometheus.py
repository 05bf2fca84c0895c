"""Prometheus text, and the dashboard and alert rules that are written for it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.engine.telemetry import StepRecord
from kvbench.measure.live import STATES, STEPS, TOTALS
from kvbench.report.prometheus import ENGINE_FAMILIES, FAMILIES, Family, Point, exposition
from tests.report.exposition import read_exposition

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docs/grafana/kvbench-sweep.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/live-metrics.md").read_text(encoding="utf-8")
BY_NAME = {family.name: family for family in FAMILIES}
NAMED = (
    "kv_capacity_bytes", "kv_bytes_used", "kv_blocks_total", "kv_blocks_free", "live_cached_tokens", "active_sequences",
    "waiting_sequences", "batch_size", "admissions_total", "preemptions_total", "evictions_total",
    "prefix_cache_queries_total", "prefix_cache_hits_total", "host_offload_bytes_total", "host_promotions_total",
    "promotion_stall_seconds_total",
)  # fmt: skip


def alerts() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((ROOT / "docs/grafana/kvbench-alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


# The text.


@given(label=st.text(), words=st.text(), number=st.floats() | st.integers(-(10**18), 10**18))
def test_any_label_and_number_is_read_back(label: str, words: str, number: float) -> None:
    family = Family("kvbench_thing", "gauge", words.replace("\r", " ").replace("\x85", " "), ("case",))
    label = "".join(" " if len(f"a{c}b".splitlines()) > 1 and c != "\n" else c for c in label)
    text = exposition([Point("kvbench_thing", (label,), number)], [family])
    if len(text.splitlines()) != 3:  # a line separator of Unicode in the help: not one of the format
        return
    found = read_exposition(text)["kvbench_thing"].values[(("case", label),)]
    assert found == number or (math.isnan(found) and math.isnan(number)) or found == pytest.approx(number)


def test_half_a_character_does_not_stop_the_page() -> None:
    text = exposition([Point("kvbench_sweep_running", ("\ud800",), 1)])
    assert read_exposition(text)["kvbench_sweep_running"].values == {(("suite", "?"),): 1.0}


def test_lines_of_one_metric_stand_together_whatever_the_order() -> None:
    points = [Point("kvbench_sweep_samples", ("s", status), 1) for status in ("ok", "oom")]
    points.insert(1, Point("kvbench_sweep_running", ("s",), 1))
    assert set(read_exposition(exposition(points))) == {"kvbench_sweep_samples", "kvbench_sweep_running"}


def test_every_name_that_the_engine_must_export_is_there() -> None:
    assert {f"kvbench_{name}" for name in NAMED} <= set(BY_NAME)


def test_every_live_counter_is_a_metric_of_its_kind_and_a_field_of_a_step() -> None:
    by_source = {family.source: family.kind for family in ENGINE_FAMILIES}
    assert by_source == {**dict.fromkeys(STATES, "gauge"), **dict.fromkeys((STEPS, *TOTALS), "counter")}
    assert set(STATES) | set(TOTALS) <= set(StepRecord.__dataclass_fields__)


def test_names_have_base_units_and_end_as_their_kind_does() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"kvbench_[a-z_]+", family.name)
        assert not re.search(r"_(s|ms|us|ns|kb|mb|gb|percent)(_total)?$", family.name), family.name
        if family.name != "kvbench_kv_blocks_total":
            assert (family.kind == "counter") == family.name.endswith("_total"), family.name
        assert family.help.endswith(".")
    assert len(BY_NAME) == len(FAMILIES)


# The dashboard and the alert rules.


def test_the_dashboard_loads_as_it_is() -> None:
    assert DASHBOARD["uid"] == "kvbench-sweep"
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["id"] is None
    variables = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "suite": "query"}
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [(x, y) for panel in panels for x, y in _cells(panel["gridPos"])]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    for panel in (panel for panel in panels if panel["type"] != "row"):
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def _cells(at: dict[str, int]) -> Iterator[tuple[int, int]]:
    return ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"]))


def test_units_of_panels_are_those_of_their_metrics() -> None:
    for panel in (panel for panel in DASHBOARD["panels"] if panel["type"] == "timeseries"):
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            expr = target["expr"]
            is_rate, is_share = "rate(" in expr, "_ratio" in expr or " / " in expr or "_seconds_total" in expr
            is_bytes = "_bytes" in expr
            expected = {"Bps"} if is_rate and is_bytes else {"bytes"} if is_bytes else {"ops", "short"}
            assert unit in ({"percentunit"} if is_share else expected), expr


def test_every_metric_is_in_the_dashboard_or_on_the_page_and_no_other_is() -> None:
    used = [*expressions(), *(rule["expr"] for rule in alerts()), DASHBOARD["templating"]["list"][1]["definition"]]
    shown = {name for expr in used for name in re.findall(r"kvbench_\w+", expr)}
    written = set(re.findall(r"`(kvbench_\w+)`", PAGE))
    assert shown <= set(BY_NAME)
    assert written <= set(BY_NAME)
    assert set(BY_NAME) <= shown | written
    assert {family.name for family in ENGINE_FAMILIES} <= shown


def test_the_page_lists_every_metric_with_its_kind_labels_and_meaning() -> None:
    listed = re.findall(r"^\| `(kvbench_\w+)` \| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert listed == [(family.name, family.kind, family.help) for family in FAMILIES]


def test_labels_in_expressions_are_those_of_the_metric() -> None:
    for expr in [*expressions(), *(rule["expr"] for rule in alerts())]:
        for name, selector in re.findall(r"(kvbench_\w+)(?:\{([^}]*)\})?", expr):
            for label in re.findall(r"(\w+)\s*=~?", selector):
                assert label in BY_NAME[name].labels, expr
        names = re.findall(r"kvbench_\w+", expr)
        for grouped in re.findall(r"by \(([^)]*)\)", expr):
            assert all(grouped in BY_NAME[name].labels for name in names), expr
    legends = [(t["expr"], t["legendFormat"]) for p in DASHBOARD["panels"] for t in p.get("targets", ())]
    legends += [(rule["expr"], text) for rule in alerts() for text in rule["annotations"].values()]
    for expr, text in legends:
        for label in re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text):
            assert label in BY_NAME[re.findall(r"kvbench_\w+", expr)[0]].labels, text


def test_alert_rules_are_whole() -> None:
    rules = alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 4
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+m", rule.get("for", "1m"))
        assert rule["expr"].count("(") == rule["expr"].count(")")
        over_time = re.findall(r"(?:rate|increase)\((kvbench_\w+)", rule["expr"])
        assert all(BY_NAME[name].kind == "counter" for name in over_time)


def test_numbers_in_alerts_have_no_prefix_of_thousandths() -> None:
    """`humanize` alone writes 0.6 as 600m."""
    texts = [text for rule in alerts() for text in rule["annotations"].values()]
    assert texts
    assert not [text for text in texts if re.search(r"\bhumanize\b", text)]


def test_alerts_fire_where_they_must_by_prometheus_itself() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool of Prometheus is not installed")
    cases = ROOT / "tests/report/alerts.promtool.yml"
    ran = subprocess.run([promtool, "test", "rules", str(cases)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert set(re.findall(r"alertname: (\w+)", cases.read_text())) == {rule["alert"] for rule in alerts()}


def test_rates_are_of_counters_only() -> None:
    for expr in expressions():
        rated = set(re.findall(r"rate\((kvbench_\w+)", expr))
        assert all(BY_NAME[name].kind == "counter" for name in rated)
        assert all(BY_NAME[name].kind == "gauge" or name in rated or "max by" in expr
                   for name in re.findall(r"kvbench_\w+", expr)), expr  # fmt: skip
