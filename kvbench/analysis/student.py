"""Quantiles of Student's t (Gosset 1908), for every interval that is over a few samples.

By `scipy.special`: `scipy.stats` would take a second to import.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def quantile(chance: float, df: ArrayLike) -> NDArray[np.float64]:
    """The value below which Student's t with `df` degrees of freedom is with this chance, in the shape of `df`. Few
    values of `df` differ, and each is looked up once."""
    from scipy.special import stdtrit

    known, places = np.unique(df, return_inverse=True)
    return np.asarray(stdtrit(known, chance)[places], dtype=np.float64).reshape(np.shape(df))
