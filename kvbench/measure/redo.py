"""Samples that the machine disturbed are discarded and taken again, within a budget. Torch-free.

What decides is what the machine says about itself, never the times that were measured: choosing by these would be
choosing the result. The numbers behind every decision are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kvbench.measure.core_speed import CoreSpeed
from kvbench.measure.warnings import RowWarning, text
from kvbench.measure.watch import Observed, Watch

T = TypeVar("T")
P = TypeVar("P")
Say = Callable[[str], None]

ATTEMPTS = 2
LIMITS = {
    "throttled": 0.0,
    "foreign_cpu": 0.15,
    "cpu_stolen": 0.05,
    "core_shared": 0.1,
    "descheduled": 200.0,
    "page_faults": 10.0,
}
"""Share of readings; shares of CPU time, and of the window on a shared core; involuntary switches and major faults per
second (a switch takes microseconds and leaves caches to be filled again: 200 of them at most 1 % of the time). Above
them a median moves by more than the 2 % that a gate looks for."""


@dataclass(slots=True)
class RedoBudget:
    """How many samples of a round may be taken again: a share of its cases, rounded up."""

    left: int

    @classmethod
    def of(cls, share: float, cases: int) -> RedoBudget:
        return cls(math.ceil(share * cases))

    def spend(self) -> bool:
        """Whether one more is allowed; it is taken then."""
        self.left -= 1
        return self.left >= 0


@dataclass(slots=True)
class Taken(Generic[T]):
    """The attempt that counts, and the story of all of them."""

    value: T
    observed: Observed
    warnings: list[RowWarning]
    attempts: list[dict[str, Any]] = field(default_factory=list)
    """Per attempt: what disturbed it, and whether it counts; empty when the only one was quiet"""

    def columns(self, output_tokens: int | None = None) -> dict[str, Any]:
        return {**self.observed.columns(output_tokens), "attempts": max(1, len(self.attempts))}

    @property
    def extra(self) -> dict[str, Any]:
        return {"attempts": self.attempts} if self.attempts else {}


def disturbances(observed: Observed) -> list[RowWarning]:
    """What happened in the window that a measurement should not have met."""
    return [*_gpu(observed), *_cpu(observed)]


def _gpu(observed: Observed) -> Iterator[RowWarning]:
    gpu = observed.gpu
    if gpu is None:
        return
    if gpu.throttled_share is not None and gpu.throttled_share > LIMITS["throttled"]:
        numbers = {"share": gpu.throttled_share, "limit": LIMITS["throttled"], "reasons": list(gpu.throttle_reasons)}
        yield RowWarning("throttled", {**numbers, "sm_clock_min_hz": gpu.sm_clock_min_hz})
    if gpu.foreign_processes:
        yield RowWarning("foreign_process", {"gpu_processes": gpu.foreign_processes, "limit": 0})


def _cpu(observed: Observed) -> Iterator[RowWarning]:
    host = observed.host
    if host.foreign_cpu_share is not None and host.foreign_cpu_share > LIMITS["foreign_cpu"]:
        yield RowWarning("foreign_process", {"cpu_share": host.foreign_cpu_share, "limit": LIMITS["foreign_cpu"]})
    if host.steal_share is not None and host.steal_share > LIMITS["cpu_stolen"]:
        yield RowWarning("cpu_stolen", {"share": host.steal_share, "limit": LIMITS["cpu_stolen"]})
    switches, faults = host.involuntary_switches / host.window_s, host.major_faults / host.window_s
    if switches > LIMITS["descheduled"]:
        yield RowWarning("descheduled", {"per_s": switches, "limit": LIMITS["descheduled"]})
    if faults > LIMITS["page_faults"]:
        yield RowWarning("page_faults", {"per_s": faults, "limit": LIMITS["page_faults"]})
    if host.swapped_bytes:
        yield RowWarning("swapped", {"bytes": host.swapped_bytes, "limit": 0})


@dataclass(slots=True)
class Observer:
    """Who takes samples under observation. The default watches the CPU and takes nothing twice."""

    watch: Watch = field(default_factory=lambda: Watch("cpu"))
    budget: RedoBudget = field(default_factory=lambda: RedoBudget(0))
    say: Say = lambda _: None
    core: CoreSpeed | None = None
    """Probes of this process's core; None on a GPU and where nobody looks"""

    def take(
        self,
        take: Callable[[P], T],
        prepare: Callable[[], P],
        told: Callable[[T], list[RowWarning]] = lambda _: [],
    ) -> Taken[T]:
        """`take(prepare())`, the taking in a window; once more when that was disturbed and the budget allows it. Of
        two disturbed attempts the one with fewer kinds of disturbance counts, the later one of equals. `told`: what
        only the taking itself can know of the machine."""
        tried: list[tuple[T, Observed, list[RowWarning]]] = []
        is_refused = False
        while len(tried) < ATTEMPTS and not is_refused:
            prepared = prepare()
            with self.watch.window() as window:
                value = take(prepared)
            found = [*disturbances(window.observed), *told(value)]
            tried.append((value, window.observed, found))
            if not found:
                break
            if len(tried) < ATTEMPTS:
                is_refused = not self.budget.spend()
                if not is_refused:
                    self.say(f"disturbed, measured again: {'; '.join(text(*warning) for warning in found)}")
        return _chosen(tried, is_refused=is_refused)


def _chosen(tried: list[tuple[T, Observed, list[RowWarning]]], *, is_refused: bool) -> Taken[T]:
    best = min(range(len(tried)), key=lambda at: (len(tried[at][2]), -at))
    value, observed, found = tried[best]
    warnings = [*found, *(observed.gpu.doubts if observed.gpu is not None else ())]
    if is_refused:
        warnings.append(RowWarning("not_redone", {"reasons": [warning.name for warning in found], "budget_left": 0}))
    stories = [_story(told, is_kept=at == best) for at, (_, _, told) in enumerate(tried)]
    return Taken(value, observed, warnings, stories if any(told for _, _, told in tried) else [])


def _story(found: list[RowWarning], *, is_kept: bool) -> dict[str, Any]:
    return {"kept": is_kept, "disturbed": [warning.as_dict() for warning in found]}
