"""Metrics of a sweep: what the worker tells, what is served, and the textfile at the end."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvbench.cli.main import run as command_line
from kvbench.engine.telemetry import StepRecord
from kvbench.errors import CannotRunError, KvbenchError, UsageError
from kvbench.measure.job import COUNTERS, FINISHED, PROGRESS, REDONE, STARTED, Event
from kvbench.measure.live import STATES, STEPS, TOTALS, LiveCounters
from kvbench.report.prometheus import CONTENT_TYPE, ENGINE_FAMILIES
from kvbench.store.run import Run, open_run
from kvbench.sweep import live as live_module
from kvbench.sweep import metrics_server
from kvbench.sweep.live import Facts, SweepMetrics
from kvbench.sweep.live_output import LiveOutput
from kvbench.sweep.metrics_server import MetricsServer, parse_address
from kvbench.sweep.planner import make_plan
from kvbench.sweep.run import run_plan
from tests.report.exposition import Metric, read_exposition, value
from tests.sweep.conftest import MINI

FACTS = Facts("s", "run", "a device", "wall", {"a": "block_size=4", "b": "block_size=8"}, 2)


def step(number: int) -> StepRecord:
    return StepRecord(**{field.name: number for field in fields(StepRecord)})


# What the worker tells.


def test_totals_are_sums_and_states_are_the_last_steps() -> None:
    told: list[dict[str, float]] = []
    counters = LiveCounters(told.append, every_s=1e9)
    for number in range(1, 8):
        counters(step(number))
    assert told == []
    counters.flush()
    assert told == [{STEPS: 7, **dict.fromkeys(STATES, 7), **dict.fromkeys(TOTALS, 28)}]


def test_a_sample_taken_again_counts_from_nothing() -> None:
    told: list[dict[str, float]] = []
    counters = LiveCounters(told.append, every_s=1e9)
    counters(step(5))
    counters.begin()
    counters.flush()
    assert told == []
    counters(step(1))
    counters.flush()
    assert told[0][TOTALS[0]] == 1


def test_it_is_told_at_most_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told: list[float] = []
    counters = LiveCounters(lambda numbers: told.append(now))
    for number in range(1000):
        now = number / 100
        counters(step(1))
    assert 38 <= len(told) <= 40
    assert min(later - earlier for earlier, later in pairwise(told)) >= 0.25


# What is made of it.


def test_progress_and_ends_are_counted_by_sample_and_by_case() -> None:
    metrics = SweepMetrics(FACTS)
    for case, sample, status in (("a", 0, "ok"), ("b", 0, "oom"), ("a", 1, "ok")):
        metrics.event(Event(STARTED, case, {"sample": sample}))
        metrics.event(Event(PROGRESS, case, {"share": 0.5}))
        metrics.event(Event(FINISHED, case, {"sample": sample, "status": status}))
    metrics.event(Event(STARTED, "b", {"sample": 1}))
    metrics.event(Event(PROGRESS, "b", {"share": 0.25}))
    metrics.event(Event(COUNTERS, "b", {"steps": 3, "batch_size": 2}))
    found = read_exposition(metrics.text())
    numbers = {name: value(found, f"kvbench_sweep_{name}") for name in ("running", "cases_planned", "cases_done")}
    assert numbers == {"running": 1, "cases_planned": 2, "cases_done": 1}
    assert value(found, "kvbench_sweep_cases_failed") == 1
    assert value(found, "kvbench_sweep_samples_planned") == 4
    assert value(found, "kvbench_sweep_samples", status="ok") == 2
    assert value(found, "kvbench_sweep_samples", status="oom") == 1
    assert value(found, "kvbench_sample_progress_ratio", case="block_size=8", sample="1") == 0.25
    assert value(found, "kvbench_sample_progress_ratio", status="oom") == 0.5
    assert value(found, "kvbench_steps_total", suite="s", case="block_size=8", status="running", clock="wall") == 3


def test_a_sample_taken_again_is_counted_and_starts_over() -> None:
    metrics = SweepMetrics(FACTS)
    metrics.event(Event(STARTED, "a", {"sample": 0}))
    metrics.event(Event(COUNTERS, "a", {"steps": 30}))
    metrics.event(Event(REDONE, "a", {"sample": 0, "reason": "noise"}))
    found = read_exposition(metrics.text())
    assert value(found, "kvbench_sweep_samples_redone_total") == 1
    assert "kvbench_steps_total" not in found


def test_samples_that_were_there_before_count_and_those_that_no_worker_ended_do_too() -> None:
    metrics = SweepMetrics(Facts("s", "run", "d", "wall", FACTS.cases, 2, frozenset({("a", 0), ("a", 1)})))
    metrics.event(Event(STARTED, "b", {"sample": 0}))
    metrics.ended("b", 0, "crash")
    metrics.ended("b", 1, "skipped")
    found = read_exposition(metrics.text())
    assert value(found, "kvbench_sweep_cases_done") == 2
    assert value(found, "kvbench_sweep_samples", status="crash") == 1
    assert {dict(key)["status"] for key in found["kvbench_sample_progress_ratio"].values} == {"crash", "skipped"}


def test_what_runs_when_the_sweep_ends_was_interrupted_and_time_stands_still() -> None:
    metrics = SweepMetrics(FACTS)
    metrics.event(Event(STARTED, "a", {"sample": 0}))
    metrics.close()
    first, second = read_exposition(metrics.text()), read_exposition(metrics.text())
    assert first == second
    assert value(first, "kvbench_sweep_running") == 0
    assert value(first, "kvbench_sample_progress_ratio", status="interrupted") == 0


def test_a_long_sweep_shows_its_latest_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MAX_SAMPLES", 3)
    metrics = SweepMetrics(FACTS)
    for sample in range(10):
        metrics.ended("a", sample, "ok")
    found = read_exposition(metrics.text())
    assert {dict(key)["sample"] for key in found["kvbench_sample_progress_ratio"].values} == {"7", "8", "9"}
    assert value(found, "kvbench_sweep_samples", status="ok") == 10


# What is served.


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    opened = MetricsServer("127.0.0.1", 0)
    opened.begin(SweepMetrics(FACTS).text)
    yield opened
    opened.close()


def fetch(url: str, method: str = "GET") -> tuple[int, Any, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def test_the_page_is_prometheus_text_on_loopback(server: MetricsServer) -> None:
    status, headers, body = fetch(server.url)
    assert status == 200
    assert headers["Content-Type"] == CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
    assert int(headers["Content-Length"]) == len(body.encode())
    assert read_exposition(body)["kvbench_sweep_running"].values == {(("suite", "s"),): 1.0}
    assert server.url.startswith("http://127.0.0.1:")
    assert server.is_local


def test_head_has_no_body_other_pages_are_not_found_and_nothing_is_taken(server: MetricsServer) -> None:
    status, headers, body = fetch(server.url, "HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 0
    assert fetch(f"{server.url}?name[]=x")[0] == 200
    assert fetch(f"{server.url}/x")[0] == fetch(server.url.removesuffix("metrics"))[0] == 404
    assert fetch(server.url, "POST")[0] == 501


def test_many_scrapes_at_once_are_answered(server: MetricsServer) -> None:
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(fetch(server.url)[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 8


def test_clients_that_say_nothing_hold_up_nobody_and_are_dropped(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server._Page, "timeout", 0.5)
    port = int(re.findall(r":(\d+)/", server.url)[0])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(metrics_server.CLIENTS - 1)]
    silent[0].sendall(b"GET /metrics HT")
    try:
        assert fetch(server.url)[0] == 200
        silent[1].settimeout(10)
        assert silent[1].recv(100) == b""
    finally:
        for client in silent:
            client.close()


def test_too_many_clients_are_turned_away(server: MetricsServer) -> None:
    port = int(re.findall(r":(\d+)/", server.url)[0])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(metrics_server.CLIENTS + 1)]
    try:
        silent[-1].settimeout(10)
        assert silent[-1].recv(100) == b""
    finally:
        for client in silent:
            client.close()


def test_after_the_end_the_port_is_free() -> None:
    first = MetricsServer("127.0.0.1", 0)
    first.begin(lambda: "")
    port = int(re.findall(r":(\d+)/", first.url)[0])
    first.close()
    second = MetricsServer("127.0.0.1", port)
    second.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":9464", ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        (":0", ("127.0.0.1", 0)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("localhost:65535", ("localhost", 65535)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_without_a_host_it_is_the_loopback_address(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", ":", "x", ":x", ":-1", ":65536", "::1:9464", "[::1]", "host:", "[host:1", "1.5", ":٣", ":" + "9" * 5000],
    ids=lambda text: text[:12],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "kind", "words"),
    [
        ("no.such.host.invalid", UsageError, "no host"),
        ("192.0.2.1", UsageError, "this machine is not"),
        ("x" * 70 + ".invalid", UsageError, "no host"),
    ],
)
def test_a_host_that_this_machine_is_not_is_refused(host: str, kind: type[KvbenchError], words: str) -> None:
    with pytest.raises(kind, match=words):
        MetricsServer(host, 0)


def test_a_port_that_is_taken_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "mini.toml").write_text(MINI)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CannotRunError, match="another program listens"):
            MetricsServer("127.0.0.1", port)
        asked = ["sweep", str(tmp_path / "mini.toml"), "--clock", "virtual", "--out", str(tmp_path / "out")]
        assert command_line([*asked, "--metrics", f":{port}"]) == 4
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "asked",
    [
        ["--metrics", "nonsense"],
        ["--metrics", ":0", "--dry-run"],
        ["--metrics-textfile", "metrics.txt"],
        ["--metrics-textfile", "no/such/folder/k.prom"],
        ["--metrics-textfile", "k.prom", "--dry-run"],
        ["--metrics-textfile", "node.prom"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_served_or_written_is_refused_first(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini.toml").write_text(MINI)
    (tmp_path / "node.prom").write_text("# HELP node_load1 1m load average.\n")
    assert command_line(["sweep", "mini.toml", "--clock", "virtual", "--out", "out", *asked]) == 2
    assert not (tmp_path / "out").exists()


# Whole sweeps.


def assert_counters_are_the_tables(found: dict[str, Metric], run: Run) -> None:
    labels = {case["case_id"]: case["label"] for case in run.plan["cases"]}
    for row in run.case_rows:
        steps = run.sample_table("steps", row["case_id"], row["sample"]).to_pylist()
        which = {"case": labels[row["case_id"]], "sample": str(row["sample"]), "status": row["status"]}
        for family in ENGINE_FAMILIES:
            shown = value(found, family.name, **which, clock=row["clock"])
            if family.source == STEPS:
                assert shown == len(steps)
            elif family.kind == "counter":
                assert shown == pytest.approx(sum(step[family.source] for step in steps)), family.name
            else:
                assert shown == steps[-1][family.source], family.name


def test_the_textfile_of_a_virtual_sweep_holds_what_the_run_holds(tmp_path: Path) -> None:
    (tmp_path / "mini.toml").write_text(MINI)
    target = tmp_path / "kvbench.prom"
    asked = ["sweep", str(tmp_path / "mini.toml"), "--clock", "virtual", "--out", str(tmp_path / "out")]
    assert command_line([*asked, "--metrics-textfile", str(target)]) == 0
    found = read_exposition(target.read_text())
    assert_counters_are_the_tables(found, open_run(next((tmp_path / "out").iterdir())))
    assert value(found, "kvbench_sweep_running") == 0
    assert value(found, "kvbench_sweep_cases_done") == 2
    assert target.stat().st_mode & 0o444 == 0o444 & ~_umask()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kvbench.prom", "mini.toml", "out"]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_worker_tells_what_it_measured(mini: Callable[..., Any], tmp_path: Path) -> None:
    plan = make_plan(mini(('"engine.block_size" = [4, 16]', '"engine.block_size" = [4]')))
    target = tmp_path / "kvbench.prom"
    run = run_plan(plan, out=tmp_path / "out", live=LiveOutput(textfile=target))
    assert_counters_are_the_tables(read_exposition(target.read_text()), run)


def test_a_sweep_is_scraped_while_it_runs_and_ctrl_c_leaves_the_textfile(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    suite, target = tmp_path / "long.toml", tmp_path / "k.prom"
    text = MINI.replace("requests = 4", 'requests = 20000\narrival = { kind = "poisson", rate = 50 }')
    suite.write_text(text.replace("output_tokens = 4", "output_tokens = 64"))
    asked = command(
        "sweep", str(suite), "--clock", "virtual", "--out", str(tmp_path / "out"), "--metrics", ":0",
        "--metrics-textfile", str(target),
    )  # fmt: skip
    url = next(line for line in asked.process.stderr if line.startswith("metrics: ")).split()[1]
    deadline = time.monotonic() + 60
    found: dict[str, Metric] = {}
    while "kvbench_steps_total" not in found:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        found = read_exposition(fetch(url)[2])
    assert value(found, "kvbench_steps_total", status="running", clock="virtual") > 0
    asked.signal(signal.SIGINT)
    code, _, _ = asked.end()
    assert code == 130
    left = read_exposition(target.read_text())
    assert value(left, "kvbench_sweep_running") == 0
    assert value(left, "kvbench_steps_total", status="interrupted") >= value(found, "kvbench_steps_total")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)
