"""Candidates that were measured on the very requests in question: their throughputs round by round."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.advice.candidates import LEVEL, Floats, Gaps, Range, gaps_of_rounds
from kvbench.analysis.advice.lost_hits import shared_fronts
from kvbench.analysis.student import quantile

if TYPE_CHECKING:
    from kvbench.analysis.advice.lengths import LengthSample
    from kvbench.store.run import Run
    from kvbench.sweep.advice.known import Known, KnownCase
    from kvbench.sweep.advice.pools import ExactRow

THROUGHPUT = "output_tokens_per_s"
METRICS = {THROUGHPUT: THROUGHPUT, "ttft_s": "ttft_p50_s", "tpot_s": "tpot_p50_s"}
IGNORED = frozenset({"kv_memory", "attention", "max_context"})
"""Settings that a plan resolves: the pool is compared in blocks, the others are those of all runs of a fit"""


@dataclass(frozen=True, slots=True)
class Measured:
    """`rounds` `[rounds, n]` throughputs, NaN where a candidate was not measured; `cases` the stored cases of each. A
    round is one of one run, for rounds of different runs have nothing in common."""

    rounds: Floats
    cases: tuple[tuple[KnownCase, ...], ...]

    def is_there(self, at: int) -> bool:
        return bool(self.cases[at])

    def throughputs(self, at: int) -> tuple[float, ...]:
        """Of each round that a candidate was measured in."""
        column = self.rounds[:, at]
        return tuple(column[np.isfinite(column)].tolist())

    def ranges(self, at: int) -> dict[str, Range | None]:
        """Means over rounds with their 95 % intervals, of a candidate that was measured."""
        return {
            name: _mean([value for case in self.cases[at] for value in case.values(metric).values()])
            for name, metric in METRICS.items()
        }

    def over(self, predicted: Gaps) -> Gaps:
        """Measured differences where both were measured in one run, predicted ones elsewhere."""
        found = gaps_of_rounds(self.rounds)
        both = np.isfinite(found.value)
        return Gaps(np.where(both, found.value, predicted.value), np.where(both, found.half, predicted.half))


def measured_on(
    known: Known | None, sample: LengthSample, arrival: Mapping[str, Any], candidates: Sequence[ExactRow]
) -> Measured:
    """What the runs hold of these candidates on these requests: the same lengths in the same order, arriving alike, for
    a prefix cache also sharing alike, and a pool of as many blocks."""
    found: list[tuple[KnownCase, ...]] = [()] * len(candidates)
    if known is not None:
        digests = {digest for run in known.runs for digest in _same_lengths(run, sample)}
        stored = [c for c in known.cases if c.workload_digest in digests and _plain(c.arrival) == _plain(arrival)]
        caches = any(one.settings.prefix_cache != "none" for one in candidates)
        sharing = (
            {digest for run in known.runs for digest in _sharing_alike(run, digests, sample)} if caches else digests
        )
        alike = [case for case in stored if case.workload_digest in sharing]
        found = [_of(one, stored if one.settings.prefix_cache == "none" else alike) for one in candidates]
    values = [
        {(case.run_id, number): value for case in cases for number, value in case.values(THROUGHPUT).items()}
        for cases in found
    ]
    numbers = sorted({key for column in values for key in column})
    rounds = np.array([[column.get(key, math.nan) for column in values] for key in numbers])
    return Measured(rounds.reshape(len(numbers), len(candidates)), tuple(found))


def _same_lengths(run: Run, sample: LengthSample) -> list[str]:
    """The workloads of a run with these lengths in this order."""
    return [
        digest
        for digest, (inputs, outputs) in run.lengths.items()
        if np.array_equal(inputs, sample.inputs) and np.array_equal(outputs, sample.outputs)
    ]


def _sharing_alike(run: Run, digests: Collection[str], sample: LengthSample) -> list[str]:
    """Of these workloads of the same lengths, those of a run whose prompts also begin alike, which a prefix cache
    sees."""
    fronts = np.zeros(len(sample), dtype=np.int64) if sample.shared is None else sample.shared.tokens
    return [
        digest
        for digest in run.lengths
        if digest in digests and np.array_equal(shared_fronts(run.requests_of(digest)), fronts)
    ]


def _of(candidate: ExactRow, stored: Sequence[KnownCase]) -> tuple[KnownCase, ...]:
    """The stored cases with these settings, one of each run: of a run's several the last."""
    wanted = candidate.settings.model_dump(mode="json")
    names = [name for name in wanted if name not in IGNORED]
    same = [case for case in stored if all(case.engine.get(name) == wanted[name] for name in names)]
    block = candidate.block
    alike = [case for case in same if int(case.engine["kv_memory"]) // block.block_bytes == block.num_blocks]
    return tuple({case.run_id: case for case in alike}.values())


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
