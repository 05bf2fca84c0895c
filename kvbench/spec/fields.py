"""What every settings model shares: strictness, frozen values, sizes and dtypes as people write them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from kvbench.errors import UsageError
from kvbench.geometry.dtypes import canonical_dtype
from kvbench.units import parse_bytes


class Settings(BaseModel):
    """A section of a suite. Unknown keys are errors, docs stand under the fields and reach the JSON Schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, strict=False)


def _size(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return parse_bytes(value)
        except UsageError as error:
            raise ValueError(f"{error.message}; {error.hint}") from None
    return value


def _size_or_auto(value: Any) -> Any:
    return value if value == "auto" else _size(value)


def _dtype(value: Any) -> Any:
    return canonical_dtype(value) if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(_size)]
BytesOrAuto = Annotated[int | str, BeforeValidator(_size_or_auto)]
DtypeName = BeforeValidator(_dtype)
