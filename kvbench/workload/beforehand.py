"""What is served before the measured window, so that the prefix cache is in its declared state.

`cold`: nothing. `primed`: the fronts that different conversations share, each once. `steady`: the workload itself, or
its leading share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvbench.workload.request import Request, Segment
from kvbench.workload.sharing import PrefixTree, runs
from kvbench.workload.tokens import foreign_stream

if TYPE_CHECKING:
    from kvbench.spec.suite import CacheState
    from kvbench.workload.types import Workload

_FIRST_STREAM = 1 << 30
"""Of the one token that each of them produces: streams that warm-up does not use"""


def requests_before(workload: Workload, state: CacheState, steady_share: float = 1.0) -> tuple[Request, ...]:
    """The requests to serve first; their prompts are all that a hit beyond the workload's own may come from."""
    if state == "primed":
        return tuple(shared_fronts(workload.requests))
    if state == "steady":
        return workload.requests[: math.ceil(steady_share * len(workload.requests))]
    return ()


def shared_fronts(requests: Sequence[Request]) -> list[Request]:
    """One request for each longest front that two conversations (requests that follow no other) have in common, none
    of which is the front of another one; all at once, each with one output token."""
    firsts = [request for request in requests if request.after is None]
    forward, backward = _matches(firsts), _matches(firsts[::-1])[::-1]
    longest = np.maximum(forward, backward).tolist()
    fronts = {(r.salt, _cut(r.prompt, n)): n for r, n in zip(firsts, longest, strict=True) if n}
    known = PrefixTree()
    found: list[Request] = []
    for (salt, front), length in sorted(fronts.items(), key=lambda item: -item[1]):
        if known.match(salt, list(front)) < length:
            known.insert(salt, list(front))
            found.append(_request(len(found), salt, front, length, is_forced=firsts[0].output is not None))
    return found


def _matches(requests: Sequence[Request]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """`[n]` longest front of each prompt that a prompt before it in the list begins with."""
    tree = PrefixTree()
    found = np.zeros(len(requests), dtype=np.int64)
    for number, request in enumerate(requests):
        prompt = runs(request.prompt)
        found[number] = tree.match(request.salt, prompt)
        tree.insert(request.salt, prompt)
    return found


def _cut(prompt: Sequence[Segment], length: int) -> tuple[Segment, ...]:
    """The first `length` tokens, as runs."""
    kept: list[Segment] = []
    for run in runs(prompt):
        if length > 0:
            kept.append(Segment(run.stream, run.start, min(run.length, length)))
        length -= run.length
    return tuple(kept)


def _request(number: int, salt: str | None, front: tuple[Segment, ...], length: int, *, is_forced: bool) -> Request:
    output = (Segment(foreign_stream(_FIRST_STREAM + number), 0, 1),) if is_forced else None
    return Request(number, length, 1, front, output=output, salt=salt)
