"""Did the claim that a suite re-measures hold in this run? `verdicts(run)` answers, claim by claim."""

from kvbench.analysis.claims.registry import verdicts
from kvbench.analysis.claims.types import ClaimVerdict, Held

__all__ = ["ClaimVerdict", "Held", "verdicts"]
