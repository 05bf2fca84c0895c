"""Cutting requests to the longest lengths asked for, and counting every cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.workload.request import Segment

if TYPE_CHECKING:
    from kvbench.spec.workload import WorkloadSettings


class Clipper:
    """Keeps the front of a prompt, since the front is what requests share."""

    def __init__(self, settings: WorkloadSettings) -> None:
        self.inputs = 0
        self.outputs = 0
        self._max_input = settings.max_input_tokens
        self._max_output = settings.max_output_tokens

    def input(self, tokens: int) -> int:
        """The prompt's length after clipping."""
        if self._max_input is None or tokens <= self._max_input:
            return tokens
        self.inputs += 1
        return self._max_input

    def output(self, tokens: int) -> int:
        """The output's length after clipping."""
        if self._max_output is None or tokens <= self._max_output:
            return tokens
        self.outputs += 1
        return self._max_output

    def prompt(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """The prompt's segments after clipping."""
        length = sum(segment.length for segment in segments)
        kept = self.input(length)
        return segments if kept == length else front(segments, kept)


def front(segments: tuple[Segment, ...], length: int) -> tuple[Segment, ...]:
    """The first `length` tokens of the segments."""
    kept: list[Segment] = []
    for segment in segments:
        if length <= 0:
            break
        kept.append(Segment(segment.stream, segment.start, min(segment.length, length)))
        length -= segment.length
    return tuple(kept)
