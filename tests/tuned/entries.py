"""Winners of the tests' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvbench.tuned.key import TunedKey
from kvbench.tuned.winner import Winner

KEY = TunedKey(
    "decode_numba", "s1", "a CPU, 2 threads", "numba 1", "fp32", "fp32", False, 16, 8, 2, 64, 64, "hnd", 8, 1024
)


def winner(key: TunedKey = KEY, configuration: dict[str, Any] | None = None, **changes: Any) -> Winner:
    found = Winner(
        key=key,
        configuration=configuration or {"split": 512, "tile": 64, "threads": 0},
        default={"split": 256, "tile": 64, "threads": 0},
        verdict="improved",
        time_s=1e-3,
        default_time_s=1.2e-3,
        gain=1.2,
        gain_low=1.1,
        gain_high=1.3,
        rounds=6,
        trials=20,
        tied_with=[],
        rule="a rule",
        tuned_at="2020-01-01T00:00:00Z",
        kvbench="0",
    )
    return replace(found, **changes)
