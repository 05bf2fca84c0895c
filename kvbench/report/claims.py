"""What a run says of its suite's claim, below the tables: for people, and as records for machines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from kvbench.analysis.claims.types import WORDS, ClaimVerdict
from kvbench.tabulate import markdown, one_line

CLAIM_TITLE = "Did the claims of the suite hold in this run?"
_WORD = max(map(len, WORDS)) + 2
CLAIM_HEADS = ("here", "claim", "because")


def claim_lines(claims: Sequence[ClaimVerdict], width: int) -> Iterator[str]:
    """Lines of at most `width` cells: verdict and claim, below them the numbers; nothing without verdicts."""
    if claims:
        yield CLAIM_TITLE
    for one in claims:
        yield from _folded(f"{one.held:<{_WORD}}{one_line(one.claim)}", width)
        yield from _folded(f"{'':<{_WORD}}{one_line(one.because)}", width)


def claim_markdown(claims: Sequence[ClaimVerdict]) -> str:
    """The same as a pipe table under a line of its own."""
    rows = [(one.held, one.claim, one.because) for one in claims]
    return f"**{CLAIM_TITLE}**\n\n{markdown(CLAIM_HEADS, rows)}\n" if claims else ""


def claim_records(claims: Sequence[ClaimVerdict]) -> list[dict[str, Any]]:
    """One object per verdict."""
    return [
        {
            "claim": one.claim,
            "held": one.held,
            "because": one.because,
            "is_modelled": one.is_modelled,
            "numbers": one.numbers,
        }
        for one in claims
    ]


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, max(width, 2 * _WORD), subsequent_indent=" " * _WORD, break_on_hyphens=False, drop_whitespace=True
    )
