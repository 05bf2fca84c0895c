"""Whether an output is right, told in words and numbers that can be stored."""

from __future__ import annotations

import math

import pytest
import torch

from kvbench.tune.correctness import verdict


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (float("nan"), "1 of 2 rows hold NaN"),
        (float("inf"), "1 of 2 rows hold inf"),
        (-float("inf"), "hold inf"),
        (2.0, "off"),
    ],
)
def test_a_wrong_row_is_said_with_an_error_that_is_a_number(wrong: float, said: str) -> None:
    """An infinite error could not be written down: the journal is JSON."""
    expected = torch.ones((2, 4), dtype=torch.float64)
    output = torch.ones((2, 4))
    assert verdict(output, expected, "fp32") == (0.0, None)
    output[1, 2] = wrong
    error, reason = verdict(output, expected, "fp32")
    assert math.isfinite(error)
    assert said in str(reason)


def test_a_row_without_tokens_must_be_zero() -> None:
    expected = torch.zeros((1, 4), dtype=torch.float64)
    assert verdict(torch.zeros((1, 4)), expected, "bf16") == (0.0, None)
    assert verdict(torch.ones((1, 4)), expected, "bf16")[1] == "a row without tokens is not zero"
