"""The terms of a fitted step time: what each counts, and steps as rows of a matrix of them.

    step          1, every step                          sampled_rows   rows through the output head
    prefill_step  1, a step with a piece of a prompt     decode_reads   KV tokens that decoding reads      ⎫ summed
    sequences     sequences that compute                 block_reads    block-table entries followed       ⎬ over all
    prefills      of these, with a piece of a prompt     prefill_reads  KV tokens that prompts read        ⎪ layers
    tokens_i      query tokens between two knots         prefill_pairs  (query, key) products of prompts   ⎭
    copy_bytes, host_bytes, disk_bytes                   bytes of block copies on the device, to and from host, disk

Query tokens enter piecewise: `tokens_i` is what of them lies between knots i − 1 and i, so that non-negative
coefficients make any non-decreasing curve through the knots. A matrix product on a CPU is no straight line.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

OVERHEADS = ("step", "prefill_step", "sequences", "prefills")
ATTENTION = ("decode_reads", "block_reads", "prefill_reads", "prefill_pairs")
COPIES = ("copy_bytes", "host_bytes", "disk_bytes")
TOKENS = "tokens_"

COUNTS = ("sequences", "prefills", "tokens", "sampled_rows", *ATTENTION)
"""What is counted of a step; the domain of a fit is their ranges."""
UNITS = {
    "step": "step", "prefill_step": "step with prompt tokens", "sequences": "sequence", "prefills": "prompt piece",
    "sampled_rows": "row", "decode_reads": "KV token and layer", "block_reads": "table entry and layer",
    "prefill_reads": "KV token and layer", "prefill_pairs": "pair and layer", "copy_bytes": "B", "host_bytes": "B",
    "disk_bytes": "B",
}  # fmt: skip


def term_names(knots: tuple[int, ...]) -> tuple[str, ...]:
    """Every term, in the order of the matrix's columns."""
    segments = tuple(f"{TOKENS}{at}" for at in range(len(knots) + 1))
    return (*OVERHEADS, *segments, "sampled_rows", *ATTENTION, *COPIES)


def unit_of(name: str, knots: tuple[int, ...]) -> str:
    """What one of a term is, in words."""
    if not name.startswith(TOKENS):
        return UNITS[name]
    at = int(name.removeprefix(TOKENS))
    below = knots[at - 1] if at else 0
    return f"token from {below} to {knots[at]}" if at < len(knots) else f"token above {below}"


def segments(tokens: Floats, knots: tuple[int, ...]) -> Floats:
    """`[n, len(knots) + 1]`: what of each number of tokens lies between the knots; each row adds up to it."""
    edges = [0.0, *map(float, knots), np.inf]
    return np.stack([np.clip(tokens - low, 0.0, high - low) for low, high in pairwise(edges)], axis=-1)


def matrix(steps: Mapping[str, Floats], knots: tuple[int, ...]) -> Floats:
    """`[n, terms]` of steps given as columns: those of `COUNTS` and of `COPIES`."""
    ones = np.ones(len(steps["tokens"]))
    with_prompt = (steps["prefills"] > 0).astype(np.float64)
    overheads = np.stack([ones, with_prompt, steps["sequences"], steps["prefills"]], axis=-1)
    rest = np.stack([steps[name] for name in ("sampled_rows", *ATTENTION, *COPIES)], axis=-1)
    return np.concatenate([overheads, segments(steps["tokens"], knots), rest], axis=1)
