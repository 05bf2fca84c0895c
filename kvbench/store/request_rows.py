"""Requests as rows of `workload.parquet`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvbench.workload.request import Request, Segment


def workload_row(request: Request, run_id: str, digest: str) -> dict[str, Any]:
    """A request of the workload with this digest."""
    return {
        "run_id": run_id,
        "workload_digest": digest,
        "request_id": request.request_id,
        "arrival_s": request.arrival_s,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
        "prompt": [_segment_row(s) for s in request.prompt],
        "output": None if request.output is None else [_segment_row(s) for s in request.output],
        "after": request.after,
        "think_time_s": request.think_time_s,
        "session_id": request.session_id,
        "salt": request.salt,
        "priority": request.priority,
    }


def request_of(row: Mapping[str, Any]) -> Request:
    """The request of a row; one that an older kvbench wrote has no priority."""
    prompt = tuple(Segment(**s) for s in row["prompt"])
    output = None if row["output"] is None else tuple(Segment(**s) for s in row["output"])
    kept = {k: v for k, v in row.items() if k not in ("run_id", "workload_digest", "prompt", "output")}
    return Request(prompt=prompt, output=output, **{**kept, "priority": kept.get("priority") or 0})


def _segment_row(segment: Segment) -> dict[str, int]:
    return {"stream": segment.stream, "start": segment.start, "length": segment.length}
