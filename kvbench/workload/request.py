"""One request as it arrives, before any engine has seen it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` tokens of the endless token stream `stream`, from position `start` on.

    Two requests share a prefix exactly when their segments name the same stream positions (M57, M58).
    """

    stream: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Request:
    """What to serve.

    `arrival_s` counts from the start of the workload; with `after` set the request arrives `think_time_s`
    after request `after` has finished, and `arrival_s` (its conversation's start, or what a trace records) is only
    its earliest moment.
    `output` names the ids that are appended when outputs are forced, None when they are the model's own.
    `sum(segment.length for segment in prompt) == input_tokens` always.
    """

    request_id: int
    input_tokens: int
    output_tokens: int
    prompt: tuple[Segment, ...]
    arrival_s: float = 0.0
    output: tuple[Segment, ...] | None = None
    after: int | None = None
    think_time_s: float = 0.0
    session_id: int | None = None
    salt: str | None = None
    priority: int = 0
    """Higher is more important."""
