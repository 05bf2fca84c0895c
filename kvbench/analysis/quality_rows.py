"""From the numbers of every token to the rows of `kvbench quality`: over all tokens, by position, and the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvbench.analysis.divergence import Floats, TokenNumbers
from kvbench.analysis.quality import REFERENCE, Bucket, Metrics, QualityRow
from kvbench.analysis.window_means import exponential, is_no_worse, mean_over_windows, position_edges
from kvbench.geometry.dtypes import storage_dtype

_JUDGED = ("kl_nats", "perplexity_change", "top1_agreement")


def metrics_of(numbers: TokenNumbers, reference_nll: Floats, positions: slice) -> Metrics:
    """Over windows: `numbers` and `reference_nll` are `[windows, tokens]`, `positions` the tokens that count."""
    kl, same = numbers.kl_nats[:, positions].mean(axis=1), numbers.is_same_top1[:, positions].mean(axis=1)
    nll, before = numbers.nll_nats[:, positions].mean(axis=1), reference_nll[:, positions].mean(axis=1)
    return Metrics(
        kl_nats=mean_over_windows(kl, least=0.0),
        perplexity=exponential(mean_over_windows(nll)),
        perplexity_change=exponential(mean_over_windows(nll - before), offset=-1.0),
        top1_agreement=mean_over_windows(same, 0.0, 1.0),
    )


def buckets_of(numbers: TokenNumbers, reference_nll: Floats, first: int) -> tuple[Bucket, ...]:
    """By position in the window; column 0 of `numbers` is position `first`."""
    windows, count = numbers.kl_nats.shape
    return tuple(
        Bucket(a, b - 1, windows * (b - a), metrics_of(numbers, reference_nll, slice(a - first, b - first)))
        for a, b in position_edges(first, first + count)
    )


def window_means(numbers: TokenNumbers) -> dict[str, list[float]]:
    """Each window's mean KL, −log likelihood and agreement."""
    return {
        "kl_nats": numbers.kl_nats.mean(axis=1).tolist(),
        "nll_nats": numbers.nll_nats.mean(axis=1).tolist(),
        "top1_agreement": numbers.is_same_top1.mean(axis=1).tolist(),
    }


def with_best(rows: Sequence[QualityRow]) -> list[QualityRow]:
    """The rows with their `best`: the metrics in which a setting is among the best of those with as many bits an
    element. None for full precision, and none where there is nothing to choose from."""
    return [replace(row, best=tuple(name for name in _JUDGED if _is_best(row, name, rows))) for row in rows]


def _is_best(row: QualityRow, name: str, rows: Sequence[QualityRow]) -> bool:
    others = [other for other in rows if other.metrics is not None and _bits(other) == _bits(row)]
    if row.metrics is None or row.kv_dtype == REFERENCE or len(others) < 2:
        return False
    losses = [np.array(_loss(other, name)) for other in others]
    best = min(losses, key=lambda loss: float(loss.mean()))
    return is_no_worse(np.array(_loss(row, name)), best)


def _bits(row: QualityRow) -> float:
    return float(storage_dtype(row.kv_dtype).bytes_per_element) * 8


def _loss(row: QualityRow, name: str) -> list[float]:
    """Window means of which less is better."""
    if name == "top1_agreement":
        return [-value for value in row.by_window[name]]
    return row.by_window["kl_nats" if name == "kl_nats" else "nll_nats"]
