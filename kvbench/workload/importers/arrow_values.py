"""Numbers of Arrow columns as numpy arrays, without pandas: Arrow's own `to_numpy` imports it, which takes longer than
reading a million rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def values_of(column: Any) -> NDArray[Any]:
    """`[n]` of an array or a chunked array of numbers without nulls; read-only where nothing had to be copied."""
    chunks = getattr(column, "chunks", [column])
    found = [np.from_dlpack(chunk) for chunk in chunks if len(chunk)]
    if not found:
        return np.zeros(0, column.type.to_pandas_dtype())
    return found[0] if len(found) == 1 else np.concatenate(found)
