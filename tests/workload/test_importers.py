from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import UsageError
from kvbench.workload.importers.azure import timestamp_ns
from kvbench.workload.importers.read import read_trace
from kvbench.workload.tokens import token_ids
from tests.shared_data import shared_data
from tests.workload.helpers import FIXTURES, from_trace, prompt_ids

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(text: str | bytes) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return put


def _refused(path: Path | str, *words: str, line: int | None = None, **settings: Any) -> None:
    with pytest.raises(UsageError) as caught:
        from_trace(path, **settings)
    where = f"{path}:{line}: " if line else ""
    assert caught.value.message.startswith(where)
    for word in words:
        assert word in f"{caught.value.message} {caught.value.hint}"


def test_m50_azure_every_row_is_read() -> None:
    """Azure 2023 CSV: timestamps with 7 fractional digits, CRLF, last line without newline: every row read."""
    path = FIXTURES / "azure2023.csv"
    assert not path.read_bytes().endswith(b"\n")
    assert path.read_bytes().count(b"\r\n") == 5
    workload = from_trace(path)
    assert [(r.input_tokens, r.output_tokens) for r in workload.requests] == [(374, 44), (12, 1), (91, 16)]
    assert [r.arrival_s for r in workload.requests] == [0.0, 7e-7, 5.31941]


def test_m50_azure_real_file_against_a_naive_reader() -> None:
    """19,366 rows, sums and times as a plain `csv.DictReader` with decimal arithmetic has them."""
    path = shared_data("traces/azure2023/AzureLLMInferenceTrace_conv.csv")
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    workload = from_trace(path)
    assert len(workload.requests) == len(rows) == 19_366
    assert sum(r.input_tokens for r in workload.requests) == sum(int(row["ContextTokens"]) for row in rows)
    assert sum(r.output_tokens for r in workload.requests) == sum(int(row["GeneratedTokens"]) for row in rows)
    times = [_decimal_seconds(row["TIMESTAMP"]) for row in rows]
    expected = [float(time - times[0]) for time in times]
    assert max(abs(r.arrival_s - t) for r, t in zip(workload.requests, expected, strict=True)) < 1e-9


def _decimal_seconds(text: str) -> Decimal:
    day, clock = text.split()
    hours, minutes, seconds = clock.split(":")
    return (Decimal(day[-2:]) * 24 + Decimal(hours)) * 3600 + Decimal(minutes) * 60 + Decimal(seconds)


def test_azure_2024_time_zones_column_order_and_unknown_columns() -> None:
    workload = from_trace(FIXTURES / "azure2024.csv")
    assert [(r.input_tokens, r.output_tokens) for r in workload.requests] == [(7, 5), (374, 44), (12, 3)]
    assert [r.arrival_s for r in workload.requests] == [0.0, 1.00993, 2.0]
    assert workload.report.out_of_order == 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "yesterday", "2023-13-01 00:00:00", "2023-11-16 25:00:00", "2023-11-16", "2023-11-16 18:15:46."),
        *("2023-11-16 18:15:46.12345678901", "٢٠٢٣-11-16 18:15:46", "0001-01-01 00:00:00", "2023-11-16 18:15:46.²"),
        *("2023-11-16 18:15:46.1 UTC", "9999-12-31 23:59:59", "20231116T181546.5900000"),
    ],
)
def test_azure_malformed_timestamps_name_the_line(text: str, write: Write) -> None:
    path = write(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n{text},1,1\n")
    _refused(path, "TIMESTAMP", line=3)


def test_azure_leap_days_and_epoch() -> None:
    assert timestamp_ns("1970-01-01 00:00:00") == 0
    assert timestamp_ns("1970-01-02T00:00:00.000000001Z") == 86_400 * 10**9 + 1
    assert timestamp_ns("2024-02-29 00:00:00-01:30") - timestamp_ns("2024-02-28 00:00:00Z") == 25.5 * 3600 * 10**9


def test_m51_mooncake_blocks_and_milliseconds() -> None:
    """`hash_ids` of 512-token blocks, milliseconds, ids beyond 32 bits kept apart."""
    workload = from_trace(FIXTURES / "mooncake.jsonl")
    assert [r.input_tokens for r in workload.requests] == [1300, 812, 1536, 512, 600]
    assert [r.arrival_s for r in workload.requests] == [0.0, 3.0, 3.0, 4.5, 9.0]
    streams = {segment.stream for r in workload.requests for segment in r.prompt}
    assert len(streams) == len({5, 2**32 + 5, 7, 2**70 + 5, -1, -2})
    fronts = [prompt_ids(workload, r)[:512] for r in workload.requests]
    assert fronts[0] == fronts[1] == fronts[2] != fronts[3]
    assert fronts[4] not in fronts[:4]


@pytest.mark.parametrize(("length", "blocks"), [(513, 1), (512, 2), (1, 0), (1024, 3)])
def test_m51_wrong_number_of_hash_ids_names_the_line(length: int, blocks: int, write: Write) -> None:
    """`len(hash_ids) = ⌈input_length / 512⌉` is enforced, with line number."""
    good = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}
    bad = good | {"input_length": length, "hash_ids": list(range(blocks))}
    path = write(f"{json.dumps(good)}\n\n{json.dumps(bad)}\n")
    _refused(path, "hash_ids", str(length), line=3)


def test_m51_mooncake_real_file_against_a_naive_reader() -> None:
    path = shared_data("traces/mooncake/conversation_trace.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    workload = from_trace(path)
    assert len(workload.requests) == len(rows) == 12_031
    assert [r.input_tokens for r in workload.requests] == [row["input_length"] for row in rows]
    assert [r.output_tokens for r in workload.requests] == [row["output_length"] for row in rows]
    assert [r.arrival_s for r in workload.requests] == [row["timestamp"] / 1000 for row in rows]
    assert sum(len(r.prompt) for r in workload.requests) == sum(len(row["hash_ids"]) for row in rows)


def test_m52_bailian_keeps_sessions_and_shared_prefixes() -> None:
    """Bailian JSONL: 16-token `hash_ids`, `chat_id`, `parent_chat_id`: sessions and shared prefixes kept."""
    workload = from_trace(FIXTURES / "bailian.jsonl")
    first, lone, second = workload.requests
    assert (workload.report.format, workload.report.sharing_block_tokens) == ("bailian", 16)
    assert [r.arrival_s for r in workload.requests] == pytest.approx([0.0, 0.386, 14.136])
    assert (second.after, second.session_id) == (first.request_id, first.session_id)
    assert lone.after is None, "its parent is not in the file"
    assert lone.session_id != first.session_id
    a, b, c = (prompt_ids(workload, r) for r in workload.requests)
    assert (len(a), len(b), len(c)) == (40, 20, 64)
    assert a[:32] == c[:32]
    assert a[32:] != c[32:40]
    assert a[:16] == b[:16]
    assert workload.report.dropped == {"follows a dropped request": 1, "zero output tokens": 1}


def test_m52_bailian_wrong_rows_name_the_line(write: Write) -> None:
    row: dict[str, Any] = {"chat_id": 1, "timestamp": 1.0, "input_length": 20, "output_length": 2, "hash_ids": [1, 2]}
    for change, word in (({"chat_id": "x"}, "chat_id"), ({"hash_ids": [1]}, "hash_ids"), ({"timestamp": None}, "time")):
        _refused(write(json.dumps(row) + "\n" + json.dumps(row | {"chat_id": 2} | change) + "\n"), word, line=2)


@pytest.mark.parametrize(
    ("name", "lengths"), [("v1", [(472, 18), (1087, 230)]), ("v3", [(472, 18), (100, 7), (520, 40)])]
)
def test_m53_burstgpt_of_both_releases_is_read_by_column_names(name: str, lengths: list[tuple[int, int]]) -> None:
    """BurstGPT v1 (6 columns) and v3 (8 columns, two inserted): columns by name; zero tokens dropped by reason."""
    workload = from_trace(FIXTURES / f"burstgpt_{name}.csv")
    assert workload.report.format == "burstgpt"
    assert [(r.input_tokens, r.output_tokens) for r in workload.requests] == lengths
    assert sum(workload.report.dropped.values()) == 1
    assert workload.report.rows_read == len(lengths) + 1


def test_m53_burstgpt_sessions_are_kept_and_arrive_at_their_own_times() -> None:
    workload = from_trace(FIXTURES / "burstgpt_v3.csv")
    assert [r.arrival_s for r in workload.requests] == [0.0, 1.75, 8.5]
    assert [r.session_id for r in workload.requests] == [0, None, 0]
    assert all(r.after is None for r in workload.requests)


def test_m54_vidur_lengths_with_arrivals_from_the_suite() -> None:
    """`num_prefill_tokens, num_decode_tokens` in any order; arrivals come from the suite."""
    path = FIXTURES / "vidur.csv"
    workload = from_trace(path, arrival={"kind": "poisson", "rate": 1})
    assert [(r.input_tokens, r.output_tokens) for r in workload.requests] == [(3772, 54), (3, 2)]
    assert workload.report.dropped == {"negative tokens": 1}
    assert 0 == workload.requests[0].arrival_s < workload.requests[1].arrival_s
    _refused(path, "does not record when", "all-at-once")


def test_m54_vidur_arrivals_are_used_where_the_file_has_them() -> None:
    workload = from_trace(FIXTURES / "vidur_arrived.csv")
    assert [(r.arrival_s, r.input_tokens) for r in workload.requests] == [(0.0, 10), (0.75, 30), (2.25, 20)]
    at_once = from_trace(FIXTURES / "vidur_arrived.csv", arrival={"kind": "all-at-once"})
    assert [(r.arrival_s, r.input_tokens) for r in at_once.requests] == [(0.0, 10), (0.0, 30), (0.0, 20)]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("arxiv/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", 28_257),
        ("sharegpt8k/sharegpt_8k_filtered_stats_llama2_tokenizer.csv", 30_731),
    ],
)
def test_m54_vidur_real_files_against_a_naive_reader(name: str, count: int) -> None:
    path = shared_data(f"traces/{name}")
    with path.open(newline="") as stream:
        rows = [(int(row["num_prefill_tokens"]), int(row["num_decode_tokens"])) for row in csv.DictReader(stream)]
    workload = from_trace(path, arrival={"kind": "all-at-once"})
    assert len(rows) == count
    assert [(r.input_tokens, r.output_tokens) for r in workload.requests] == rows


def test_own_format_keeps_sessions_salts_and_shared_blocks() -> None:
    workload = from_trace(FIXTURES / "own.jsonl", output_tokens=9)
    lone, first, second, last = workload.requests
    assert [r.arrival_s for r in workload.requests] == [0.0, 1.5, 1.5, 3.0]
    assert (second.after, second.think_time_s, second.session_id, second.salt) == (1, 2.5, 0, "tenant <b>")
    assert (lone.after, lone.session_id, lone.salt, lone.output_tokens) == (None, None, None, 9)
    assert workload.report.drawn_outputs == 1
    assert workload.report.dropped == {"follows a dropped request": 1, "zero input tokens": 1}
    assert prompt_ids(workload, second)[:40] == prompt_ids(workload, first)
    assert prompt_ids(workload, last) == prompt_ids(workload, first)[:16]
    assert workload.report.sharing_block_tokens == 16


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([{"input_tokens": 3, "after": "x"}], "no row above"),
        ([{"input_tokens": 3, "after": 0}], "no row above"),
        ([{"input_tokens": 3, "request_id": 1}, {"input_tokens": 3}], "taken"),
        ([{"input_tokens": 3, "hash_ids": [1]}], "block_tokens"),
        ([{"input_tokens": 3, "hash_ids": [1], "block_tokens": 0}], "block_tokens"),
        ([{"input_tokens": 3, "hash_ids": [1.5], "block_tokens": 4}], "integers"),
        ([{"input_tokens": 3, "hash_ids": [True], "block_tokens": 4}], "integers"),
        ([{"input_tokens": 3, "hash_ids": [1], "block_tokens": b} for b in (4, 8)], "above"),
        ([{"input_tokens": 3, "salt": 4}], "salt"),
        ([{"input_tokens": 3, "priority": 1.5}], "priority"),
        ([{"input_tokens": 3, "priority": 10**9}], "priority"),
        ([{"input_tokens": 3, "session_id": [1]}], "session_id"),
        ([{"input_tokens": 3, "think_time_s": -1}], "think_time_s"),
        ([{"input_tokens": 3, "arrival_s": float("nan")}], "arrival_s"),
        ([{"input_tokens": 3, "arrival_s": float("inf")}], "arrival_s"),
        ([{"input_tokens": 3, "arrival_s": "soon"}], "arrival_s"),
        ([{"input_tokens": 3, "arrival_s": True}], "arrival_s"),
        ([{"input_tokens": 3, "arrival_s": 1e300}], "century"),
        ([{"input_tokens": 3, "arrival_s": 10**400}], "century"),
        ([{"input_tokens": True}], "token count"),
        ([{"input_tokens": 3.5}], "token count"),
        ([{"input_tokens": 1e300}], "more tokens"),
        ([{"input_tokens": 2**31}], "more tokens"),
        ([{"input_tokens": 10**4000}], "more tokens"),
        ([{"input_tokens": "3"}], "token count"),
    ],
)
def test_own_format_malformed_rows_name_the_line(rows: list[dict[str, Any]], word: str, write: Write) -> None:
    _refused(write("".join(json.dumps(row) + "\n" for row in rows)), word, line=len(rows))


@pytest.mark.parametrize("line", ["[1]", "{", "{}", "nothing", "1" * 5000, "[" * 100_000, '{"input_tokens": 3}}'])
def test_lines_that_are_no_objects_name_the_line(line: str, write: Write) -> None:
    _refused(write(f'{{"input_tokens": 3, "arrival_s": 0}}\n{line}\n'), line=2)


@pytest.mark.parametrize("cell", ["", "nan", "inf", "1.5", "1e3", "0x10", "1_000", "١٢", "9" * 30, "9" * 5000, "1,1"])
def test_cells_that_are_no_token_counts_name_the_line(cell: str, write: Write) -> None:
    _refused(write(f"num_prefill_tokens,num_decode_tokens\n1,1\n{cell},1\n"), line=3, arrival={"kind": "all-at-once"})


def test_whole_numbers_written_as_decimals_are_counts(write: Write) -> None:
    path = write("num_prefill_tokens,num_decode_tokens\n12.0, 3.\n+4,0005\n")
    workload = from_trace(path, arrival={"kind": "all-at-once"})
    assert [(r.input_tokens, r.output_tokens) for r in workload.requests] == [(12, 3), (4, 5)]


@pytest.mark.parametrize("name", ["azure2023.csv", "azure2024.csv", "mooncake.jsonl", "vidur.csv", "own.jsonl"])
def test_m56_every_row_is_accounted_for(name: str) -> None:
    """Rows read = rows kept + rows dropped by reason; sha256 of the file; the file is never changed."""
    path = FIXTURES / name
    report = from_trace(path, arrival={"kind": "all-at-once"}).report
    assert report.rows_read == report.rows_kept + sum(report.dropped.values())
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    lines = [line for line in path.read_text().splitlines() if line]
    assert report.rows_read == len(lines) - (1 if name.endswith(".csv") else 0)
    assert report.format == {"azure2023": "azure", "azure2024": "azure", "own": "jsonl"}.get(path.stem, path.stem)


def test_m56_missing_columns_are_named_and_unknown_ones_ignored(write: Write) -> None:
    """Column order irrelevant; unknown columns ignored, missing ones named."""
    _refused(write("TIMESTAMP,Tokens\n"), "ContextTokens, GeneratedTokens", "'Tokens'", line=1)
    _refused(write("num_prefill_tokens,other\n"), "num_decode_tokens", line=1)
    _refused(write("num_prefill_tokens,num_decode_tokens,num_decode_tokens\n"), "more than once", line=1)
    _refused(write('{"timestamp": 1, "input_length": 5, "hash_ids": [1]}'), "output_length", line=1)
    _refused(write('{"input_length": 5, "output_length": 5, "hash_ids": [1]}'), "timestamp", line=1)
    path = write('x,"num_decode_tokens", num_prefill_tokens \n"a\nb",2,3\n')
    assert from_trace(path, arrival={"kind": "all-at-once"}).requests[0].input_tokens == 3


@pytest.mark.parametrize("row", ["1", "1,2,3"])
def test_m56_rows_of_another_width_name_the_line(row: str, write: Write) -> None:
    _refused(write(f"num_prefill_tokens,num_decode_tokens\n5,5\n\n{row}\n"), "fields", line=4)


def test_m58_partial_block_holds_the_tokens_of_the_fuller_block() -> None:
    """A partial last block that another request has in full: the shared tokens are the same tokens."""
    for scale in (1, 1 / 16):
        workload = from_trace(FIXTURES / "mooncake.jsonl", scale_tokens=scale)
        by_length = sorted(workload.requests[:3], key=lambda r: r.input_tokens)
        ids = [prompt_ids(workload, request) for request in by_length]
        assert ids[0] == ids[1][: len(ids[0])] == ids[2][: len(ids[0])]
        assert ids[1] == ids[2][: len(ids[1])]


@pytest.mark.parametrize("scale", ["1/2", "1/16", "1/512", "3/4", 0.0625])
def test_scaling_keeps_lengths_blocks_and_sharing_together(scale: str | float) -> None:
    from fractions import Fraction

    ratio = Fraction(scale) if isinstance(scale, str) else Fraction(1, 16)
    whole, small = (from_trace(FIXTURES / "mooncake.jsonl", scale_tokens=s) for s in (1, scale))
    assert small.report.scale_tokens == str(ratio)
    for before, after in zip(whole.requests, small.requests, strict=True):
        assert after.input_tokens == -(-before.input_tokens * ratio // 1)
        assert after.output_tokens == -(-before.output_tokens * ratio // 1) >= 1
        assert [s.stream for s in after.prompt] == [s.stream for s in before.prompt]
        assert after.input_tokens == sum(s.length for s in after.prompt)


def test_scaling_that_cuts_blocks_in_fractions_is_refused_with_a_near_ratio() -> None:
    _refused(FIXTURES / "mooncake.jsonl", "1/3", "whole tokens", scale_tokens="1/3")
    assert from_trace(FIXTURES / "azure2023.csv", scale_tokens="1/3").requests[0].input_tokens == 125


@pytest.mark.parametrize("tokens", range(1, 200))
def test_scaling_by_a_decimal_has_no_rounding_faults(tokens: int, write: Write) -> None:
    path = write(f"num_prefill_tokens,num_decode_tokens\n{tokens},1\n")
    workload = from_trace(path, scale_tokens=0.1, arrival={"kind": "all-at-once"})
    assert workload.requests[0].input_tokens == -(-tokens // 10)


def test_clipping_keeps_the_front_and_is_counted() -> None:
    workload = from_trace(FIXTURES / "mooncake.jsonl", max_input_tokens=600, max_output_tokens=5)
    assert (workload.report.clipped_inputs, workload.report.clipped_outputs) == (3, 2)
    whole = from_trace(FIXTURES / "mooncake.jsonl")
    for clipped, full in zip(workload.requests, whole.requests, strict=True):
        assert clipped.input_tokens == min(600, full.input_tokens)
        assert prompt_ids(workload, clipped) == prompt_ids(whole, full)[:600]


def test_limit_takes_the_first_usable_rows_and_their_tokens_do_not_change() -> None:
    all_of_it, two = (from_trace(FIXTURES / "azure2023.csv", limit=limit) for limit in (None, 2))
    assert two.requests == all_of_it.requests[:2]
    assert (two.report.rows_read, two.report.rows_kept) == (2, 2)
    assert "stopped after the first 2 usable rows" in two.report.notes


def test_scale_time_stretches_recorded_arrivals() -> None:
    twice = from_trace(FIXTURES / "mooncake.jsonl", scale_time=0.5)
    assert [r.arrival_s for r in twice.requests] == [0.0, 1.5, 1.5, 2.25, 4.5]
    assert twice.report.scale_time == 0.5
    _refused(FIXTURES / "mooncake.jsonl", "centuries", scale_time=1e300)


def test_poisson_replaces_recorded_times_but_keeps_their_order() -> None:
    workload = from_trace(FIXTURES / "azure2024.csv", arrival={"kind": "poisson", "rate": 100})
    assert [r.input_tokens for r in workload.requests] == [7, 374, 12]
    assert [r.arrival_s for r in workload.requests] == sorted(r.arrival_s for r in workload.requests)


@pytest.mark.parametrize("name", ["azure2023.csv", "mooncake.jsonl", "own.jsonl"])
def test_gzip_is_the_same_trace(name: str, write: Write) -> None:
    packed = gzip.compress((FIXTURES / name).read_bytes())
    workload, plain = from_trace(write(packed)), from_trace(FIXTURES / name)
    assert workload.requests == plain.requests
    assert workload.digest == plain.digest
    assert workload.report.sha256 == hashlib.sha256(packed).hexdigest()


@pytest.mark.parametrize("cut", [3, 10, 40, -1])
def test_broken_gzip_is_a_clear_error(cut: int, write: Write) -> None:
    _refused(write(gzip.compress((FIXTURES / "azure2023.csv").read_bytes())[:cut]), "gzip")


def test_unreadable_files_are_told_apart(tmp_path: Path, write: Write) -> None:
    _refused(tmp_path / "absent.csv", "no trace")
    _refused(tmp_path, "folder")
    _refused("/dev/null", "regular file")
    _refused(write(""), "empty")
    _refused(write("\n \n"), "empty")
    _refused(write("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"), "nothing under the header")
    _refused(write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,0,1\n"), "zero input tokens")
    _refused(write("hello,world\n1,2\n"), "no known CSV trace has", line=1)
    _refused(write("num_prefill_tokens;num_decode_tokens\n1;2\n"), "separated by semicolons", line=1)
    _refused(write('"ContextTokens"\t"GeneratedTokens"\n1\t2\n'), "separated by tabs", line=1)
    _refused(write("hello;world\n1;2\n"), "no known CSV trace has", line=1)
    _refused(write("[]\n"), "object", line=1)
    _refused(write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,\xe9,1\n".encode("latin-1")), line=2)
    _refused(write("TIMESTAMP,ContextTokens,GeneratedTokens\n".encode("utf-16")), "UTF-8", line=1)


def test_byte_order_mark_is_ignored(write: Write) -> None:
    path = write(b"\xef\xbb\xbf" + (FIXTURES / "azure2023.csv").read_bytes())
    assert from_trace(path).requests == from_trace(FIXTURES / "azure2023.csv").requests


def test_a_named_format_is_believed(write: Write) -> None:
    _refused(FIXTURES / "azure2023.csv", "not JSON", line=1, format="mooncake")
    _refused(FIXTURES / "mooncake.jsonl", "lacks", line=1, format="vidur")
    assert read_trace(FIXTURES / "own.jsonl", "jsonl").format == "jsonl"


def test_trace_without_a_file_is_refused() -> None:
    from kvbench.spec.workload import WorkloadSettings
    from kvbench.workload.build import build_workload

    with pytest.raises(UsageError, match="needs a trace"):
        build_workload(WorkloadSettings.model_construct(**(WorkloadSettings().model_dump() | {"source": "trace"})))


def test_forced_outputs_of_a_trace_are_private() -> None:
    workload = from_trace(FIXTURES / "mooncake.jsonl")
    outputs = [tuple(token_ids(r.output or (), 0, 10**9).tolist()) for r in workload.requests]
    assert len(set(outputs)) == len(outputs)
    assert [len(output) for output in outputs] == [r.output_tokens for r in workload.requests]


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:47,12",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,nan,44\n",
        "TIMESTAMP,ContextTokens\n1,2\n",
        '{"input_tokens": 5, "output_tokens": tr',
        '{"input_tokens": 5, "output_tokens": true}\n',
    ],
)
def test_every_malformed_row_comes_with_a_way_out(write: Write, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_trace(write(text))
    assert "docs/workloads.md" in (caught.value.hint or "")


def test_notes_say_how_many_rows_were_dropped_and_why(write: Write) -> None:
    rows = [f'{{"input_tokens": {tokens}, "output_tokens": 2, "arrival_s": 0}}\n' for tokens in (0, -1, 0, 5)]
    notes = from_trace(write("".join(rows))).report.notes
    assert {"2 rows were dropped: zero input tokens", "1 rows were dropped: negative tokens"} <= set(notes)


def test_own_format_keeps_priorities_and_draws_the_missing_ones_by_conversation(tmp_path: Path) -> None:
    """A row's own priority wins; the others get the class drawn for the row with which their conversation begins."""
    file = tmp_path / "own.jsonl"
    rows: list[dict[str, Any]] = [{"input_tokens": 3, "arrival_s": at, "priority": at - 1} for at in range(3)]
    rows += [{"input_tokens": 3, "arrival_s": 9 + at} | ({"after": at + 2} if at % 4 else {}) for at in range(400)]
    file.write_text("\n".join(map(json.dumps, rows)))
    plain, drawn = from_trace(file), from_trace(file, priorities=[1, 1])
    assert [request.priority for request in plain.requests][:4] == [-1, 0, 1, 0]
    priorities = [request.priority for request in drawn.requests]
    assert priorities[:3] == [-1, 0, 1]
    conversations = [priorities[at : at + 4] for at in range(3, 403, 4)]
    assert all(len(set(turns)) == 1 for turns in conversations)
    assert {turns[0] for turns in conversations} == {0, 1}
