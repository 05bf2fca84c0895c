"""One side of a request, prompts or outputs, as equally likely or counted lengths; and two sides put together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvbench.analysis.advice.lengths import Floats, Ints
from kvbench.errors import UsageError
from kvbench.geometry.lengths import parse_lengths
from kvbench.workload.lengths import MAX_TOKENS

POINTS = 10_000
"""Rows that stand for a distribution"""
MOST_ROWS = 1_000_000
_GOLDEN = (5**0.5 - 1) / 2
_HINT = "write a token count such as 1500 or 8k (k = 1,024), lognormal(p50,p95), or the path of a histogram"


@dataclass(frozen=True, slots=True)
class Side:
    """Lengths `low … high` (both included, all equally likely) with the weight of each bin, shortest first.

    `requests` is the sum of whole counts, None for shares and for laws.
    """

    label: str
    low: Ints
    high: Ints
    weight: Floats
    requests: int | None = None
    notes: tuple[str, ...] = ()

    def quantiles(self, points: int) -> Ints:
        """The lengths at the mid-quantiles (i + ½) / points: `points` equally likely lengths, shortest first."""
        ends = np.cumsum(self.weight)
        at = (np.arange(points) + 0.5) * (ends[-1] / points)
        bins = np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1)
        inside = np.clip((at - (ends[bins] - self.weight[bins])) / self.weight[bins], 0.0, 1.0)
        width = self.high[bins] - self.low[bins] + 1
        return np.asarray(self.low[bins] + np.minimum((inside * width).astype(np.int64), width - 1))


def parse_side(text: str) -> Side:
    """`"1500"`, `"8k"` or `"lognormal(p50,p95)"`; `UsageError` for anything else, several lengths included."""
    found = parse_lengths(text, POINTS)
    if len(found) > 1:
        raise UsageError(f"{text!r} names {len(found)} lengths, and a distribution is one", hint=_HINT)
    longest = max(found[0].tokens)
    if longest > MAX_TOKENS:
        raise UsageError(
            f"{text} reaches {longest:.3g} tokens at its last of {POINTS:,} quantiles, more than any model takes",
            hint="bring the 95th percentile closer to the median",
        )
    tokens = np.array(found[0].tokens, dtype=np.int64)
    return Side(found[0].label, tokens, tokens, np.ones(len(tokens)))


def paired(inputs: Side, outputs: Side) -> tuple[Ints, Ints, int]:
    """Rows with both lengths, which are independent, and how many requests they stand for.

    Outputs take their quantiles in the order of the multiples of the golden ratio (a rank-1 lattice), so that both
    sides keep their own quantiles exactly and every part of one meets every part of the other.
    """
    counted = [side.requests for side in (inputs, outputs) if side.requests is not None]
    points = min(max([*counted, POINTS]), MOST_ROWS)
    if len(counted) == 1 and counted[0] <= MOST_ROWS and _is_exact(inputs) and _is_exact(outputs):
        points = counted[0]
    order = np.argsort(np.argsort(np.arange(1, points + 1) * _GOLDEN % 1.0))
    return inputs.quantiles(points), outputs.quantiles(points)[order], max(counted, default=points)


def _is_exact(side: Side) -> bool:
    """One length, or counted lengths: so many rows as requests are the distribution itself."""
    is_pointed = bool((side.low == side.high).all())
    return is_pointed and (side.requests is not None or len(side.low) == 1)


def weights_of(values: NDArray[np.float64], label: str) -> tuple[Floats, int | None]:
    """Counts or shares as weights, the largest of them 1, and their sum where all are whole.

    Raises `UsageError` where all are zero."""
    largest = float(values.max())
    if largest == 0:
        raise UsageError(f"{label} counts no request", hint="at least one count must be above zero")
    is_whole = bool((values == np.floor(values)).all())
    return values / largest, round(float(values.sum())) if is_whole else None
