"""What a search strategy is: asked for the next configuration, told how it did."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.tune.space import Space

STRATEGIES = {
    "guided": "kvbench.tune.guided:Guided",
    "random": "kvbench.tune.baselines:Random",
    "exhaustive": "kvbench.tune.baselines:Exhaustive",
}


class Strategy(Protocol):
    """Places of the space's configurations go out, times come in; no place goes out twice."""

    def ask(self) -> int | None:
        """The configuration to try next; None when all have been tried."""
        ...

    def tell(self, place: int, time_s: float | None) -> None:
        """Its time, less is better; None when it could not be timed (did not compile, was wrong, hung …)."""
        ...


def make_strategy(name: str, space: Space, seed: int, first: tuple[int, ...] = ()) -> Strategy:
    """A new search. `first` are places to try before anything else: the default, and winners of like shapes."""
    if name not in STRATEGIES:
        raise UsageError(f"unknown search strategy {name!r}", hint=f"one of {', '.join(STRATEGIES)}")
    module, _, attribute = STRATEGIES[name].partition(":")
    strategy: Strategy = getattr(import_module(module), attribute)(space, seed, first)
    return strategy
