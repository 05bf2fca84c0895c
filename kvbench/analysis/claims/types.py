"""What is said of a claim: the claim, whether it held in a run, and from which numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Held = Literal["held", "not held", "unclear", "not tested"]
WORDS: tuple[Held, ...] = ("held", "not held", "unclear", "not tested")
MODELLED = "modelled"


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """Whether one claim held in one run, on its device and under its traffic."""

    claim: str
    held: Held
    because: str
    """One line with the numbers; begins with `modelled` where a cost model made them."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """`quantity`, `wanted`, and `points`: where, value, low, high (95 %) and samples of every estimate; plain JSON."""
    is_modelled: bool = False
