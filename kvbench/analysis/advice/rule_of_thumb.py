"""What people do without measuring, to stand beside what the numbers say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.analysis.advice.lengths import LengthSample

USUAL_DEFAULT = 16
"""Tokens per block that serving engines start with on most GPUs"""
_UP_TO = ((512, 32), (2048, 64))
_BEYOND = 128


def rule_of_thumb(sample: LengthSample) -> int:
    """Block size by the median of prompt and output together: up to 512 tokens 32, up to 2,048 64, else 128."""
    median = sample.median_tokens
    return next((block for tokens, block in _UP_TO if median <= tokens), _BEYOND)
