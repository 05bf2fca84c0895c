"""A search space: named parameters with their values, and the configurations that are allowed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Value = int | float | str | bool
Configuration = tuple[Value, ...]


@dataclass(frozen=True)
class Space:
    """`configurations` are the allowed ones, in a fixed order, each with a value for every name."""

    names: tuple[str, ...]
    configurations: tuple[Configuration, ...]
    place: dict[Configuration, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", {c: at for at, c in enumerate(self.configurations)})
        if not self.configurations:
            raise UsageError("no configuration is allowed", hint="loosen the constraints of the search space")
        if len(self.place) != len(self.configurations):
            raise UsageError("a configuration of the search space is listed twice")

    @classmethod
    def of(
        cls,
        values: Mapping[str, Sequence[Value]],
        constraints: Iterable[Callable[[dict[str, Any]], bool]] = (),
    ) -> Space:
        """All combinations that every constraint allows."""
        names, rules = tuple(values), tuple(constraints)
        allowed = (
            c for c in product(*values.values()) if all(rule(dict(zip(names, c, strict=True))) for rule in rules)
        )
        return cls(names, tuple(allowed))

    def __len__(self) -> int:
        return len(self.configurations)

    def as_dict(self, at: int) -> dict[str, Value]:
        return dict(zip(self.names, self.configurations[at], strict=True))

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """`[n, d]` each value's rank among those that its parameter takes; text keeps its order of appearance."""
        return np.array([_ranks(column) for column in zip(*self.configurations, strict=True)], dtype=np.int64).T

    @cached_property
    def _spans(self) -> NDArray[np.int64]:
        """`[d]` the highest rank of every parameter, 1 where there is only one."""
        return np.asarray(np.maximum(self.levels.max(axis=0), 1))

    @cached_property
    def _logs(self) -> NDArray[np.float64]:
        """`[n, p]` of the parameters that are positive numbers."""
        logs = [np.log2(np.array(c, dtype=np.float64)) for c in zip(*self.configurations, strict=True) if _positive(c)]
        return np.array(logs).T if logs else np.zeros((len(self), 0))

    def features(self, places: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """`[len(places), f]` what a surrogate sees: ranks from 0 to 1, and logarithms of products and quotients of any
        two positive numbers, since threads, bytes and waves are such products. They are as many as the square of the
        parameters, so there is no table of the whole space."""
        ranks = self.levels[places] / self._spans
        logs = self._logs[places]
        one, other = np.triu_indices(logs.shape[1], 1)
        pairs = np.stack([logs[:, one] + logs[:, other], logs[:, one] - logs[:, other]], axis=2)
        return np.hstack([ranks, pairs.reshape(len(places), 2 * len(one))])

    def neighbours(self, at: int) -> NDArray[np.int64]:
        """Allowed configurations that differ in exactly one parameter."""
        return np.flatnonzero((self.levels != self.levels[at]).sum(axis=1) == 1)


def _ranks(column: Sequence[Value]) -> list[int]:
    distinct = dict.fromkeys(column)
    ordered = list(distinct) if any(isinstance(v, str) for v in distinct) else sorted(distinct)
    rank = {value: at for at, value in enumerate(ordered)}
    return [rank[value] for value in column]


def _positive(column: Sequence[Value]) -> bool:
    """Numbers above 0 that vary."""
    return len(set(column)) > 1 and all(
        isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in column
    )
