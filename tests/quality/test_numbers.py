"""KL divergence, likelihood and intervals against torch, scipy and closed formulas."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F

from kvbench.analysis.divergence import Reference, TokenNumbers, log_probabilities
from kvbench.analysis.quality import QualityRow
from kvbench.analysis.quality_rows import buckets_of, metrics_of, window_means, with_best
from kvbench.analysis.window_means import exponential, is_no_worse, mean_over_windows, position_edges


@pytest.fixture
def logits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    reference = draw.normal(0, 4, (40, 57)).astype(np.float32)
    reference[5] += 80.0
    other = (reference + draw.normal(0, 0.3, reference.shape)).astype(np.float32)
    return reference, other, draw.integers(0, 57, 40)


def test_divergence_and_likelihood_are_those_of_torch_in_float64(logits) -> None:
    reference, other, targets = logits
    found = Reference(reference, targets).judge(other)
    p, q = (F.log_softmax(torch.from_numpy(x).double(), dim=-1) for x in (reference, other))
    np.testing.assert_allclose(found.kl_nats, F.kl_div(q, p, log_target=True, reduction="none").sum(-1), rtol=1e-12)
    nll = F.cross_entropy(torch.from_numpy(other).double(), torch.from_numpy(targets), reduction="none")
    np.testing.assert_allclose(found.nll_nats, nll, rtol=1e-12)
    assert found.is_same_top1.tolist() == (reference.argmax(-1) == other.argmax(-1)).tolist()


def test_the_divergence_of_two_coins_is_the_closed_formula() -> None:
    p, q = 0.7, 0.6
    found = Reference(np.log([[p, 1 - p]]), np.array([0])).judge(np.log([[q, 1 - q]]))
    assert found.kl_nats[0] == pytest.approx(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)), rel=1e-12)
    assert found.nll_nats[0] == pytest.approx(-np.log(q), rel=1e-12)


def test_equal_logits_have_no_divergence_and_a_constant_changes_nothing(logits) -> None:
    reference, _, targets = logits
    judge = Reference(reference, targets).judge
    assert (judge(reference).kl_nats == 0.0).all()
    assert judge(reference + np.float32(16.0)).kl_nats.max() < 1e-10
    assert judge(reference).is_same_top1.all()


def test_what_is_no_number_stays_none(logits) -> None:
    reference, other, targets = logits
    other[2, 7], other[3, 0] = np.nan, np.inf
    found = Reference(reference, targets).judge(other)
    assert np.isnan(found.kl_nats[[2, 3]]).all()
    assert np.isfinite(np.delete(found.kl_nats, [2, 3])).all()
    assert not found.is_finite


def test_probabilities_sum_to_one_however_large_the_logits() -> None:
    rows = np.array([[1e4, 0.0, -1e4], [3.0, 3.0, 3.0]], np.float32)
    np.testing.assert_allclose(np.exp(log_probabilities(rows)).sum(-1), 1.0, rtol=1e-12)


def test_the_interval_is_that_of_t_over_windows() -> None:
    values = np.random.default_rng(0).lognormal(0, 0.5, 9)
    found = mean_over_windows(values)
    low, high = scipy.stats.t.interval(0.95, 8, values.mean(), scipy.stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), low, high), rel=1e-9)
    assert mean_over_windows(values, least=values.mean()).low == values.mean()


@pytest.mark.parametrize("values", [[0.25], [1.0, 1.0, 1.0]])
def test_windows_that_cannot_differ_give_no_interval(values: list[float]) -> None:
    found = mean_over_windows(np.array(values))
    assert found.value == values[0]
    assert found.low is None
    assert found.half_width is None


def test_the_interval_covers_the_mean_of_windows_as_often_as_it_says() -> None:
    """Tokens of a window that share a level: an interval over tokens would be far too narrow."""
    draw, truth, hits = np.random.default_rng(5), 1.0, 0
    for _ in range(400):
        levels = draw.normal(truth, 0.3, 12)
        tokens = levels[:, None] + draw.normal(0, 0.5, (12, 50))
        found = mean_over_windows(tokens.mean(axis=1))
        hits += found.low <= truth <= found.high
    assert scipy.stats.binom.ppf(1e-4, 400, 0.95) <= hits <= scipy.stats.binom.ppf(1 - 1e-4, 400, 0.95)


def test_buckets_cover_every_position_once_and_sum_to_the_whole() -> None:
    draw = np.random.default_rng(1)
    for first, count in ((1, 1), (1, 30), (1, 31), (1, 32), (2, 500), (40, 60), (1, 511)):
        numbers = TokenNumbers(draw.random((3, count)), draw.random((3, count)), draw.random((3, count)) < 0.9)
        reference = draw.random((3, count))
        buckets = buckets_of(numbers, reference, first)
        covered = [p for bucket in buckets for p in range(bucket.first, bucket.last + 1)]
        assert covered == list(range(first, first + count))
        assert sum(bucket.tokens for bucket in buckets) == 3 * count
        whole = metrics_of(numbers, reference, slice(None))
        parts = sum(bucket.tokens * bucket.metrics.kl_nats.value for bucket in buckets)
        assert parts / (3 * count) == pytest.approx(whole.kl_nats.value)
        logs = sum(bucket.tokens * np.log(bucket.metrics.perplexity.value) for bucket in buckets)
        assert logs / (3 * count) == pytest.approx(np.log(whole.perplexity.value))


def test_edges_double() -> None:
    assert position_edges(1, 200) == [(1, 32), (32, 64), (64, 128), (128, 200)]


def test_perplexity_and_its_change_are_exponentials_of_mean_likelihoods() -> None:
    draw = np.random.default_rng(2)
    before = draw.random((4, 20)) + 1
    numbers = TokenNumbers(np.zeros((4, 20)), before + 0.01, np.ones((4, 20), bool))
    found = metrics_of(numbers, before, slice(None))
    assert found.perplexity.value == pytest.approx(np.exp((before + 0.01).mean()))
    assert found.perplexity_change.value == pytest.approx(np.exp(0.01) - 1)
    shifted = exponential(mean_over_windows(before.mean(axis=1)), offset=-1.0)
    assert shifted.low < shifted.value < shifted.high


def row(kv_dtype: str, kl: list[float]) -> QualityRow:
    kv_scales = None if kv_dtype in ("fp32", "fp16", "bf16") else "token-head"
    numbers = TokenNumbers(np.array(kl)[:, None], np.ones((len(kl), 1)), np.ones((len(kl), 1), bool))
    metrics = metrics_of(numbers, np.ones((len(kl), 1)), slice(None))
    return QualityRow(kv_dtype, kv_scales, 1.0, metrics, by_window=window_means(numbers))


def test_the_best_of_their_size_are_marked_with_what_windows_cannot_tell_from_it() -> None:
    rows = [
        row("fp32", [0.0, 0.0, 0.0]),
        row("fp16", [1.0, 1.1, 1.2]),
        row("bf16", [8.0, 8.2, 8.1]),
        row("int8", [5.0, 5.2, 5.1]),
        row("fp8_e4m3", [4.8, 5.6, 5.0]),
        row("fp8_e5m2", [7.0, 7.3, 7.1]),
    ]
    marked = [row.kv_dtype for row in with_best(rows) if "kl_nats" in row.best]
    assert marked == ["fp16", "int8", "fp8_e4m3"]
    assert with_best([row("int8", [1.0, 2.0])])[0].best == ()
    assert is_no_worse(np.array([1.0, 1.0]), np.array([1.0, 1.0]))


def test_hopeless_likelihoods_stay_numbers() -> None:
    found = exponential(mean_over_windows(np.array([1e4, 2e4])))
    assert np.isfinite([found.value, found.low, found.high]).all()
