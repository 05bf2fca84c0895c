"""Beam search over log-probabilities, one request at a time: which beams go on, with which tokens, and when it ends.

The algorithm is that of `transformers` (`generate(num_beams=k, do_sample=False)`): of all continuations of the k live
beams the (1 + stop tokens) · k likeliest are looked at, at least 2 · k; those that stop and are among the k likeliest
become hypotheses with the score `log-probability / length ** length_penalty`; the k likeliest others live on. Holds no
KV and no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvbench.cache.types import Int64s

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class BeamParams:
    """`length_penalty` above 0 favours long outputs. `early_stopping`: True ends with k hypotheses; False ends when
    the best live beam, at its present length, is worse than the worst of k hypotheses; "never" asks whether it could
    still get better by the longest output."""

    width: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        if self.width < 2:
            raise UsageError(f"a beam search of {self.width} beams", hint="2 or more; 1 is greedy decoding")
        if not abs(self.length_penalty) < float("inf"):
            raise UsageError(f"length_penalty {self.length_penalty} is not a number", hint="1 divides by the length")
        if self.early_stopping not in (True, False, "never"):
            raise UsageError(f"early_stopping {self.early_stopping!r} is unknown", hint='True, False or "never"')


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished output, the stop token included."""

    score: float
    tokens: list[int]


class BeamSearch:
    """The beams of one request. Before the first step there is one live beam, the prompt."""

    def __init__(self, params: BeamParams, max_tokens: int, stop_tokens: frozenset[int]) -> None:
        self.params, self.max_tokens, self.stop_tokens = params, max_tokens, stop_tokens
        self.restart()

    def restart(self) -> None:
        """Back to the prompt: nothing of an earlier search is left."""
        self.scores: NDArray[np.float64] = np.zeros(1)
        self.length = 0
        self.hypotheses: list[Hypothesis] = []
        self.is_over = False

    @property
    def candidates(self) -> int:
        """Continuations of each beam to look at: so many that k of them go on, whatever stops."""
        return max(2, 1 + len(self.stop_tokens)) * self.params.width

    @property
    def best(self) -> Hypothesis:
        """Of a search that is over."""
        return self.hypotheses[0]

    def advance(
        self, outputs: Sequence[Sequence[int]], ids: Int64s, log_probabilities: NDArray[np.float64]
    ) -> tuple[Int64s, Int64s]:
        """One step. `outputs` are the live beams' tokens so far, `ids` and `log_probabilities` `[beams, n]` their
        likeliest continuations. Returns parent and new token of each beam that lives on, in the beams' order from now
        on: a parent that lives on keeps its place with its likeliest child."""
        parents, tokens, totals = self._likeliest(ids, log_probabilities)
        self.length += 1
        stops = np.isin(tokens, list(self.stop_tokens)) | (self.length >= self.max_tokens)
        for rank in np.flatnonzero(stops[: self.params.width]).tolist():
            score = float(totals[rank]) / self.length**self.params.length_penalty
            self.hypotheses.append(Hypothesis(score, [*outputs[parents[rank]], int(tokens[rank])]))
        self.hypotheses = sorted(self.hypotheses, key=lambda found: -found.score)[: self.params.width]
        going_on = np.flatnonzero(~stops)[: self.params.width]
        going_on = going_on[_in_place(parents[going_on])]
        self.scores = totals[going_on]
        self.is_over = self._ends()
        return parents[going_on], tokens[going_on]

    def _likeliest(
        self, ids: Int64s, log_probabilities: NDArray[np.float64]
    ) -> tuple[Int64s, Int64s, NDArray[np.float64]]:
        """Parents, tokens and scores of the best continuations, best first; of equals the earlier beam's."""
        totals = (self.scores[:, None] + log_probabilities).ravel()
        order = np.argsort(-totals, kind="stable")[: self.candidates]
        return order // ids.shape[1], ids.ravel()[order], totals[order]

    def _ends(self) -> bool:
        if self.length >= self.max_tokens:
            return True
        if len(self.hypotheses) < self.params.width:
            return False
        if self.params.early_stopping is True:
            return True
        penalty = self.params.length_penalty
        is_patient = self.params.early_stopping == "never" and penalty > 0
        length = self.max_tokens if is_patient else self.length
        return float(self.scores.max()) / length**penalty <= self.hypotheses[-1].score


def _in_place(parents: Int64s) -> Int64s:
    """An order in which beam i is a child of parent i wherever parent i has one."""
    order = np.full(len(parents), -1)
    left = []
    for at, parent in enumerate(parents.tolist()):
        if order[parent] < 0:
            order[parent] = at
        else:
            left.append(at)
    order[order < 0] = left
    return order
