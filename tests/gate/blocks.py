"""Blocks with known truth for the tests of the gate."""

from __future__ import annotations

import numpy as np

from kvbench.analysis.gate.types import CaseBlocks, Worse


def made(
    differences: list[float] | np.ndarray, *, case_id: str = "c", worse: Worse = "higher", **facts: object
) -> CaseBlocks:
    """A case with exactly these log ratios (> 0 is worse), around a baseline of 1 … 1.1."""
    baseline = np.linspace(1.0, 1.1, len(differences))
    sign = 1.0 if worse == "higher" else -1.0
    candidate = baseline * np.exp(sign * np.asarray(differences, dtype=float))
    return CaseBlocks(case_id, "decode_s", worse, baseline, candidate, **facts)  # type: ignore[arg-type]


def drawn(
    rng: np.random.Generator, effect: float = 0.0, *, sd: float = 0.01, blocks: int = 10, case_id: str = "c"
) -> CaseBlocks:
    """A case whose sides have log-normal noise of `sd`, the candidate slower by `effect`."""
    baseline = np.exp(rng.normal(0.0, sd, blocks))
    candidate = (1.0 + effect) * np.exp(rng.normal(0.0, sd, blocks))
    order = rng.permutation(np.resize(np.array([1, -1], np.int8), blocks))
    return CaseBlocks(case_id, "decode_s", "higher", baseline, candidate, order)


def suite(seed: int, cases: int, effect: float = 0.0, **settings: float | int) -> list[CaseBlocks]:
    rng = np.random.default_rng(seed)
    return [drawn(rng, effect, case_id=f"case-{at}", **settings) for at in range(cases)]  # type: ignore[arg-type]
