"""What every importer yields, and the parsing of single values."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from kvbench.workload.arrivals import MAX_NS
from kvbench.workload.lengths import MAX_TOKENS

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}(?:\.0*)?", re.ASCII)


class MalformedError(Exception):
    """A value that is not what its column promises; the reader adds file and line and makes it a `UsageError`."""


class Link(NamedTuple):
    """How a row of our own format hangs together with others."""

    request_id: int | str | None = None
    after: int | str | None = None
    think_time_s: float = 0.0
    session_id: int | str | None = None
    salt: str | None = None
    priority: int | None = None


class Row(NamedTuple):
    """One row as recorded: nothing dropped, scaled or clipped yet. `output_tokens` is None when not recorded."""

    input_tokens: int
    output_tokens: int | None
    arrival_ns: int | None = None
    hash_ids: list[int] | None = None
    block_tokens: int | None = None
    link: Link | None = None


def tokens_in(text: str, column: str) -> int:
    """A token count in a CSV cell; `374` and `374.0` are the same count, negative ones are left to the caller."""
    if len(text) < 10 and text.isascii() and text.isdigit():
        return int(text)
    text = text.strip()
    if _WHOLE.fullmatch(text) is None:
        raise MalformedError(f"{column} is {shown(text)}, not a token count")
    return _token_range(int(text.partition(".")[0]), column)


def tokens_from(record: dict[str, Any], key: str) -> int:
    """A token count in a JSON object."""
    value = record.get(key)
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        problem = f"has no {key!r}" if key not in record else f"{key} is {shown(value)}, not a token count"
        raise MalformedError(problem)
    return _token_range(value, key)


def nanoseconds(value: Any, scale: int, name: str) -> int:
    """A time in units of `scale` nanoseconds, from JSON or a CSV cell."""
    if isinstance(value, str):
        value = _number(value, name)
    if type(value) not in (int, float) or value != value or value in (math.inf, -math.inf):
        raise MalformedError(f"{name} is {shown(value)}, not a time")
    time: int = round(value * scale) if abs(value) < MAX_NS else MAX_NS
    if abs(time) >= MAX_NS:
        raise MalformedError(f"{name} is {shown(value)}, more than a century away")
    return time


def shown(value: Any) -> str:
    """The offending value, short enough for one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise MalformedError(f"{name} is {shown(text)}, not a number") from None


def _token_range(tokens: int, name: str) -> int:
    if tokens > MAX_TOKENS:
        raise MalformedError(f"{name} is {shown(tokens)}, more tokens than any model takes")
    return tokens
