"""The timeline: sound by the format's rules, and every slice and counter is what the tables say."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from kvbench.cli.main import run as command_line
from kvbench.errors import DataError, UsageError
from kvbench.report.timeline import requests as request_tracks
from kvbench.report.timeline import write as writing
from kvbench.report.timeline.events import BLOCKS, ENGINE, QUEUE, REQUESTS, TIERS
from kvbench.report.timeline.events import Event as TimelineEvent
from kvbench.report.timeline.pick import pick
from kvbench.report.timeline.requests import Lanes
from kvbench.report.timeline.write import write_timeline
from kvbench.store.run import Run, open_run
from tests.report.trace_events import Event, problems, read_trace

SUITE = """
name = "busy"
[model]
name = "tiny-llama"
[engine]
kv_memory = "1MiB"
max_sequences = 16
block_size = 16
batch_policy = "chunked"
max_batch_tokens = 64
prefix_cache = "hash"
offload = "host"
host_memory = "2MiB"
swap_memory = "4MiB"
[workload]
requests = 40
input_tokens = { kind = "uniform", low = 40, high = 160 }
output_tokens = { kind = "uniform", low = 1, high = 60 }
arrival = { kind = "poisson", rate = 4000 }
prefix = { groups = 4, tokens = 64 }
[measure]
repetitions = 1
[axes]
"engine.preemption" = ["recompute", "swap"]
"""
CASES = ("preemption=recompute", "preemption=swap")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("busy")
    (folder / "busy.toml").write_text(SUITE)
    asked = ["sweep", str(folder / "busy.toml"), "--clock", "virtual", "--virtual-device", "L4"]
    assert command_line([*asked, "--out", str(folder)]) == 0
    return open_run(next(folder.glob("*/plan.json")).parent)


@pytest.fixture
def draw(run: Run, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def make(case: str, name: str = "timeline.json", **options: Any) -> dict[str, Any]:
        write_timeline(run, pick(run, case, None), tmp_path / name, **options)
        return read_trace(tmp_path / name)

    return make


def rows_of(run: Run, table: str, case: str) -> list[dict[str, Any]]:
    case_id = pick(run, case, None).row["case_id"]
    return run.sample_table(table, case_id, 0).to_pylist()


def slices(events: list[Event], category: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == category]


def series(events: list[Event], process: int, name: str) -> dict[int, dict[str, Any]]:
    """What the counter is from each time on."""
    return {e["ts"]: e["args"] for e in events if e["ph"] == "C" and (e["pid"], e["name"]) == (process, name)}


def value_at(found: dict[int, dict[str, Any]], at_us: int) -> dict[str, Any]:
    return found[max(time for time in found if time <= at_us)]


# The format.


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("most", [{}, {"MAX_TRACKS": 4}, {"MAX_STEPS": 20}, {"MAX_TRACKS": 4, "MAX_REQUESTS": 9}])
def test_the_file_keeps_the_rules_of_the_format(
    draw: Callable[..., dict[str, Any]], case: str, most: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in most.items():
        monkeypatch.setattr(request_tracks if name == "MAX_TRACKS" else writing, name, value)
    events = draw(case)["traceEvents"]
    assert problems(events) == []
    assert {event["ph"] for event in events} >= set("MXCbesf")


@pytest.mark.parametrize(
    "fault",
    [
        {"ph": "X", "name": "late", "pid": 1, "tid": 1, "ts": 5, "dur": 9},
        {"ph": "X", "name": "negative", "pid": 1, "tid": 1, "ts": 10, "dur": -1},
        {"ph": "X", "name": "fraction", "pid": 1, "tid": 1, "ts": 10, "dur": 0.5},
        {"ph": "X", "name": "backwards", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
        {"ph": "X", "name": "unnamed track", "pid": 1, "tid": 2, "ts": 10, "dur": 1},
        {"ph": "X", "name": "unnamed process", "pid": 2, "tid": 3, "ts": 10, "dur": 1},
        {"ph": "X", "name": "", "pid": 1, "tid": 1, "ts": 10, "dur": 1},
        {"ph": "X", "name": "endless", "pid": 1, "tid": 1, "ts": 10},
        {"ph": "b", "name": "open", "pid": 1, "tid": 1, "ts": 10, "id": 1, "cat": "c"},
        {"ph": "e", "name": "never begun", "pid": 1, "tid": 1, "ts": 10, "id": 1, "cat": "c"},
        {"ph": "s", "name": "arrow", "pid": 1, "tid": 1, "ts": 10, "id": 1, "cat": "c"},
        {"ph": "f", "name": "arrow", "pid": 1, "tid": 1, "ts": 10, "id": 1, "cat": "c", "bp": "e"},
        {"ph": "C", "name": "words", "pid": 1, "tid": 1, "ts": 10, "args": {"a": "1"}},
        {"ph": "C", "name": "nothing", "pid": 1, "tid": 1, "ts": 10, "args": {}},
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "twice"}},
        {"ph": "Q", "name": "unknown", "pid": 1, "tid": 1, "ts": 10},
    ],
    ids=lambda fault: fault["name"] or "no name",
)
def test_the_checker_finds_the_fault(fault: Event) -> None:
    names = (("process_name", {"name": "p"}), ("process_sort_index", {"sort_index": 1}))
    names += (("thread_name", {"name": "t"}), ("thread_sort_index", {"sort_index": 1}))
    sound: list[Event] = [{"ph": "M", "name": name, "pid": 1, "tid": 1, "args": args} for name, args in names]
    sound += [
        {"ph": "X", "name": "outer", "pid": 1, "tid": 1, "ts": 0, "dur": 10},
        {"ph": "X", "name": "inner", "pid": 1, "tid": 1, "ts": 2, "dur": 8},
    ]
    assert problems(sound) == []
    assert problems([*sound, fault]) != []


def test_a_name_in_gz_is_compressed_and_holds_the_same(draw: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    assert draw(CASES[0]) == draw(CASES[0], "timeline.json.gz")
    assert (tmp_path / "timeline.json.gz").stat().st_size < (tmp_path / "timeline.json").stat().st_size / 5


def test_predicted_times_say_so_in_every_group(draw: Callable[..., dict[str, Any]]) -> None:
    events = draw(CASES[0])["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert len(names) == 4
    assert all("VIRTUAL CLOCK: times are predicted" in name for name in names)


# The contents.


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tracks", [4, 128])
def test_slices_add_up_to_the_times_of_the_requests(
    run: Run, draw: Callable[..., dict[str, Any]], case: str, tracks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_tracks, "MAX_TRACKS", tracks)
    sums: dict[tuple[int, str], int] = defaultdict(int)
    for event in slices(draw(case)["traceEvents"], "phase"):
        sums[event["args"]["request_id"], event["name"]] += event["dur"]
    rows = rows_of(run, "requests", case)
    assert len(rows) == 40
    for row in rows:
        for name in ("queue", "prefill", "decode"):
            assert sums[row["request_id"], name] == pytest.approx(row[f"{name}_time_s"] * 1e6, abs=1)


def test_numbers_have_no_more_digits_than_perfetto_reads() -> None:
    """It takes 10 to the power of the digits after the point modulo 2^64: of 0.00011264098850574666 it made 0.00145."""
    event = TimelineEvent("X", "request 3", 0, REQUESTS, 1, {"queue_time_s": 0.00011264098850574666, "tokens": 3})
    written = re.search(r'"queue_time_s":0\.(\d+)', event.to_json())
    assert written is not None
    assert len(written[1]) <= 15
    assert json.loads(event.to_json())["args"] == {"queue_time_s": pytest.approx(0.00011264098850574666), "tokens": 3}


@pytest.mark.parametrize("case", CASES)
def test_no_phase_is_without_length(run: Run, draw: Callable[..., dict[str, Any]], case: str) -> None:
    """Perfetto puts a slice without length into the one that begins with it, or outside of the one that ends there."""
    assert any(round(row["queue_time_s"] * 1e6) == 0 for row in rows_of(run, "requests", case))
    drawn = slices(draw(case)["traceEvents"], "phase")
    assert drawn
    assert all(event["dur"] > 0 for event in drawn)


@pytest.mark.parametrize("case", CASES)
def test_blocks_are_lost_as_often_and_as_long_as_the_table_says(
    run: Run, draw: Callable[..., dict[str, Any]], case: str
) -> None:
    drawn: dict[int, list[Event]] = defaultdict(list)
    events = draw(case)["traceEvents"]
    for event in slices(events, "preemption"):
        drawn[event["args"]["request_id"]].append(event)
    rows = rows_of(run, "requests", case)
    assert sum(row["preemptions"] for row in rows) >= 5
    for row in rows:
        lost, back = row["preempted_at_s"] or [], row["resumed_at_s"] or []
        assert len(lost) == len(back) == row["preemptions"]
        assert [(e["ts"], e["ts"] + e["dur"]) for e in drawn[row["request_id"]]] == [
            (pytest.approx(start * 1e6, abs=1), pytest.approx(end * 1e6, abs=1))
            for start, end in zip(lost, back, strict=True)
        ]
        assert set(row["swapped_at_s"] or []) <= set(lost)
    names = {event["name"] for found in drawn.values() for event in found}
    assert names == ({"preempted"} if case == CASES[0] else {"swapped out"})
    arrows = [event for event in events if event["ph"] == "s"]
    assert len(arrows) == sum(row["preemptions"] for row in rows)


@pytest.mark.parametrize("case", CASES)
def test_pieces_are_all_that_was_computed_of_prompts(run: Run, case: str) -> None:
    pieces = 0
    for row in rows_of(run, "requests", case):
        whole = row["input_tokens"] - row["cached_tokens"]
        pieces += sum(row["piece_tokens"]) if row["piece_tokens"] else whole
        assert row["piece_at_s"] == sorted(row["piece_at_s"])
        assert len(row["piece_at_s"]) == len(row["piece_tokens"])
    assert pieces == sum(step["prefill_tokens"] for step in rows_of(run, "steps", case))


@pytest.mark.parametrize("case", CASES)
def test_steps_and_counters_are_the_table(run: Run, draw: Callable[..., dict[str, Any]], case: str) -> None:
    events = draw(case)["traceEvents"]
    drawn, rows = slices(events, "step"), rows_of(run, "steps", case)
    assert [event["args"]["step"] for event in drawn] == [row["step"] for row in rows]
    over = [(ENGINE, "tokens", {"prefill": "prefill_tokens", "decode": "decode_tokens"})]
    over += [(ENGINE, "batch", {"size": "batch_size"}), (BLOCKS, "evictions", {"blocks in the step": "evictions"})]
    over += [(TIERS, "promotions", {"from host": "host_promotions", "from disk": "disk_promotions"})]
    state = [(ENGINE, "sequences", {"active": "active_sequences", "waiting": "waiting_sequences"})]
    state += [(TIERS, "host tier", {"bytes": "host_bytes_used"})]
    found = {(process, name): series(events, process, name) for process, name, _ in (*over, *state)}
    blocks = series(events, BLOCKS, "blocks")
    for event, row in zip(drawn, rows, strict=True):
        start, end = event["ts"], event["ts"] + event["dur"]
        assert start == pytest.approx(row["t_s"] * 1e6, abs=1)
        assert end == pytest.approx((row["t_s"] + row["duration_s"]) * 1e6, abs=1)
        for (process, name, columns), at in [(c, start) for c in over] + [(c, end) for c in state]:
            expected = {label: row[column] for label, column in columns.items()}
            assert value_at(found[process, name], at) == expected, (name, row["step"])
        pool = value_at(blocks, end)
        assert sum(pool.values()) == row["kv_blocks_total"]
        assert pool["used"] * row["kv_capacity_bytes"] == row["kv_bytes_used"] * row["kv_blocks_total"]
        has = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode"}
        assert event["name"] == has[row["prefill_tokens"] > 0, row["decode_tokens"] > 0]


@pytest.mark.parametrize("case", CASES)
def test_copies_between_tiers_are_drawn_where_the_table_has_some(
    run: Run, draw: Callable[..., dict[str, Any]], case: str
) -> None:
    drawn: dict[str, list[int]] = defaultdict(list)
    for event in draw(case)["traceEvents"]:
        if event["ph"] == "b":
            drawn[event["name"]].append(event["args"]["step"])
    columns = {
        "promotion from host": "host_promotions",
        "offload to host": "host_offload_bytes",
        "swap out": "swap_out_bytes",
        "swap in": "swap_in_bytes",
        "waiting for copies": "promotion_stall_s",
    }
    for name, column in columns.items():
        assert drawn[name] == [row["step"] for row in rows_of(run, "steps", case) if row[column]], name
    assert drawn["offload to host"]
    assert drawn["promotion from host"]


def test_steps_drawn_as_one_keep_their_sums_and_are_declared(
    run: Run, draw: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MAX_STEPS", 20)
    trace, rows = draw(CASES[1]), rows_of(run, "steps", CASES[1])
    drawn = slices(trace["traceEvents"], "step")
    assert len(drawn) <= 20 < len(rows)
    for column in ("prefill_tokens", "decode_tokens", "evictions", "host_promotions"):
        assert sum(event["args"].get(column, 0) for event in drawn) == sum(row[column] for row in rows)
    assert sum(event["args"]["steps"] for event in drawn) == len(rows)
    assert sum(event["args"]["busy_s"] for event in drawn) == pytest.approx(sum(row["duration_s"] for row in rows))
    assert any("steps are drawn as one slice" in note for note in trace["otherData"]["notes"])
    assert len(slices(draw(CASES[1], is_whole=True)["traceEvents"], "step")) == len(rows)


def test_fewer_requests_are_declared(draw: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_REQUESTS", 9)
    trace = draw(CASES[1])
    assert len(slices(trace["traceEvents"], "request")) == 8
    assert "one request in 5 is drawn" in trace["otherData"]["notes"][0]


def test_lanes_hold_one_at_a_time_and_are_as_few_as_can_be() -> None:
    spans = sorted((start, start + 1 + start * 7 % 13) for start in range(0, 200, 2))
    lanes, ends = Lanes(), defaultdict(int)
    for start, end in spans:
        lane = lanes.take(start, end)
        assert ends[lane] <= start
        ends[lane] = end
    most = max(sum(start <= at < end for start, end in spans) for at in range(220))
    assert lanes.count == most


def test_requests_that_are_packed_wait_apart_from_those_that_are_served(
    draw: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_tracks, "MAX_TRACKS", 4)
    events = draw(CASES[0])["traceEvents"]
    where = {(event["name"], event["pid"]) for event in slices(events, "phase")}
    assert where == {("queue", QUEUE), ("prefill", REQUESTS), ("decode", REQUESTS)}
    assert len({event["tid"] for event in slices(events, "phase") if event["pid"] == REQUESTS}) < 40


# What is asked for.


def test_a_case_goes_by_its_id_the_front_of_it_its_label_or_a_part_of_that(run: Run) -> None:
    case_id = pick(run, CASES[1], None).row["case_id"]
    for asked in (case_id, case_id[:6], "preemption=swap", "swap"):
        assert pick(run, asked, None).row["case_id"] == case_id
    assert pick(run, "swap", 0).row["sample"] == 0


@pytest.mark.parametrize(
    ("case", "sample", "words"),
    [
        (None, None, "which one"),
        ("preemption", None, "2 cases go by"),
        ("", None, "no case"),
        ("nothing", None, "no case"),
        ("swap", 7, "no sample 7"),
    ],
)
def test_what_is_not_one_sample_is_a_question_with_the_choices(
    run: Run, case: str | None, sample: int | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as error:
        pick(run, case, sample)
    assert error.value.hint
    assert ("preemption=recompute" in error.value.hint) == (sample is None)


def test_a_kernel_case_and_a_run_of_nothing_else_are_refused(run: Run) -> None:
    kernel = {"case_id": "0123", "label": "kernel batch=4", "kind": "kernel"}
    mixed = SimpleNamespace(path=run.path, plan={"cases": [*run.plan["cases"], kernel]}, case_rows=run.case_rows)
    with pytest.raises(UsageError, match="is a kernel case"):
        pick(cast("Run", mixed), "batch=4", None)
    alone = SimpleNamespace(path=run.path, plan={"cases": [kernel]}, case_rows=[])
    with pytest.raises(UsageError, match="no engine case"):
        pick(cast("Run", alone), None, None)


def test_a_run_without_the_times_of_preemptions_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run.sample_table

    def older(table: str, case_id: str, sample: int) -> Any:
        found = whole(table, case_id, sample)
        new = ("piece_at_s", "piece_tokens", "preempted_at_s", "resumed_at_s", "swapped_at_s", "host_bytes_used")
        for name in set(new) & set(found.column_names):
            at = found.schema.get_field_index(name)
            found = found.set_column(at, found.schema.field(at), pa.nulls(found.num_rows, found.schema.field(at).type))
        return found

    monkeypatch.setattr(run, "sample_table", older)
    written = write_timeline(run, pick(run, "swap", None), tmp_path / "timeline.json")
    assert "preempted at times that are not on record" in written.notes[0]
    assert problems(read_trace(tmp_path / "timeline.json")["traceEvents"]) == []


def test_a_sample_that_failed_before_its_first_step_is_no_timeline(run: Run, tmp_path: Path) -> None:
    picked = pick(run, "swap", None)
    lost = type(picked)(picked.case, picked.row | {"sample": 9, "status": "timeout", "error": "no result"})
    with pytest.raises(DataError, match="no steps on record: no result"):
        write_timeline(run, lost, tmp_path / "timeline.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("packed", [False, True])
def test_an_earlier_timeline_is_replaced_and_no_other_file_is(run: Run, tmp_path: Path, packed: bool) -> None:
    target, table = tmp_path / ("t.json.gz" if packed else "t.json"), tmp_path / "steps.parquet"
    for case in CASES:
        write_timeline(run, pick(run, case, None), target)
        assert read_trace(target)["otherData"]["case"] == case
    for held in (b"a table", b"", b"\x1f\x8b broken", b'{"displayTimeUnit": "ms"}'):
        table.write_bytes(held)
        with pytest.raises(UsageError, match="there already and is no timeline"):
            write_timeline(run, pick(run, "swap", None), table)
        assert table.read_bytes() == held
    assert sorted(tmp_path.iterdir()) == [table, target]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--to", "bencher", "--perfetto", "t.json"],
        ["--to", "bencher", "--case", "swap"],
        ["--to", "bencher", "--whole"],
        ["--perfetto", "t.json", "--metric", "wall_s"],
        ["--perfetto", "no/such/folder/t.json", "--case", "swap"],
        ["--perfetto", ".", "--case", "swap"],
        ["--perfetto", "/dev/null", "--case", "swap"],
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together_are_refused(
    run: Run, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_line(["export", str(run.path), *arguments]) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_drew(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "timeline.json"
    assert command_line(["export", str(run.path), "--perfetto", str(target), "--case", "swap", "--sample", "0"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "sample 0 (virtual clock: predicted times)" in said.err
    assert json.loads(target.read_text())["otherData"]["case"] == CASES[1]
