"""What every settings model shares: strictness, frozen values, and sizes, ratios and dtypes as people write them.

`$comment` in a field's JSON Schema is the field's expectation in words: error messages and the docs quote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from kvbench.errors import UsageError
from kvbench.geometry.dtypes import ALIASES, canonical_dtype
from kvbench.units import parse_bytes

MAX_COUNT = 2**31 - 1
"""Largest count of tokens, sequences or requests: it must fit an int32."""
MAX_BYTES = 2**62

PARTIAL = {"partial": True}
"""Validation context of settings that axes will complete: fields are checked, combinations are not yet."""


class Settings(BaseModel):
    """A section of a suite. Unknown keys are errors, docs stand under the fields and reach the JSON Schema."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, strict=True, allow_inf_nan=False
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Combinations that make no sense: (field, what is wrong and what would be right)."""
        return iter(())

    @model_validator(mode="after")
    def _combination_makes_sense(self, info: ValidationInfo) -> Self:
        found = [] if (info.context or {}).get("partial") else list(self.conflicts())
        if found:
            text = "; ".join(text for _, text in found)
            raise PydanticCustomError("conflict", "{text}", {"text": text, "conflicts": found})
        return self


_LONGEST_SIZE = 40


def _size(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if len(value) > _LONGEST_SIZE:
        raise ValueError(f"{value[:_LONGEST_SIZE]!r}… is not a size in bytes such as 64MiB")
    try:
        return parse_bytes(value)
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from None


def _size_or_auto(value: Any) -> Any:
    return value if value == "auto" else _size(value)


def _ratio(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    top, slash, bottom = value.partition("/")
    try:
        return float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"{value[:40]!r} is not a ratio such as 1/16") from None


def _dtype(value: Any) -> Any:
    return canonical_dtype(value) if isinstance(value, str) else value


def dtype_schema(*names: str) -> WithJsonSchema:
    """JSON Schema of a dtype field: the canonical names and the other spellings that we accept."""
    spellings = [alias for alias, name in ALIASES.items() if name in names]
    return WithJsonSchema({"type": "string", "enum": [*names, *spellings], "$comment": f"one of {', '.join(names)}"})


_SIZE_TEXT = {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([KMGT]iB|[kKMGT]B|B)?\s*$"}
_SIZE_WORDS = "a size in bytes such as 64MiB"

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrAuto = Annotated[int, Field(ge=1, le=MAX_COUNT)] | Literal["auto"]
Bytes = Annotated[
    int,
    BeforeValidator(_size),
    Field(ge=0, le=MAX_BYTES),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, _SIZE_TEXT], "$comment": _SIZE_WORDS}),
]
BytesOrAuto = Annotated[
    Annotated[int, Field(ge=1, le=MAX_BYTES)] | Literal["auto"],
    BeforeValidator(_size_or_auto),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}, _SIZE_TEXT],
            "$comment": f"{_SIZE_WORDS}, at least 1, or auto",
        }
    ),
]
Ratio = Annotated[
    float,
    BeforeValidator(_ratio),
    Field(gt=0, le=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                {"type": "string", "pattern": r"^\s*[0-9.]+\s*(/\s*[0-9.]+\s*)?$"},
            ],
            "$comment": "a number above 0 and at most 1, or a ratio such as 1/16",
        }
    ),
]
DtypeName = BeforeValidator(_dtype)
