from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvbench.engine.sampling import GREEDY, SamplingParams, sample, uniforms
from kvbench.errors import InternalError, UsageError

VOCAB = 12


def _logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def _exact(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """The naive twin: sort pairs of (probability, id) in Python, cut, normalise."""
    z = logits.double().numpy() / params.temperature
    masses = np.exp(z - z.max())
    order = sorted(range(len(z)), key=lambda i: (-masses[i], i))
    order = order[: params.top_k or len(z)]
    total, reached, kept = sum(masses[i] for i in order), 0.0, []
    for i in order:
        if reached >= params.top_p:
            break
        kept.append(i)
        reached += masses[i] / total
    out = np.zeros(len(z))
    out[kept] = masses[kept] / masses[kept].sum()
    return out


def _draws(logits: torch.Tensor, params: SamplingParams, count: int, first_key: int = 0) -> np.ndarray:
    keys = np.arange(first_key, first_key + count)
    return sample(logits.expand(count, -1), [params] * count, keys)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1.0),
        SamplingParams(0.6),
        SamplingParams(1.0, top_k=5),
        SamplingParams(1.5, top_p=0.8),
        SamplingParams(1.2, top_k=6, top_p=0.9),
    ],
    ids=str,
)
def test_draws_follow_the_exact_distribution(params: SamplingParams) -> None:
    logits = _logits(1)[0]
    exact = _exact(logits, params)
    counts = np.bincount(_draws(logits, params, 20_000), minlength=VOCAB)
    kept = exact > 0
    assert counts[~kept].sum() == 0
    assert stats.chisquare(counts[kept], exact[kept] * 20_000).pvalue > 1e-3


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 1.0, 3.0]), min_size=2, max_size=20),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.integers(0, 22),
    top_p=st.sampled_from([0.05, 0.33, 0.71, 0.999, 1.0]),
)
def test_support_is_that_of_the_naive_twin_even_among_ties(
    values: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    params = SamplingParams(temperature, top_k, top_p)
    logits = torch.tensor(values)
    exact = _exact(logits, params)
    drawn = set(_draws(logits, params, 200).tolist())
    assert drawn <= set(np.flatnonzero(exact).tolist())
    assert drawn >= set(np.flatnonzero(exact > 0.08).tolist())


def test_a_draw_does_not_depend_on_the_rest_of_the_batch() -> None:
    logits = _logits(40, seed=3, vocab=500)
    kinds = [GREEDY, SamplingParams(1.0), SamplingParams(0.7, top_k=9), SamplingParams(1.3, top_p=0.6)]
    params = [kinds[i % 4] for i in range(40)]
    keys = np.arange(40) * 7919
    together = sample(logits, params, keys)
    alone = [int(sample(logits[i : i + 1], [params[i]], keys[i : i + 1])[0]) for i in range(40)]
    assert together.tolist() == alone
    order = np.random.default_rng(0).permutation(40)
    shuffled = sample(logits[order], [params[i] for i in order], keys[order])
    assert shuffled.tolist() == together[order].tolist()


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    logits = torch.zeros(3, 70_000)
    logits[1, [40_000, 5, 60_000]] = 2.0
    logits[2, 69_999] = 1.0
    assert sample(logits, [GREEDY] * 3, np.zeros(3, np.int64)).tolist() == [0, 5, 69_999]
    assert sample(logits, [SamplingParams(1.0, top_k=1)] * 3, np.arange(3)).tolist() == [0, 5, 69_999]


def test_a_vanishing_temperature_and_a_tiny_top_p_are_greedy() -> None:
    logits = _logits(20, seed=5, vocab=300)
    best = logits.argmax(-1).tolist()
    for params in (SamplingParams(1e-6), SamplingParams(1e-300), SamplingParams(1.0, top_p=1e-9)):
        assert sample(logits, [params] * 20, np.arange(20)).tolist() == best


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = torch.full((1, 9), float("-inf"))
    logits[0, [2, 6]] = 0.0
    assert set(_draws(logits[0], SamplingParams(1.0), 100).tolist()) == {2, 6}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(1.0)])
def test_logits_that_are_not_finite_are_an_error_that_names_the_row(bad: float, params: SamplingParams) -> None:
    logits = _logits(3)
    logits[1, 4] = bad
    with pytest.raises(InternalError, match=r"rows \[1\] of 3"):
        sample(logits, [params] * 3, np.zeros(3, np.int64))


def test_a_row_of_minus_infinity_is_an_error() -> None:
    with pytest.raises(InternalError, match="not finite"):
        sample(torch.full((1, 4), float("-inf")), [GREEDY], np.zeros(1, np.int64))


def test_an_empty_batch_gives_an_empty_answer() -> None:
    assert sample(torch.empty(0, 5), [], np.empty(0, np.int64)).tolist() == []


NAN, INFINITY = float("nan"), float("inf")
IMPOSSIBLE = [("temperature", -1.0), ("temperature", NAN), ("temperature", INFINITY), ("top_k", -1), ("top_p", 0.0),
              ("top_p", 1.1), ("top_p", NAN)]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_impossible_parameters_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_uniforms_are_uniform_and_neighbouring_keys_unrelated() -> None:
    u = uniforms(np.arange(-50_000, 50_000))
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01


def test_importing_the_sampling_parameters_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from kvbench.engine.sampling import SamplingParams"
    subprocess.run([sys.executable, "-c", code], check=True)
