"""The digest of a workload: the same requests give the same 64 hex digits on every machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import chain

import numpy as np

from kvbench.workload.request import Request, Segment

_FORM = b"kvbench workload 1\n"


def workload_digest(requests: Sequence[Request], seed: int, clients: int | None = None) -> str:
    """sha256 over the seed, every field, as little-endian columns (−1 stands for None), and a closed loop's clients."""
    count = len(requests)
    digest = sha256(_FORM + json.dumps([seed, count]).encode())
    for column in (
        (r.request_id for r in requests),
        (r.input_tokens for r in requests),
        (r.output_tokens for r in requests),
        (-1 if r.after is None else r.after for r in requests),
        (-1 if r.session_id is None else r.session_id for r in requests),
        (len(r.prompt) for r in requests),
        (-1 if r.output is None else len(r.output) for r in requests),
    ):
        digest.update(np.fromiter(column, "<i8", count).tobytes())
    for times in ((r.arrival_s for r in requests), (r.think_time_s for r in requests)):
        digest.update(np.fromiter(times, "<f8", count).tobytes())
    digest.update(_segment_bytes(chain.from_iterable(r.prompt for r in requests)))
    digest.update(_segment_bytes(chain.from_iterable(r.output or () for r in requests)))
    digest.update(json.dumps([(r.request_id, r.salt) for r in requests if r.salt is not None]).encode())
    if clients is not None:
        digest.update(json.dumps({"clients": clients}).encode())
    if any(r.priority for r in requests):
        digest.update(json.dumps([(r.request_id, r.priority) for r in requests if r.priority]).encode())
    return digest.hexdigest()


def _segment_bytes(segments: Iterable[Segment]) -> bytes:
    numbers = chain.from_iterable((s.stream, s.start, s.length) for s in segments)
    return np.fromiter(numbers, "<i8").tobytes()
