"""The few numbers of a finished sample that a person wants to see go by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvbench.units import format_bytes, format_count, format_seconds


def headline(data: Mapping[str, Any]) -> str:
    """`1,234 tok/s, TTFT p50 12.3 ms, TPOT p50 4.56 ms`, or a kernel's time and rate, or what went wrong."""
    if data.get("error"):
        return str(data["error"])
    parts = ["virtual"] if data.get("clock") == "virtual" else []
    if data.get("output_tokens_per_s") is not None:
        parts.append(f"{format_count(data['output_tokens_per_s'])} tok/s")
    for name, text in (("ttft_p50_s", "TTFT p50"), ("tpot_p50_s", "TPOT p50"), ("decode_s", "decode")):
        if data.get(name) is not None:
            parts.append(f"{text} {format_seconds(data[name])}")
    if data.get("bytes_per_s") is not None:
        parts.append(f"{format_bytes(data['bytes_per_s'])}/s")
    return ", ".join(parts)
