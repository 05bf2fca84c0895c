"""What the oracle's model answers to a request, worked out without any engine, cache or table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.beams import BeamParams, BeamSearch
from kvbench.engine.keys import request_key, token_keys
from kvbench.verify.chain import ROOT, candidates_after, next_link, token_after

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.verify.scenario import Ask

VOCAB = 1000
STOP_TOKENS = frozenset(range(0, VOCAB, 9))


def stop_tokens(ask: Ask) -> frozenset[int]:
    """A beam search looks at more candidates the more stop tokens there are: it gets one."""
    if not ask.stops:
        return frozenset()
    return frozenset({0}) if ask.beams else STOP_TOKENS


def honest_outputs(ask: Ask) -> list[list[int]]:
    """The request's outputs: one, its samples, or the hypotheses of its beam search, best first."""
    if ask.beams:
        return _beam_search(ask)
    return [_output(ask, sample) for sample in range(ask.samples)]


def _output(ask: Ask, sample: int) -> list[int]:
    """One token after another."""
    link, output = _link_of(ask.prompt), list[int]()
    for at in range(ask.output):
        key = _key(ask, sample, at) if ask.samples > 1 else None
        output.append(token_after(link, VOCAB, key) if ask.forced is None else ask.forced[at])
        link = next_link(link, output[-1])
        if output[-1] in stop_tokens(ask):
            break
    return output


def _beam_search(ask: Ask) -> list[list[int]]:
    """The search over whole token lists, every number computed anew."""
    search = BeamSearch(BeamParams(ask.beams), ask.output, stop_tokens(ask))
    outputs: list[list[int]] = [[]]
    while not search.is_over:
        found = [candidates_after(_link_of([*ask.prompt, *one]), VOCAB, search.candidates) for one in outputs]
        ids = np.array([ids for ids, _ in found], np.int64)
        parents, tokens = search.advance(outputs, ids, np.array([scores for _, scores in found]))
        outputs = [[*outputs[parent], token] for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True)]
    return [hypothesis.tokens for hypothesis in search.hypotheses]


def _link_of(tokens: Iterable[int]) -> int:
    link = ROOT
    for token in tokens:
        link = next_link(link, token)
    return link


def _key(ask: Ask, sample: int, index: int) -> int:
    start = np.array([request_key(0, ask.request_id, sample)], np.uint64)
    return int(token_keys(start, np.array([index]))[0])
