"""A length distribution: prompts and outputs of many requests, as what a recommendation is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Source = Literal["trace", "distribution", "histogram", "run"]

ONE_LENGTH = "all requests have one length: that is no distribution, and what follows holds for this length only"
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Shared:
    """What a source records of prefix sharing."""

    tokens: Ints
    """`[n]` of every prompt, the front that an earlier request has stored (`lost_hits.shared_fronts`), in tokens"""
    block_tokens: int | None
    """The trace's own blocks: at multiples of them the sharing is as recorded; None when it is known token by token"""

    def label(self, block_size: int) -> Literal["recorded", "synthetic"]:
        """Whether the sharing seen at this block size is what was recorded, or partly the importer's invention."""
        return "recorded" if self.block_tokens is None or block_size % self.block_tokens == 0 else "synthetic"


@dataclass(frozen=True, slots=True)
class Beyond:
    """Requests longer than a context."""

    requests: int
    share: float
    longest_tokens: int


@dataclass(frozen=True, slots=True)
class LengthSample:
    """Requests by their lengths; arrays are `[n]` int64 tokens, in order of arrival where there are arrivals.

    `requests_total` is how many requests the rows stand for: their own number, unless a histogram counts more. `notes`
    say in sentences what a reader must know of where the rows come from.
    """

    inputs: Ints
    outputs: Ints
    label: str
    source: Source
    requests_total: int
    arrivals_s: Floats | None = None
    shared: Shared | None = None
    digest: str | None = None
    """sha256 of the file that was read"""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self.inputs, self.outputs, self.label)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def stored(self) -> Ints:
        """`[n]` tokens that have K and V when a request ends: the last output token is never computed on."""
        return self.inputs + self.outputs - 1

    @property
    def totals(self) -> Ints:
        """`[n]` prompt and output together, which is what a context must hold."""
        return self.inputs + self.outputs

    @property
    def is_one_length(self) -> bool:
        first_in, first_out = self.inputs[0], self.outputs[0]
        return bool((self.inputs == first_in).all() and (self.outputs == first_out).all())

    @property
    def median_tokens(self) -> int:
        """Median of prompt and output together; the lower one of two."""
        return int(np.quantile(self.totals, 0.5, method="lower"))

    def beyond(self, max_context: int) -> Beyond:
        """The requests that a context of so many tokens cannot hold."""
        totals = self.totals
        count = int(np.count_nonzero(totals > max_context))
        return Beyond(count, count / len(self), int(totals.max()))

    def fitting(self, max_context: int) -> LengthSample:
        """Without the requests longer than the context, which an engine rejects; the count goes to the notes.

        Raises `UsageError` when none fits."""
        over = self.beyond(max_context)
        if over.requests == 0:
            return self
        told = f"{over.requests:,} of {len(self):,} requests ({over.share:.2%}) are longer than {max_context:,} tokens"
        if over.requests == len(self):
            raise UsageError(
                f"{self.label}: all {len(self):,} requests are longer than {max_context:,} tokens "
                f"(the shortest has {int(self.totals.min()):,})",
                hint="name a model with a longer context, or check that lengths are tokens and not characters",
            )
        kept = self.totals <= max_context
        total = round(self.requests_total * (1 - over.share))
        note = f"{told} (the longest has {over.longest_tokens:,}): left out, as an engine would reject them"
        return replace(self.rows(np.flatnonzero(kept)), requests_total=total, notes=(*self.notes, note))

    def rows(self, at: Ints) -> LengthSample:
        """The rows at these places, in this order."""
        shared = None if self.shared is None else Shared(self.shared.tokens[at], self.shared.block_tokens)
        arrivals = None if self.arrivals_s is None else self.arrivals_s[at]
        return replace(self, inputs=self.inputs[at], outputs=self.outputs[at], arrivals_s=arrivals, shared=shared)

    def sample(self, n: int, seed: int) -> LengthSample:
        """`n` rows for a simulation: one from each of `n` equal strata of the rows sorted by total length, so that a
        small sample keeps the distribution, and every row a real (input, output) pair.

        In order of arrival where there are arrivals (the rate is then n / len of the recorded one), else shuffled. What
        was shared between rows is no longer known, so `shared` is None. `n` above the number of rows repeats them.
        """
        if n < 1:
            raise UsageError(f"a sample of {n} requests is empty", hint="ask for at least one")
        random = np.random.Generator(np.random.PCG64(seed))
        order = random.permutation(len(self))
        order = order[np.argsort(self.totals[order], kind="stable")]
        chosen = order[_one_of_each(n, len(self), random)]
        chosen = np.sort(chosen) if self.arrivals_s is not None else random.permutation(chosen)
        return replace(self.rows(chosen), shared=None, requests_total=n)

    def summary(self) -> dict[str, float | int]:
        """Means, quantiles and extremes of inputs, outputs and totals, by flat names."""
        found: dict[str, float | int] = {"rows": len(self), "requests": self.requests_total}
        for name, values in (("input", self.inputs), ("output", self.outputs), ("total", self.totals)):
            found[f"{name}_tokens_mean"] = float(values.mean())
            cuts = np.quantile(values, QUANTILES, method="lower").tolist()
            found |= {f"{name}_tokens_p{q * 100:.0f}": int(cut) for q, cut in zip(QUANTILES, cuts, strict=True)}
            found[f"{name}_tokens_max"] = int(values.max())
        return found


def noted(sample: LengthSample) -> LengthSample:
    """With the note that one length is no distribution, where that is so."""
    return replace(sample, notes=(*sample.notes, ONE_LENGTH)) if sample.is_one_length else sample


def _one_of_each(n: int, rows: int, random: np.random.Generator) -> Ints:
    """A place in each of `n` strata of so many rows; where there are enough, strata are whole rows, and none is taken
    twice."""
    edges = np.arange(n + 1) * rows / n
    edges = np.floor(edges) if n <= rows else edges
    places = np.floor(edges[:-1] + random.random(n) * np.diff(edges)).astype(np.int64)
    return np.asarray(np.minimum(places, rows - 1))


def _check(inputs: Ints, outputs: Ints, label: str) -> None:
    if len(inputs) != len(outputs):
        raise UsageError(f"{label}: {len(inputs)} inputs and {len(outputs)} outputs", hint="a request has one of each")
    if not len(inputs):
        raise UsageError(f"{label} has no requests", hint="give at least one length")
    for name, values in (("input", inputs), ("output", outputs)):
        if int(values.min()) < 1:
            bad = int(np.count_nonzero(values < 1))
            raise UsageError(
                f"{label}: {bad:,} {name} lengths are zero or negative", hint="a length is at least one token"
            )
