"""Small records and plans with known contents, for the tests of store, report and metrics."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from kvbench.engine.telemetry import RequestRecord, StepRecord
from kvbench.store.parts import Sample
from kvbench.store.run_folder import RunFolder
from kvbench.workload.request import Request, Segment


def case_id(number: int) -> str:
    return f"{number:012x}"


def request_record(number: int = 0, **changes: Any) -> RequestRecord:
    """10 input and 4 output tokens: queued 0.1 s, first token after 0.3 s, then a gap of 0.1 s each."""
    values: dict[str, Any] = {
        "request_id": number, "arrival_s": 0.5 * number, "input_tokens": 10, "output_tokens": 4, "cached_tokens": 0,
        "allocated_blocks": 2, "queue_time_s": 0.1, "prefill_time_s": 0.2, "decode_time_s": 0.3, "ttft_s": 0.3,
        "tpot_s": 0.1, "e2e_s": 0.6, "preemptions": 0, "finish_reason": "length", "itl_s": [0.1, 0.1, 0.1],
    }  # fmt: skip
    return RequestRecord(**{**values, **changes})


def rejected_record(number: int = 0) -> RequestRecord:
    nothing = dict.fromkeys(("queue_time_s", "prefill_time_s", "decode_time_s", "ttft_s", "tpot_s", "e2e_s"))
    return request_record(number, output_tokens=0, itl_s=[], finish_reason="rejected", **nothing)


def step_record(number: int = 0, **changes: Any) -> StepRecord:
    values = dict.fromkeys((f.name for f in fields(StepRecord)), 0)
    values |= {"step": number, "t_s": 0.1 * number, "duration_s": 0.1, "promotion_stall_s": 0.0, "batch_size": 1}
    values |= {"kv_capacity_bytes": 1600, "kv_blocks_total": 16, "kv_blocks_free": 8, "kv_bytes_used": 800}
    return StepRecord(**{**values, **changes})


def request(number: int = 0) -> Request:
    return Request(number, 10, 4, (Segment(7, 0, 6), Segment(2**63 + number, 0, 4)), 0.5 * number, after=None)


def plan(cases: int = 2, repetitions: int = 2, fingerprint: str = "f", **changes: Any) -> dict[str, Any]:
    """Cases with one axis, `block_size` = 8, 16, 24 …"""
    listed = [
        {"case_id": case_id(n), "kind": "engine", "fingerprint": fingerprint, "axes": {"block_size": 8 * (n + 1)}}
        for n in range(cases)
    ]
    suite = {"name": "small", "title": "A small one", "text": "name = 'small'", "digest": "d" * 64}
    return {"suite": suite, "repetitions": repetitions, "cases": listed, **changes}


def sample(case: int = 0, number: int = 0, fingerprint: str = "f", **changes: Any) -> Sample:
    """An ok engine sample with two requests and three steps; `changes` go into the row."""
    row = {
        "status": "ok", "kind": "engine", "clock": "wall", "device": "cpu", "model": "tiny", "cache_dtype": "fp32",
        "attention_mode": "gqa", "block_size": 8 * (case + 1), "output_tokens_per_s": 100.0 + case + number / 10,
    }  # fmt: skip
    requests = [request_record(n) for n in range(2)]
    steps = [step_record(n) for n in range(3)]
    return Sample(case_id(case), number, fingerprint, {**row, **changes}, requests, steps, workload_digest="w" * 64)


def run_folder(
    out: Path, cases: int = 2, repetitions: int = 2, *, is_sealed: bool = False, **plan_changes: Any
) -> Path:
    """A complete run; its folder."""
    with RunFolder.create(out, plan(cases, repetitions, **plan_changes)) as folder:
        folder.write_workload("w" * 64, [request(n) for n in range(2)])
        for case, number in [(c, n) for n in range(repetitions) for c in range(cases)]:
            folder.add(sample(case, number))
        if is_sealed:
            folder.seal()
        return folder.path
