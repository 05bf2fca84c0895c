"""What the virtual clock asks of a cost model, whoever it is: `CostModel` (rates of a device) or `FittedCost` (a file
that `kvbench fit` wrote)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvbench.costmodel.features import StepFeatures


class StepCost(Protocol):
    """Seconds of the steps and the block copies of one engine. The same numbers in give the same seconds out."""

    windows: tuple[int | None, ...]
    """Of the model's layer groups; the lists of `StepFeatures` have an entry for each"""
    block_size: int
    block_bytes: int
    """One block, all layers"""

    def features(
        self, starts: NDArray[np.integer], counts: NDArray[np.integer], num_decodes: int, sampled: int
    ) -> StepFeatures:
        """Of a step over sequences whose `counts` query tokens begin at `starts`; the first `num_decodes` decode."""
        ...

    def step_s(self, step: StepFeatures) -> float:
        """Seconds of one step, its transfers apart."""
        ...

    def decode_run_s(self, lengths: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
        """`[steps]` seconds of consecutive steps that decode sequences of these lengths (the query token included in
        the first step) and nothing else: bit for bit what `step_s` says of each of them."""
        ...

    def copies_s(self, kind: str, blocks: int) -> float:
        """Copying so many blocks in one go; `kind` is one of the cache's kinds of block copy."""
        ...
