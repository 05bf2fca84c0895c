"""Goodput under service-level objectives, and whether enough requests met them: met, missed or unresolved. Torch-free.

The share that met everything has a Wilson interval (1927), which treats requests as independent draws. Where the wanted
share lies inside it the answer is "unresolved": more requests are needed, not a coin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvbench.engine.telemetry import RequestRecord
from kvbench.measure.warnings import RowWarning
from kvbench.spec.suite import SloSettings

FINISHED = frozenset({"length", "stop"})
LIMITS = ("ttft_s", "tpot_s", "e2e_s")
Z95 = 1.959964
Verdict = Literal["met", "missed", "unresolved", "infeasible"]


@dataclass(frozen=True, slots=True)
class Goodput:
    """Of all requests, those that met every limit. `verdict` is None without a limit."""

    requests: int = 0
    met: int = 0
    attainment: float = 1.0
    verdict: Verdict | None = None
    warnings: tuple[RowWarning, ...] = ()

    def metrics(self, wall_s: float) -> dict[str, float | int | None]:
        """Columns; missing without a limit, and where a limit is on something that nobody has (M39)."""
        if self.verdict in (None, "infeasible"):
            return dict.fromkeys(("goodput_per_s", "slo_met_share", "slo_met_low", "slo_met_high"))
        low, high = wilson(self.met, self.requests)
        share = self.met / self.requests
        return {
            "goodput_per_s": self.met / wall_s, "slo_met_share": share, "slo_met_low": low, "slo_met_high": high
        }  # fmt: skip


def goodput(requests: Sequence[RequestRecord], slo: SloSettings) -> Goodput:
    """A request that was rejected, failed, or lacks a value that has a limit, met nothing."""
    limits = {name: getattr(slo, name) for name in LIMITS if getattr(slo, name) is not None}
    if not limits or not requests:
        return Goodput()
    finished = [r for r in requests if r.finish_reason in FINISHED]
    absent = {name: sum(not _is_known(getattr(r, name)) for r in finished) for name in limits}
    missing = {name: count for name, count in absent.items() if count}
    warnings = (RowWarning("slo_value_missing", {"missing": missing, "finished": len(finished)}),) if missing else ()
    if finished and any(count == len(finished) for count in absent.values()):
        return Goodput(len(requests), 0, slo.attainment, "infeasible", warnings)
    met = sum(_meets(r, limits) for r in finished)
    return Goodput(len(requests), met, slo.attainment, _verdict(met, len(requests), slo.attainment), warnings)


def wilson(met: int, count: int) -> tuple[float, float]:
    """95 % interval of a share; all of 0…1 for no draws."""
    if count <= 0:
        return 0.0, 1.0
    share, z2 = met / count, Z95 * Z95
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    reach = Z95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    low = 0.0 if met == 0 else max(0.0, centre - reach)
    return low, (1.0 if met == count else min(1.0, centre + reach))


def _verdict(met: int, count: int, wanted: float) -> Verdict:
    low, high = wilson(met, count)
    if low >= wanted:
        return "met"
    return "missed" if high < wanted else "unresolved"


def _meets(request: RequestRecord, limits: dict[str, float]) -> bool:
    values = ((getattr(request, name), limit) for name, limit in limits.items())
    return all(value is not None and value <= limit for value, limit in values)


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
