"""Tokens without a model. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvbench.cache.types import Int64s


def keyed_tokens(keys: Int64s, vocab_size: int) -> Int64s:
    """A token per key, evenly over the vocabulary: the key's upper 32 bits, scaled."""
    high = keys.view(np.uint64) >> np.uint64(32)
    return (high * np.uint64(vocab_size) >> np.uint64(32)).astype(np.int64)
