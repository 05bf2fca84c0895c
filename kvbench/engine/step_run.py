"""Steps as columns: a run of equal-shaped steps kept as a few arrays instead of a record each. Torch-free."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.engine.telemetry import StepRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIELDS = tuple(field.name for field in fields(StepRecord))


@dataclass(frozen=True, slots=True)
class StepRun(Collection[StepRecord]):
    """Consecutive steps. `columns` are the fields that differ, `[n]` each; `base` has all the others."""

    base: StepRecord
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["step"])

    def __iter__(self) -> Iterator[StepRecord]:
        """The steps as the plain loop would have recorded them."""
        constant = {name: getattr(self.base, name) for name in _FIELDS if name not in self.columns}
        names = list(self.columns)
        for values in zip(*(column.tolist() for column in self.columns.values()), strict=True):
            yield StepRecord(**constant, **dict(zip(names, values, strict=True)))

    def __contains__(self, record: object) -> bool:
        return any(record == own for own in self)

    def column(self, name: str) -> NDArray[Any]:
        """`[n]` values of a field."""
        found = self.columns.get(name)
        return np.full(len(self), getattr(self.base, name)) if found is None else found
