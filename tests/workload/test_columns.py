"""The columns of a CSV trace are those that the row-by-row readers give, or are left to them."""

from __future__ import annotations

import gzip
import itertools
import random
import re
from pathlib import Path

import pytest

from kvbench.errors import UsageError
from kvbench.workload.importers.columns import Columns, read_columns
from kvbench.workload.importers.read import read_trace
from tests.workload.helpers import FIXTURES

_PLAIN = ["azure2023.csv", "azure2024.csv", "burstgpt_v1.csv", "burstgpt_v3.csv", "vidur.csv", "vidur_arrived.csv"]
_CELLS = [
    *("0", "-3", "7", " 12", "12 ", "+5", "374.0", "1e3", "0x10", "nan", "inf", "", "NA", "null", "1_0", "007", '"5"'),
    *("2147483648", "9" * 20, "1.5", "\t4", "5\x0b", "é", "2023-02-30 00:00:00", "2024-05-10", "0.1", "-0.0", "1e300"),
    *("2024-05-10 00:00:00Z", "2024-05-10T10:00:00.5", "2024-05-10 00:00:00+01:30", "2024-05-10 00:00:00 +0100"),
    *("1700-01-01 00:00:00", "9999-12-31 23:59:59", "2024-05-10 00:00", "2024-05-10 00:00:60"),
]
_LINES = ["", "  ", ",", ",,", "1,2,3,4", "\r", '"', "1", "num_prefill_tokens,num_decode_tokens"]
_HEADS = {
    "vidur": ("num_prefill_tokens,num_decode_tokens,arrived_at", ("12", "3", "0.25")),
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens", ("2023-11-16 18:15:46.6805900", "12", "3")),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        ("5", "A", "4", "3", "7", "L"),
    ),
}


def _same_as_rows(path: Path, limit: int | None = None) -> bool:
    """Whether the columns were read; what was read is checked against the rows."""
    try:
        found = read_columns(path, limit=limit)
    except UsageError as error:
        with pytest.raises(UsageError, match=re.escape(error.message)):
            read_trace(path, limit=limit)
        return False
    if found is None:
        return False
    trace = read_trace(path, limit=limit)
    assert found.inputs.tolist() == [row.input_tokens for row in trace.rows]
    assert found.outputs.tolist() == [row.output_tokens for row in trace.rows]
    arrivals = [None] * len(trace.rows) if found.arrivals_ns is None else found.arrivals_ns.tolist()
    assert arrivals == [row.arrival_ns for row in trace.rows]
    assert _ids(found) == [row.hash_ids for row in trace.rows]
    assert (found.rows_read, found.dropped) == (trace.rows_read, trace.dropped)
    assert (found.format, found.sha256) == (trace.format, trace.sha256)
    return True


def _ids(found: Columns) -> list[list[int] | None]:
    if found.blocks is None:
        return [None] * len(found.inputs)
    ids, starts = found.blocks.ids.tolist(), found.blocks.starts.tolist()
    return [ids[start:end] for start, end in itertools.pairwise(starts)]


@pytest.mark.parametrize("name", _PLAIN)
def test_ordinary_csv_traces_are_read_as_columns(name: str) -> None:
    assert _same_as_rows(FIXTURES / name)
    assert _same_as_rows(FIXTURES / name, limit=2)


@pytest.mark.parametrize("name", _PLAIN)
def test_gzip_byte_order_marks_and_windows_line_ends_are_ordinary(name: str, tmp_path: Path) -> None:
    text = (FIXTURES / name).read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text))
    assert _same_as_rows(tmp_path / "t.csv.gz")


@pytest.mark.parametrize("name", _HEADS)
def test_odd_cells_and_lines_are_read_alike_or_left_to_the_row_reader(name: str, tmp_path: Path) -> None:
    head, usual = _HEADS[name]
    rng = random.Random(f"columns-{name}")
    path, read = tmp_path / "t.csv", 0
    for _ in range(300):
        rows = [list(usual) for _ in range(rng.randint(1, 5))]
        for _ in range(rng.randint(0, 2)):
            row = rng.choice(rows)
            row[rng.randrange(len(row))] = rng.choice(_CELLS)
        lines = [head, *(",".join(row) for row in rows)]
        if rng.random() < 0.2:
            lines.insert(rng.randint(0, len(lines)), rng.choice(_LINES))
        path.write_text("\n".join(lines) + rng.choice(["", "\n", "\n\n"]), newline="")
        read += _same_as_rows(path, rng.choice([None, None, 1, 3]))
    assert read > 60


def test_zones_on_some_rows_only_are_left_to_the_row_reader(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-10 00:00:00,1,1", "2024-05-10 00:00:01+01:00,1,1"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    assert read_columns(tmp_path / "t.csv") is None


@pytest.mark.parametrize("name", ["bailian.jsonl", "own.jsonl"])
def test_traces_of_linked_requests_are_left_to_the_row_reader(name: str) -> None:
    assert read_columns(FIXTURES / name) is None


def test_an_ordinary_mooncake_trace_is_read_as_columns_and_one_with_ids_beyond_64_bits_is_not(tmp_path: Path) -> None:
    lines = (FIXTURES / "mooncake.jsonl").read_text().splitlines()
    assert read_columns(FIXTURES / "mooncake.jsonl") is None
    (tmp_path / "t.jsonl").write_text("\n\n".join(line for line in lines if "1180591620717411303429" not in line))
    assert _same_as_rows(tmp_path / "t.jsonl")
    assert _same_as_rows(tmp_path / "t.jsonl", limit=2)


def test_odd_json_lines_are_read_alike_or_left_to_the_row_reader(tmp_path: Path) -> None:
    usual = '{"timestamp": %s, "input_length": %s, "output_length": %s, "hash_ids": %s}'
    numbers = ["0", "7", "-3", "1.5", "5.0", "1e3", "null", "true", '"3"', "NaN", "Infinity", "-0", "1700000000123"]
    numbers += ["1700000000123.0", "9007199254740993", "2147483648", "9" * 20, "1e400", "[1]", "0.1", "12.345678901"]
    rng = random.Random("columns-json")
    path, read = tmp_path / "t.jsonl", 0
    for _ in range(400):
        rows = [[str(100 * n), "600", "3", f"[{rng.randrange(3)}, {n}]"] for n in range(rng.randint(1, 5))]
        for _ in range(rng.randint(0, 2)):
            row = rng.choice(rows)
            row[rng.randrange(3)] = rng.choice(numbers)
        if rng.random() < 0.2:
            rng.choice(rows)[3] = rng.choice(
                ["[]", "[1]", "[1, null]", "[1.0, 2]", "[1, 99999999999999999999]", "3", "null"]
            )
        lines = [usual % tuple(row) for row in rows]
        if rng.random() < 0.2:
            odd = [
                "",
                "  ",
                "[1]",
                lines[0] + lines[0],
                lines[0][:-1],
                "{}",
                lines[0] + " x",
                lines[0].replace("600", "6e2"),
            ]
            odd += [
                lines[0][:-1] + ', "chat_id": 1}',
                lines[0][:-1] + ', "input_length": 5}',
                "\u00e9",
                lines[0] + "\r",
            ]
            lines.insert(rng.randint(1, len(lines)), rng.choice(odd))
        path.write_text("\n".join(lines) + rng.choice(["", "\n", "\n\n"]), newline="")
        read += _same_as_rows(path, rng.choice([None, None, 1, 3]))
    assert read > 80
