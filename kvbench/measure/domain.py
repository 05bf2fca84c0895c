"""Where a simulated case leaves what its fitted cost model was fitted on, and by how much less is known there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvbench.costmodel.terms import ATTENTION
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


def outside(
    source: FittedFile, settings: EngineSettings, cache_state: str, steps: Sequence[StepRecord]
) -> tuple[float, list[RowWarning]]:
    """By what factor the case's interval is wider because no fitted run was like it, and the reasons."""
    fit = source.configuration(settings.kv_dtype, settings.kv_scales, settings.kv_layout)
    if fit is None:
        return 1.0, []
    factor, warnings = 1.0, []
    for name, share, reached in _beyond(fit, settings, steps):
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


def _beyond(
    fit: Configuration, settings: EngineSettings, steps: Sequence[StepRecord]
) -> Iterator[tuple[str, float, float]]:
    """(what, share of the predicted time, how far) for every range of the domain that the case leaves. Smaller counts
    than ever seen are between what was seen and nothing."""
    seconds = np.array([step.duration_s for step in steps])
    total = max(float(seconds.sum()), 1e-30)
    for name, values in _counts(steps).items():
        high = fit.domain[name][1] if name in fit.domain else math.inf
        if len(values) and values.max() > max(high, 1.0):
            yield name, float(seconds[values > high].sum()) / total, float(values.max())
    size, (low, high) = float(settings.block_size), fit.domain.get("block_size", (0.0, math.inf))
    if not low <= size <= high:
        yield "block_size", 1.0, size


def _counts(steps: Sequence[StepRecord]) -> dict[str, NDArray[np.float64]]:
    found = {name: np.array([getattr(step, name) for step in steps], float) for name in ("sampled_rows", *ATTENTION)}
    found["sequences"] = np.array([step.batch_size for step in steps], float)
    found["tokens"] = np.array([step.prefill_tokens + step.decode_tokens for step in steps], float)
    return found
