"""The part of a run in which the load is what it is meant to be: between ramp-up and drain. Torch-free.

It begins with the first step that serves at least 90 % of the median number of sequences, and ends when the last
request is first scheduled: from then on nobody new comes and the batch only drains. The median is over time in steps,
up to that end. Requests count that were first scheduled inside, whenever they end, so that long ones are not left out;
tokens count that came out inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.engine.telemetry import RequestRecord, StepRecord

FULL_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """`begin_s` < `end_s`, from the start of the workload; `requests` were first scheduled between them."""

    begin_s: float
    end_s: float
    requests: list[RequestRecord]
    output_tokens: int

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


def steady_window(finished: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> SteadyWindow | None:
    """None where the load never settles: one request, or all of them first scheduled at once."""
    scheduled = [r.arrival_s + r.queue_time_s for r in finished if r.queue_time_s is not None]
    if len(scheduled) < 2:
        return None
    end_s = max(scheduled)
    inside = [step for step in steps if step.t_s < end_s]
    active = np.array([step.active_sequences for step in inside], dtype=np.float64)
    duration = np.array([step.duration_s for step in inside], dtype=np.float64)
    if not len(active) or not duration.sum() > 0:
        return None
    full = np.flatnonzero(active >= FULL_SHARE * weighted_median(active, duration))
    begin_s = inside[int(full[0])].t_s
    if not begin_s < end_s:
        return None
    chosen = [r for r in finished if r.queue_time_s is not None and begin_s <= r.arrival_s + r.queue_time_s <= end_s]
    return SteadyWindow(begin_s, end_s, chosen, sum(_tokens_inside(r, begin_s, end_s) for r in finished))


def weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """The value that is not exceeded by half of the weight."""
    order = np.argsort(values, kind="stable")
    elapsed = np.cumsum(weights[order])
    middle = int(np.searchsorted(elapsed, elapsed[-1] / 2))
    return float(values[order][min(middle, len(order) - 1)])


def _tokens_inside(request: RequestRecord, begin_s: float, end_s: float) -> int:
    if request.ttft_s is None:
        return 0
    first = request.arrival_s + request.ttft_s
    last = request.arrival_s + request.e2e_s if request.e2e_s is not None else np.inf
    if first > end_s or last <= begin_s:
        return 0
    if begin_s < first and last <= end_s:
        return request.output_tokens
    times = first + np.concatenate([[0.0], np.cumsum(request.itl_s)])
    return int(((times > begin_s) & (times <= end_s)).sum())
