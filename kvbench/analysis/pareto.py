"""Pareto front: the points that no other point beats."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pareto_front(points: Sequence[Sequence[float | None]], higher_is_better: Sequence[bool]) -> list[bool]:
    """For each point whether it is on the front.

    A point is beaten by one that is at least as good in every value and better in one; equal points do not beat each
    other. A point that lacks a value, or has one that is not finite, cannot be compared: it is never on the front and
    beats nobody (M38).
    """
    costs = [_costs(point, higher_is_better) for point in points]
    return [cost is not None and not any(_beats(other, cost) for other in costs if other) for cost in costs]


def _costs(point: Sequence[float | None], higher_is_better: Sequence[bool]) -> tuple[float, ...] | None:
    """The point with every value turned so that less is better; None when one is missing."""
    known = [value for value in point if value is not None and math.isfinite(value)]
    if len(known) != len(higher_is_better) or len(point) != len(higher_is_better):
        return None
    return tuple(-value if higher else value for value, higher in zip(known, higher_is_better, strict=True))


def _beats(left: tuple[float, ...], right: tuple[float, ...]) -> bool:
    return left != right and all(a <= b for a, b in zip(left, right, strict=True))
