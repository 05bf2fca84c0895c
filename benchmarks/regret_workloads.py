"""The twelve length distributions of `regret.py`: six parametric ones and six samples of recorded traces, at lengths
that a tiny model on a CPU serves. Each becomes a CSV of lengths, the file that a user would have.

Imported, not run.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvbench.workload.importers.read import read_trace

MAX_INPUT, MAX_OUTPUT = 480, 128
"""Longest prompt and output, tokens; longer ones are cut. Together they fit the pool of every case."""
PREFILL_S, DECODE_S = 1.6e-4, 4e-4
"""About what a prompt token and an output token cost on one core: only so that every workload takes about as long."""
FEWEST = 12

Lengths = NDArray[np.int64]
Draw = Callable[[np.random.Generator, int], tuple[Lengths, Lengths]]


@dataclass(frozen=True)
class Distribution:
    """Where lengths come from. A sample of a trace begins at row `first`, scaled by `scale`."""

    name: str
    about: str
    draw: Draw | None = None
    trace: str = ""
    first: int = 0
    scale: str = "1"


def _lognormal(rng: np.random.Generator, count: int, median: float, sigma: float) -> Lengths:
    return np.rint(median * np.exp(sigma * rng.standard_normal(count))).astype(np.int64)


def _chat(rng: np.random.Generator, n: int) -> tuple[Lengths, Lengths]:
    return _lognormal(rng, n, 40, 0.5), _lognormal(rng, n, 44, 0.5)


def _constant(rng: np.random.Generator, n: int) -> tuple[Lengths, Lengths]:
    return np.full(n, 100), np.full(n, 30)


def _uniform(rng: np.random.Generator, n: int) -> tuple[Lengths, Lengths]:
    return rng.integers(16, 241, n), rng.integers(8, 65, n)


def _prompts(rng: np.random.Generator, n: int) -> tuple[Lengths, Lengths]:
    return _lognormal(rng, n, 220, 0.3), rng.integers(6, 19, n)


def _tailed(rng: np.random.Generator, n: int) -> tuple[Lengths, Lengths]:
    return _lognormal(rng, n, 60, 1.1), _lognormal(rng, n, 24, 0.8)


def _bimodal(rng: np.random.Generator, n: int) -> tuple[Lengths, Lengths]:
    is_long = rng.random(n) < 0.25
    return np.where(is_long, rng.integers(280, 361, n), rng.integers(12, 37, n)), rng.integers(20, 45, n)


_AZURE = "azure2023/AzureLLMInferenceTrace_conv.csv"
_MOONCAKE = "mooncake/conversation_trace.jsonl"
_ARXIV = "arxiv/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
_SHAREGPT = "sharegpt8k/sharegpt_8k_filtered_stats_llama2_tokenizer.csv"

DISTRIBUTIONS = (
    Distribution("chat", "lognormal, median 40 + 44", _chat),
    Distribution("constant", "all 100 + 30", _constant),
    Distribution("uniform", "uniform, 16…240 + 8…64", _uniform),
    Distribution("prompts", "lognormal prompts, median 220, short answers", _prompts),
    Distribution("tailed", "lognormal, median 60, sigma 1.1 + 24, sigma 0.8", _tailed),
    Distribution("bimodal", "a quarter 280…360, the rest 12…36, + 20…44", _bimodal),
    Distribution("azure", "Azure conversations, 1/16", trace=_AZURE, scale="1/16"),
    Distribution("azure-8", "the same, later, 1/8", trace=_AZURE, first=9000, scale="1/8"),
    Distribution("mooncake", "Mooncake conversations, 1/64", trace=_MOONCAKE, scale="1/64"),
    Distribution("mooncake-160", "the same, later, 1/160", trace=_MOONCAKE, first=6000, scale="1/160"),
    Distribution("arxiv", "arXiv summarization, 1/16", trace=_ARXIV, scale="1/16"),
    Distribution("sharegpt", "ShareGPT conversations, 1/8", trace=_SHAREGPT, scale="1/8"),
)


def write_lengths(path: Path, of: Distribution, data: Path, seconds: float) -> int:
    """The CSV of one distribution, of so many requests that serving them takes about `seconds`; how many."""
    inputs, outputs = _drawn(of) if of.draw is not None else _recorded(of, data)
    inputs, outputs = np.clip(inputs, 1, MAX_INPUT), np.clip(outputs, 2, MAX_OUTPUT)
    cost = np.cumsum(inputs * PREFILL_S + outputs * DECODE_S)
    count = min(max(FEWEST, int(np.searchsorted(cost, seconds)) + 1), len(inputs))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("num_prefill_tokens", "num_decode_tokens"))
        writer.writerows(zip(inputs[:count].tolist(), outputs[:count].tolist(), strict=True))
    return count


def _drawn(of: Distribution) -> tuple[Lengths, Lengths]:
    assert of.draw is not None
    seed = int.from_bytes(of.name.encode(), "little")
    return of.draw(np.random.default_rng(seed), 20_000)


def _recorded(of: Distribution, data: Path) -> tuple[Lengths, Lengths]:
    rows = read_trace(data / of.trace, limit=of.first + 2_000).rows[of.first :]
    scale = Fraction(of.scale)
    scaled = [(-(-row.input_tokens * scale // 1), -(-(row.output_tokens or 1) * scale // 1)) for row in rows]
    found = np.array(scaled, dtype=np.int64)
    return found[:, 0], found[:, 1]
