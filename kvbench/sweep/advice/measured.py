"""Candidates that were measured on the very requests in question: their throughputs round by round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.advice.candidates import LEVEL, Floats, Gaps, Range, gaps_of_rounds
from kvbench.analysis.student import quantile

if TYPE_CHECKING:
    from pandas import DataFrame

    from kvbench.analysis.advice.lengths import LengthSample
    from kvbench.spec.cases import Case
    from kvbench.store.run import Run
    from kvbench.sweep.advice.known import Known, KnownCase

METRICS = {"output_tokens_per_s": "output_tokens_per_s", "ttft_s": "ttft_p50_s", "tpot_s": "tpot_p50_s"}
IGNORED = frozenset({"kv_memory", "attention", "max_context"})
"""Settings that a plan resolves"""


@dataclass(frozen=True, slots=True)
class Measured:
    """`rounds` `[rounds, n]` throughputs, NaN where a candidate was not measured; `cases` the stored case of each."""

    rounds: Floats
    cases: tuple[KnownCase | None, ...]

    @property
    def is_there(self) -> list[bool]:
        return [case is not None for case in self.cases]

    def ranges(self, at: int) -> dict[str, Range | None]:
        """Means over rounds with their 95 % intervals, of a candidate that was measured."""
        case = self.cases[at]
        assert case is not None
        return {name: _mean(list(case.values(metric).values())) for name, metric in METRICS.items()}

    def over(self, predicted: Gaps) -> Gaps:
        """Measured differences where both were measured, predicted ones elsewhere."""
        found = gaps_of_rounds(self.rounds)
        both = np.outer(self.is_there, self.is_there) & np.isfinite(found.value)
        return Gaps(np.where(both, found.value, predicted.value), np.where(both, found.half, predicted.half))


def measured_on(
    known: Known | None, sample: LengthSample, arrival: Mapping[str, Any], cases: Sequence[Case]
) -> Measured:
    """What the runs hold of these candidates on these requests: the same lengths in the same order, arriving alike."""
    found: list[KnownCase | None] = [None] * len(cases)
    if known is not None:
        digests = {digest for run in known.runs for digest in _same_lengths(run, sample)}
        stored = [c for c in known.cases if c.workload_digest in digests and _plain(c.arrival) == _plain(arrival)]
        found = [_of(case, stored) for case in cases]
    numbers = sorted({n for case in found if case is not None for n in case.values("output_tokens_per_s")})
    rounds = np.full((len(numbers), len(cases)), np.nan)
    for column, case in enumerate(found):
        values = case.values("output_tokens_per_s") if case is not None else {}
        rounds[:, column] = [values.get(n, math.nan) for n in numbers]
    return Measured(rounds, tuple(found))


def _same_lengths(run: Run, sample: LengthSample) -> list[str]:
    """The workloads of a run with these lengths in this order."""
    return [str(digest) for digest, rows in run.workload.groupby("workload_digest", sort=False) if _same(rows, sample)]


def _same(rows: DataFrame, sample: LengthSample) -> bool:
    if len(rows) != len(sample):
        return False
    pairs = (("input_tokens", sample.inputs), ("output_tokens", sample.outputs))
    return all(bool((rows[name].to_numpy(dtype=np.int64) == values).all()) for name, values in pairs)


def _of(case: Case, stored: Sequence[KnownCase]) -> KnownCase | None:
    """The newest stored case with these settings."""
    assert case.engine is not None
    wanted = case.engine.model_dump(mode="json")
    names = [name for name in wanted if name not in IGNORED]
    same = [c for c in stored if all(c.engine.get(name) == wanted[name] for name in names)]
    return same[-1] if same else None


def _plain(arrival: Mapping[str, Any]) -> dict[str, Any]:
    kept = {"all-at-once": ("kind",), "closed-loop": ("kind", "clients", "think_time_s", "think")}
    names = kept.get(str(arrival.get("kind")), tuple(arrival))
    defaults = {"think_time_s": 0.0, "think": "constant"}
    return {name: arrival.get(name, defaults.get(name)) for name in names}


def _mean(values: Sequence[float]) -> Range | None:
    """The mean, with the 95 % interval of the mean logarithm around it."""
    if not values:
        return None
    mean = float(np.mean(values))
    if len(values) < 2 or min(values) <= 0:
        return Range(mean, mean, mean)
    spread = float(np.std(np.log(values), ddof=1))
    half = float(quantile(0.5 + LEVEL / 2, len(values) - 1)) * spread / math.sqrt(len(values))
    return Range(mean, mean * math.exp(-half), mean * math.exp(half))
