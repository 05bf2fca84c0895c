"""The blocks of a workload as numbers: equal numbers are equal tokens behind equal tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.workload.sharing import runs

if TYPE_CHECKING:
    from kvbench.workload.request import Request, Segment


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. Of its tokens all but the last output token have K and V."""

    contents: list[int]
    """Contents of its full blocks, prompt and output"""
    lookups: int
    """How many of them a look-up may find: the prompt's last token is always computed"""
    prompt_blocks: int
    """Blocks of the prompt, a partly filled one included"""
    full_prompt_blocks: int
    blocks: int
    """Blocks at its longest"""
    input_tokens: int
    priority: int


@dataclass(frozen=True, slots=True)
class Sequences:
    """Requests in their order, and of every content its parent (−1 for a first block) and depth."""

    block_size: int
    requests: list[Asked]
    parents: list[int]
    depths: list[int]

    @property
    def distinct(self) -> int:
        return len(self.parents)

    @property
    def longest(self) -> int:
        """Blocks of the longest request."""
        return max((asked.blocks for asked in self.requests), default=0)


def number_blocks(requests: Sequence[Request], block_size: int) -> Sequences:
    """Blocks by the token streams that they name. What a model answers by itself (no forced output) is shared with
    nobody."""
    known: dict[tuple[object, ...], int] = {}
    parents: list[int] = []
    depths: list[int] = []
    asked = []
    for request in requests:
        stored = request.input_tokens + request.output_tokens - 1
        before: object = ("salt", request.salt)
        parent, contents = -1, []
        named = _pieces(runs((*request.prompt, *(request.output or ()))), block_size)
        for depth in range(stored // block_size):
            piece = next(named, None)
            key = (before, len(parents)) if piece is None else (before, *piece)
            content = known.setdefault(key, len(parents))
            if content == len(parents):
                parents.append(parent)
                depths.append(depth)
            before = parent = content
            contents.append(content)
        asked.append(_asked(request, contents, stored, block_size))
    return Sequences(block_size, asked, parents, depths)


def _asked(request: Request, contents: list[int], stored: int, block_size: int) -> Asked:
    return Asked(
        contents=contents,
        lookups=(request.input_tokens - 1) // block_size,
        prompt_blocks=-(-request.input_tokens // block_size),
        full_prompt_blocks=min(request.input_tokens // block_size, len(contents)),
        blocks=-(-stored // block_size),
        input_tokens=request.input_tokens,
        priority=request.priority,
    )


def _pieces(segments: list[Segment], block_size: int) -> Iterator[tuple[int, ...]]:
    """Of each whole block (stream, start, length) of the pieces that it is made of, one after the other."""
    block: list[int] = []
    room = block_size
    for segment in segments:
        at, left = segment.start, segment.length
        while left >= room:
            yield (*block, segment.stream, at, room)
            at, left = at + room, left - room
            block, room = [], block_size
        if left:
            block += (segment.stream, at, left)
            room -= left
