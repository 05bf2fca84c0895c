"""Mutated traces: every one is read or refused with a `KvbenchError`, and the account always adds up."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from kvbench.errors import KvbenchError
from kvbench.workload.build import build_workload
from kvbench.workload.describe import describe
from kvbench.workload.render import FORMATS
from tests.workload.helpers import FIXTURES

_NAMES = ["azure2023.csv", "azure2024.csv", "mooncake.jsonl", "own.jsonl", "vidur.csv", "vidur_arrived.csv"]
_NASTY = [
    *(
        b"",
        b"\x00",
        b"\xff\xfe",
        b'"',
        b"'",
        b",",
        b"\n",
        b"\r",
        b"{",
        b"}",
        b"[",
        b"[[",
        b"null",
        b"true",
        b"-1",
        b"0",
    ),
    *(b"NaN", b"Infinity", b"1e999", b"-0.0", b"9" * 25, b"9" * 5000, b"1.5", b"\xe2\x80\xae", b"\\ud800", b"\x1b[31m"),
    *(
        b'"after": 0,',
        b'"request_id": 1,',
        b'"block_tokens": 3,',
        b'"hash_ids": [],',
        b"2023-02-30 00:00:00",
        b"a" * 200,
    ),
]


def _mutated(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at, end = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            data = data[:at] + rng.choice(_NASTY) + data[at:]
        elif kind == 1:
            data = data[:at] + rng.choice(_NASTY) + data[at + rng.randint(1, 12) :]
        elif kind == 2:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif kind == 3:
            data = data[: min(at, end)] + data[max(at, end) :]
        elif kind == 4:
            data = data[:at] + data[min(at, end) : max(at, end)] + data[at:]
        else:
            lines = data.splitlines(keepends=True)
            rng.shuffle(lines)
            data = b"".join(lines)
    return data


def _settings(rng: random.Random, path: Path) -> dict[str, object]:
    return {
        "source": "trace",
        "trace": str(path),
        "format": rng.choice([*["auto"] * 12, "azure", "mooncake", "vidur", "jsonl"]),
        "arrival": rng.choice([{"kind": "recorded"}, {"kind": "all-at-once"}, {"kind": "poisson", "rate": 1e-3}]),
        "scale_tokens": rng.choice([1, 1, 1, 0.5, 1 / 16, 1e-9, 0.3]),
        "scale_time": rng.choice([1, 1e-12, 1e12]),
        "limit": rng.choice([None, 1, 3]),
        "max_input_tokens": rng.choice([None, 1, 100]),
        "outputs": rng.choice(["forced", "sampled"]),
    }


@pytest.mark.parametrize("name", _NAMES)
def test_no_mutation_of_a_trace_ends_in_a_traceback(name: str, tmp_path: Path) -> None:
    from kvbench.spec.workload import WorkloadSettings

    original = (FIXTURES / name).read_bytes()
    path = tmp_path / name
    read = 0
    for seed in range(400):
        rng = random.Random(f"{name} {seed}")
        data = _mutated(original, rng)
        path.write_bytes(gzip.compress(data)[: rng.choice([None, -3])] if seed % 20 == 0 else data)
        settings = WorkloadSettings.model_validate(_settings(rng, path))
        try:
            workload = build_workload(settings, max_context=500)
        except KvbenchError:
            continue
        read += 1
        report = workload.report
        assert report.rows_read == report.rows_kept + sum(report.dropped.values())
        assert report.rows_kept == len(workload.requests) > 0
        for request in workload.requests:
            assert request.input_tokens == sum(segment.length for segment in request.prompt) >= 1
            assert request.output_tokens >= 1
            assert request.after is None or request.after < request.request_id
        for form in FORMATS.values():
            assert "\x1b" not in form([describe(workload, [16])])
    assert read > 10
