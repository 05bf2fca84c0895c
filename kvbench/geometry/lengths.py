"""Sequence lengths as people write them: `8k`, `1500`, `lognormal(1000,4000)`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import NormalDist

from kvbench.errors import UsageError

LONGEST = 10**9
QUANTILES = 1000
_ITEM = re.compile(r"\s*([^,()]+(?:\([^()]*\))?)\s*(?:,|$)")
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKmM]?)")
_LOGNORMAL = re.compile(r"lognormal\s*\(([^,()]+),([^,()]+)\)", re.IGNORECASE)
_HINT = "write token counts such as 1500 or 8k (k = 1,024), or lognormal(p50,p95), separated by commas"


@dataclass(frozen=True, slots=True)
class Lengths:
    """One length, or equally likely lengths that stand for a distribution."""

    label: str
    tokens: tuple[int, ...]
    clipped_share: float = 0.0

    def up_to(self, longest: int) -> Lengths:
        """The same with longer ones cut to `longest`, and the share that was cut."""
        cut = sum(tokens > longest for tokens in self.tokens)
        return Lengths(self.label, tuple(min(t, longest) for t in self.tokens), cut / len(self.tokens))

    @property
    def mean(self) -> float:
        return sum(self.tokens) / len(self.tokens)


def parse_lengths(text: str, quantiles: int = QUANTILES) -> list[Lengths]:
    """`"1k,8k,lognormal(1000,4000)"` → one `Lengths` each. `UsageError` names the part that is wrong.

    A lognormal is given by its median and its 95th percentile, and stands for so many of its mid-quantiles.
    """
    found: list[Lengths] = []
    position = 0
    while position < len(text):
        item = _ITEM.match(text, position)
        if item is None:
            raise UsageError(f"{text[position:]!r} in the lengths is not understood", hint=_HINT)
        found.append(_one(item.group(1).strip(), quantiles))
        position = item.end()
    if not found:
        raise UsageError("no lengths given", hint=_HINT)
    return found


def _one(text: str, quantiles: int) -> Lengths:
    drawn = _LOGNORMAL.fullmatch(text)
    if drawn is None:
        return Lengths(text, (_count(text),))
    median, high = _count(drawn.group(1).strip()), _count(drawn.group(2).strip())
    if high < median:
        raise UsageError(f"{text}: the 95th percentile {high} is below the median {median}", hint=_HINT)
    return Lengths(text, _lognormal(median, high, quantiles))


def _lognormal(median: int, p95: int, quantiles: int) -> tuple[int, ...]:
    normal = NormalDist()
    sigma = math.log(p95 / median) / normal.inv_cdf(0.95)
    shares = ((i + 0.5) / quantiles for i in range(quantiles))
    return tuple(max(1, round(median * math.exp(sigma * normal.inv_cdf(share)))) for share in shares)


def _count(text: str) -> int:
    found = _COUNT.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a number of tokens", hint=_HINT)
    scale = {"": 1, "k": 1 << 10, "m": 1 << 20}[found.group(2).lower()]
    tokens = round(float(found.group(1)) * scale) if len(found.group(1)) <= 12 else LONGEST + 1
    if not 1 <= tokens <= LONGEST:
        raise UsageError(f"a length of {text} tokens is outside 1 … {LONGEST:,}", hint=_HINT)
    return tokens
