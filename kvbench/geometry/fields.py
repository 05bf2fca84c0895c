"""Reads typed values out of a `config.json`, naming the file and the field when one is missing or wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kvbench.errors import UsageError

LARGEST = 2**40
"""No dimension of a model is near this; a larger number in a config is damage, not a model."""


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object of a config. `where` is what messages call it."""

    values: dict[str, Any]
    where: str

    def has(self, key: str) -> bool:
        """Present and not null."""
        return self.values.get(key) is not None

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`; `default` when absent or null, None = required."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= LARGEST:
            raise self._wrong(key, value, f"a whole number of at least {least}")
        if value != int(value):
            raise self._wrong(key, value, "a whole number")
        return int(value)

    def maybe_count(self, key: str, *, least: int = 1) -> int | None:
        """A whole number, or None when the field is absent or null."""
        return self.count(key, least=least) if self.has(key) else None

    def number(self, key: str, default: float) -> float:
        """A positive finite number."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def maybe_number(self, key: str) -> float | None:
        """A positive finite number, or None when the field is absent or null."""
        return self.number(key, 0.0) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def section(self, key: str) -> Fields | None:
        """A nested JSON object, or None when the field is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(value, f"{self.where}, {key}")

    def names(self, key: str) -> list[str] | None:
        """A list of text, or None when the field is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of names")
        return value

    def _wrong(self, key: str, value: object, expected: str) -> UsageError:
        if key not in self.values:
            return UsageError(f"{self.where}: field {key!r} is missing", hint=f"it should be {expected}")
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return UsageError(f"{self.where}: field {key!r} is {shown}", hint=f"it should be {expected}")
