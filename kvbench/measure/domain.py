"""Where simulated steps leave what their fitted cost model was fitted on, and by how much less is known there."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from kvbench.costmodel.terms import ATTENTION
from kvbench.engine.step_run import StepRun
from kvbench.measure.warnings import RowWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.costmodel.fitted import Configuration, FittedFile
    from kvbench.engine.telemetry import StepRecord
    from kvbench.spec.engine import EngineSettings

WIDER_SETTING = 0.5
"""Added to the factor of the width for every setting that no fitted run had."""
_WATCHED = ("prefix_cache", "allocator", "preemption", "offload", "cache_state")
"""Settings that cost time outside the terms; a batch policy, an order or an admission shows in the steps."""


class Reach:
    """The largest counts of steps, and the time in those beyond what a fit has seen. Steps may come a few at a time."""

    def __init__(self, fit: Configuration | None) -> None:
        domain: Mapping[str, tuple[float, float]] = fit.domain if fit else {}
        self._highs = {name: high for name, (_, high) in domain.items()}
        self.largest: dict[str, float] = {}
        self._beyond_s: dict[str, float] = {}
        self._total_s = 0.0

    @classmethod
    def of(cls, source: FittedFile, settings: EngineSettings, steps: Collection[StepRecord] = ()) -> Reach:
        """What these steps reach, held against the fit of the settings' stored form."""
        found = cls(_fit(source, settings))
        found.take(steps)
        return found

    def take(self, steps: Collection[StepRecord]) -> None:
        """Count these steps too."""
        if not len(steps):
            return
        seconds = _values(steps, "duration_s")
        self._total_s += float(seconds.sum())
        for name, values in _counts(steps):
            self.largest[name] = max(self.largest.get(name, 0.0), float(values.max()))
            high = self._highs.get(name, math.inf)
            self._beyond_s[name] = self._beyond_s.get(name, 0.0) + float(seconds[values > high].sum())

    def beyond(self) -> Iterator[tuple[str, float, float]]:
        """(what, share of the time, how far) for every count that exceeds the largest fitted. Smaller ones than ever
        seen are between what was seen and nothing."""
        for name, reached in self.largest.items():
            if reached > max(self._highs.get(name, math.inf), 1.0):
                yield name, self._beyond_s[name] / max(self._total_s, 1e-30), reached


def outside(
    source: FittedFile, settings: EngineSettings, cache_state: str, reach: Reach
) -> tuple[float, list[RowWarning]]:
    """By what factor the case's interval is wider because no fitted run was like it, and the reasons."""
    fit = _fit(source, settings)
    if fit is None:
        return 1.0, []
    factor, warnings = 1.0, []
    for name, share, reached in (*reach.beyond(), *_block_size(fit, settings)):
        low, high = fit.domain[name]
        factor += share * abs(math.log(reached / (high if reached > high else max(low, 1.0)))) / math.log(2)
        warnings.append(
            RowWarning("outside_domain", {"what": name, "low": low, "high": high, "reached": reached, "share": share})
        )
    now = {**settings.model_dump(mode="json"), "cache_state": cache_state}
    for name in _WATCHED:
        seen = source.settings.get(name)
        if seen and str(now[name]) not in seen:
            factor += WIDER_SETTING
            warnings.append(RowWarning("unseen_setting", {"what": name, "value": str(now[name]), "seen": list(seen)}))
    return factor, warnings


def _fit(source: FittedFile, settings: EngineSettings) -> Configuration | None:
    return source.configuration(settings.kv_dtype, settings.kv_scales, settings.kv_layout)


def _block_size(fit: Configuration, settings: EngineSettings) -> Iterator[tuple[str, float, float]]:
    size, (low, high) = float(settings.block_size), fit.domain.get("block_size", (0.0, math.inf))
    if not low <= size <= high:
        yield "block_size", 1.0, size


def _counts(steps: Collection[StepRecord]) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name in ("sampled_rows", *ATTENTION):
        yield name, _values(steps, name)
    yield "sequences", _values(steps, "batch_size")
    yield "tokens", _values(steps, "prefill_tokens") + _values(steps, "decode_tokens")


def _values(steps: Collection[StepRecord], name: str) -> NDArray[np.float64]:
    """`[steps]` of a field."""
    if isinstance(steps, StepRun):
        return np.asarray(steps.column(name), dtype=np.float64)
    return np.array([getattr(step, name) for step in steps], dtype=np.float64)
