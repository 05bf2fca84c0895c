"""What of `decode_numba` can be tuned. No numba here, so that a plan can be made without it.

`split` tokens make a work item, `tile` tokens share one rescaling of the softmax, `threads` is the most threads that
one call uses (0: all that numba has). With `split` and `tile` fixed a sequence's result has the same bits in any batch
and with any number of threads; another split or tile rounds differently.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

TILES = (16, 32, 64, 128)
"""Every tile is a compiled variant of its own"""
SPLITS = (64, 128, 256, 512, 1024, 2048)
MAX_SPLIT = 1 << 20


@dataclass(frozen=True)
class Config:
    """One configuration; `ValueError` for one that the kernel cannot run."""

    split: int = 256
    tile: int = 64
    threads: int = 0

    def __post_init__(self) -> None:
        if any(not isinstance(value, int) or isinstance(value, bool) for value in asdict(self).values()):
            raise ValueError(f"split, tile and threads are whole numbers, not {asdict(self)}")
        if self.tile not in TILES:
            raise ValueError(f"a tile has one of {', '.join(map(str, TILES))} tokens, not {self.tile}")
        if self.split % self.tile or not 0 < self.split <= MAX_SPLIT:
            raise ValueError(f"a split of {self.split} tokens is no multiple of the tile of {self.tile}")
        if self.threads < 0:
            raise ValueError(f"{self.threads} threads")

    def parts(self, most: int) -> int:
        """Threads of a call that is worth `most` of them."""
        return min(most, self.threads) if self.threads else most


DEFAULT = Config()


def space(threads: int) -> dict[str, tuple[int, ...]]:
    """Values worth a search on so many threads; `allowed` says which combinations exist. All threads are spelled 0."""
    fewer = tuple(1 << bit for bit in range(threads.bit_length()) if 1 << bit < threads)
    return {"split": SPLITS, "tile": TILES, "threads": (*fewer, 0)}


def allowed(values: dict[str, Any]) -> str | None:
    """None for a configuration that can run, else why not."""
    try:
        Config(**values)
    except (TypeError, ValueError) as error:
        return str(error)
    return None
