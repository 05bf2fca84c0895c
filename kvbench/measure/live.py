"""What an engine counts, told while it serves: at most four times a second, between steps. Torch-free.

Adding up a step takes about a microsecond and telling about 20 (`benchmarks/live_metrics.py`); nothing is added up or
told unless somebody asked for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import add, attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.engine.telemetry import StepRecord

Numbers = dict[str, float]
Tell = Callable[[Numbers], None]
EVERY_S = 0.25

STATES = (
    "kv_capacity_bytes", "kv_bytes_used", "kv_blocks_total", "kv_blocks_free", "live_cached_tokens", "active_sequences",
    "waiting_sequences", "batch_size", "host_bytes_used", "disk_bytes_used", "swap_bytes_used",
)  # fmt: skip
"""Fields of a step that say how things stand; the last one counts."""
TOTALS = (
    "admissions", "preemptions", "evictions", "prefix_cache_queries", "prefix_cache_hits", "prefill_tokens",
    "decode_tokens", "host_offload_bytes", "host_promotions", "disk_offload_bytes", "disk_promotions", "swap_out_bytes",
    "swap_in_bytes", "promotion_stall_s", "copy_on_write_copies",
)  # fmt: skip
"""Fields of a step that count what happened in it; they are added up over the sample."""
STEPS = "steps"
_states, _totals = attrgetter(*STATES), attrgetter(*TOTALS)


class LiveCounters:
    """Running totals of one sample. To be called with every step."""

    def __init__(self, tell: Tell, *, every_s: float = EVERY_S) -> None:
        self._tell = tell
        self._every_s = every_s
        self.begin()

    def begin(self) -> None:
        """Count from 0: a sample begins, or is taken again."""
        self._steps = 0
        self._sums: tuple[float, ...] = (0,) * len(TOTALS)
        self._last: StepRecord | None = None
        self._due = time.monotonic() + self._every_s

    def __call__(self, step: StepRecord) -> None:
        self._steps += 1
        self._sums = tuple(map(add, self._sums, _totals(step)))
        self._last = step
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Tell how things stand now."""
        self._due = time.monotonic() + self._every_s
        if self._last is not None:
            states = zip(STATES, _states(self._last), strict=True)
            self._tell({STEPS: self._steps, **dict(states), **dict(zip(TOTALS, self._sums, strict=True))})
