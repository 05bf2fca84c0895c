"""Intervals of predictions from the errors that earlier ones made, with no assumption about their shape.

Of n + 1 errors that might have come in any order, the last is among the k = ⌈(n + 1) · level⌉ smallest in size with
probability k / (n + 1) ≥ level (Vovk, Gammerman, Shafer: Algorithmic Learning in a Random World, 2005, for the split
form). Where k > n, too few cases were seen for that; then a normal error of mean 0 and unknown size is assumed, and the
interval is Student's: t(n, level) · root mean square · √(1 + 1/n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvbench.analysis.student import quantile


def half_width(errors: Sequence[float], level: float = 0.90, groups: int | None = None) -> float | None:
    """Half of the interval around 0 that the next error falls into; None without errors.

    `groups`: errors come in so many groups that err together, so that no more than those count as independent."""
    count = len(errors)
    if not count:
        return None
    independent = min(groups or count, count)
    if independent >= enough(level):
        rank = min(math.ceil((count + 1) * level - 1e-9), count)
        return sorted(map(abs, errors))[rank - 1]
    spread = math.sqrt(math.fsum(e * e for e in errors) / count)
    return float(quantile((1 + level) / 2, independent)) * spread * math.sqrt(1 + 1 / independent)


def enough(level: float = 0.90) -> int:
    """Fewest errors from which no shape has to be assumed."""
    return math.ceil(level / (1 - level) - 1e-9)
