"""Requests to warm up on: lengths like the workload's, tokens, prefixes and sessions that are nobody's (M21)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.workload.request import Request, Segment
from kvbench.workload.tokens import foreign_stream

if TYPE_CHECKING:
    from kvbench.workload.types import Workload

_STREAMS_PER_ROUND = 1 << 24


def warmup_requests(
    workload: Workload, count: int, *, turn: int = 0, max_output_tokens: int | None = None
) -> list[Request]:
    """`count` requests, all at once, with ids that follow the workload's.

    Their lengths are those of requests spread evenly over the workload's prompt lengths, shortest and longest
    included, so that every kernel variant is touched. Each `turn` has its own tokens. Where the workload shares
    prefixes, so do they: the front half of each prompt comes from one stream.
    """
    ranked = sorted(workload.requests, key=lambda request: (request.input_tokens, request.output_tokens))
    if not ranked or count <= 0:
        return []
    chosen = np.linspace(0, len(ranked) - 1, count) if count > 1 else np.array([(len(ranked) - 1) / 2])
    first_id = max(request.request_id for request in ranked) + 1
    shares = workload.report.sharing != "none"
    return [
        _foreign(ranked[int(at)], first_id + number, turn * _STREAMS_PER_ROUND, number + 1, shares, max_output_tokens)
        for number, at in enumerate(np.rint(chosen).astype(np.int64))
    ]


def _foreign(
    model: Request, request_id: int, first_stream: int, number: int, shares: bool, max_output_tokens: int | None
) -> Request:
    common = model.input_tokens // 2 if shares else 0
    own = foreign_stream(first_stream + number)
    prompt = (Segment(foreign_stream(first_stream), 0, common), Segment(own, 0, model.input_tokens - common))
    outputs = min(model.output_tokens, max_output_tokens or model.output_tokens)
    is_forced = model.output is not None
    return Request(
        request_id=request_id,
        input_tokens=model.input_tokens,
        output_tokens=outputs,
        prompt=tuple(segment for segment in prompt if segment.length),
        output=(Segment(own, model.input_tokens - common, outputs),) if is_forced else None,
    )
