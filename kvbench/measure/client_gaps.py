"""Time that requests spent waiting for the client loop, not for the engine. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvbench.engine.telemetry import RequestRecord, StepRecord


def client_seconds(requests: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> float:
    """Sum of the gaps between one step and the next in which some request was in the system: it had arrived before the
    gap began, and ended after."""
    begins = np.array([step.t_s for step in steps], dtype=np.float64)
    ends = begins + np.array([step.duration_s for step in steps], dtype=np.float64)
    whole = [(r.arrival_s, r.arrival_s + r.e2e_s) for r in requests if r.e2e_s is not None]
    if len(steps) < 2 or not whole:
        return 0.0
    arrivals, leavings = (np.sort(np.array(side)) for side in zip(*whole, strict=True))
    gap_starts, gaps = ends[:-1], np.maximum(0.0, begins[1:] - ends[:-1])
    inside = np.searchsorted(arrivals, gap_starts, "right") - np.searchsorted(leavings, gap_starts, "right")
    return float(gaps[inside > 0].sum())
