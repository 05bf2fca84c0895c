from __future__ import annotations

import pytest
import torch

from kvbench.engine.norm import RmsNorm


@pytest.mark.parametrize("weight_shape", [(24,), (5, 24)])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e4])
def test_norm_is_the_textbook_formula_in_float64(weight_shape: tuple[int, ...], scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 5, 24, generator=generator) * scale
    weight = torch.rand(weight_shape, generator=generator) + 0.5
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    torch.testing.assert_close(RmsNorm(weight, 1e-6)(x).double(), expected, atol=0, rtol=1e-5)


def test_a_row_of_zeros_stays_zero() -> None:
    assert RmsNorm(torch.ones(8), 1e-6)(torch.zeros(2, 8)).tolist() == [[0.0] * 8] * 2


def test_the_input_is_left_as_it_was() -> None:
    x = torch.ones(2, 8)
    RmsNorm(torch.full((8,), 3.0), 1e-6)(x)
    assert torch.equal(x, torch.ones(2, 8))
