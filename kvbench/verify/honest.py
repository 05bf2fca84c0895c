"""What the oracle's model answers to a request, worked out without any engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.verify.chain import ROOT, next_link, token_after

if TYPE_CHECKING:
    from kvbench.verify.scenario import Ask

VOCAB = 1000
STOP_TOKENS = frozenset(range(0, VOCAB, 9))


def honest_output(ask: Ask) -> list[int]:
    """The request's output tokens, one after another."""
    link, output = ROOT, list[int]()
    for token in ask.prompt:
        link = next_link(link, token)
    for at in range(ask.output):
        output.append(token_after(link, VOCAB) if ask.forced is None else ask.forced[at])
        link = next_link(link, output[-1])
        if ask.stops and output[-1] in STOP_TOKENS:
            break
    return output
