"""One tuned configuration with the evidence for it, to and from JSON."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from kvbench.errors import DataError, UsageError
from kvbench.tuned.key import BUCKETED, TunedKey

SCHEMA_VERSION = 1
VERDICTS = ("improved", "confirmed")
_HINT = "it was not written by kvbench tune, or is damaged"


@dataclass(frozen=True, slots=True)
class Winner:
    """`gain` is default time ÷ winner's time, with its interval; 1 where the default was confirmed."""

    key: TunedKey
    configuration: dict[str, Any]
    default: dict[str, Any]
    verdict: str
    time_s: float
    default_time_s: float
    gain: float
    gain_low: float
    gain_high: float
    rounds: int
    """Fresh processes that the choice was measured in"""
    trials: int
    tied_with: list[dict[str, Any]]
    """Configurations that could not be told from the winner, which a fixed rule preferred"""
    rule: str
    tuned_at: str
    kvbench: str

    @property
    def digest(self) -> str:
        """sha256 of all that it says."""
        return hashlib.sha256(_canonical(asdict(self)).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "digest": self.digest}


def winner_from(data: Any, name: str) -> Winner:
    """`DataError` naming the file for what is no winner, `UsageError` for a newer kvbench's."""
    if not isinstance(data, dict):
        raise DataError(f"{name} holds no tuned configuration", hint=_HINT)
    version = data.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        raise UsageError(f"{name} was written by a newer kvbench", hint="upgrade kvbench, or tune again")
    found = {key: value for key, value in data.items() if key not in ("schema_version", "digest")}
    try:
        winner = Winner(**{**found, "key": TunedKey(**found["key"])})
        _check(winner)
        is_whole = type(version) is int and version == SCHEMA_VERSION and winner.digest == data.get("digest")
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"{name} holds no tuned configuration: {error}", hint=_HINT) from None
    if not is_whole:
        raise DataError(f"{name} is not what was written: its digest does not match", hint=_HINT)
    return winner


def table_digest(winners: list[Winner]) -> str:
    """One digest of which configuration is used for what; the evidence, the source's version and the order of entries
    do not count."""
    facts = sorted(_canonical([w.key.kernel, w.key.label, w.configuration]) for w in winners)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _check(winner: Winner) -> None:
    for field in fields(TunedKey):
        value = getattr(winner.key, field.name)
        if type(value).__name__ != field.type:
            raise ValueError(f"key.{field.name} is {value!r}")
    if any(getattr(winner.key, name) < 1 for name in (*BUCKETED, "block_size", "kv_heads", "k_dim")):
        raise ValueError("a size below 1")
    for name, kind in (("rounds", int), ("trials", int), ("rule", str), ("tuned_at", str), ("kvbench", str)):
        if type(getattr(winner, name)) is not kind:
            raise ValueError(f"{name} is {getattr(winner, name)!r}")
    numbers = (winner.time_s, winner.default_time_s, winner.gain, winner.gain_low, winner.gain_high)
    if not all(isinstance(x, int | float) and math.isfinite(x) and x > 0 for x in numbers):
        raise ValueError("a time or gain that is no positive number")
    if winner.verdict not in VERDICTS:
        raise ValueError(f"verdict {winner.verdict!r}")
    for values in (winner.configuration, winner.default, *winner.tied_with):
        if not isinstance(values, dict) or not all(isinstance(v, int | float | str | bool) for v in values.values()):
            raise ValueError("a configuration that is none")


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
