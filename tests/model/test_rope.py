from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvbench.engine.rope import RotaryTable, inverse_frequencies, pair_neighbours, rotate_
from kvbench.errors import UsageError
from kvbench.geometry.presets import preset

LLAMA = preset("llama-3.1-8b")


def _twin_rotation(x: torch.Tensor, position: int, theta: float) -> torch.Tensor:
    """Element i and element i + d/2 turn together by position · theta^(-2i/d)."""
    half = len(x) // 2
    out = torch.empty_like(x)
    for i in range(half):
        angle = torch.tensor(position * theta ** (-2 * i / len(x)))
        out[i] = x[i] * angle.cos() - x[i + half] * angle.sin()
        out[i + half] = x[i + half] * angle.cos() + x[i] * angle.sin()
    return out


def test_rotation_of_neighbours_is_the_textbook_rotation_of_halves() -> None:
    geometry = replace(preset("tiny-llama"), head_dim=8)
    positions = torch.tensor([0, 1, 17, 300])
    heads = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(0))
    paired = pair_neighbours(heads.flatten(0, 1).t().contiguous(), 8).t().contiguous().view(4, 3, 8)
    rotate_(paired, RotaryTable(geometry, torch.device("cpu")).at(positions, 300))
    for t, position in enumerate(positions.tolist()):
        for h in range(3):
            twin = _twin_rotation(heads[t, h], position, geometry.rope_theta)
            torch.testing.assert_close(paired[t, h], pair_neighbours(twin, 8), atol=1e-4, rtol=0)


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    scaled, plain = inverse_frequencies(LLAMA), inverse_frequencies(replace(LLAMA, rope_scaling=None))
    waves = 2 * torch.pi / plain
    assert torch.equal(scaled[waves < 8192 / 4], plain[waves < 8192 / 4])
    torch.testing.assert_close(scaled[waves > 8192], plain[waves > 8192] / 8)
    between = (waves > 8192 / 4) & (waves < 8192)
    assert between.any()
    assert ((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8)).all()


def test_the_table_grows_without_changing_what_it_held() -> None:
    table = RotaryTable(LLAMA, torch.device("cpu"))
    early = table.at(torch.arange(200), 199).clone()
    late = table.at(torch.tensor([5000]), 5000)
    assert torch.equal(table.at(torch.arange(200), 199), early)
    torch.testing.assert_close(late[0, 0].angle().cos(), (5000.0 * inverse_frequencies(LLAMA)).cos())


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "longrope", "factor": 4.0}, "longrope"),
        ({"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings"),
        ({"rope_type": "yarn", "factor": -4.0, "original_max_position_embeddings": 64}, "-4.0"),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": math.inf}, "inf"),
        ({"type": "dynamic", "factor": 2.0}, "dynamic"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": "four"}, "four"),
        ({"rope_type": "linear", "factor": 0.0}, "0.0"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor"),
        ({**(LLAMA.rope_scaling or {}), "low_freq_factor": 4.0}, "high_freq_factor"),
        ({"rope_type": ["default"]}, "default"),
    ],
)
def test_scaling_that_the_engine_does_not_compute_is_refused(scaling: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        inverse_frequencies(replace(LLAMA, rope_scaling=scaling))


def test_an_odd_head_is_refused() -> None:
    with pytest.raises(UsageError, match="odd"):
        inverse_frequencies(replace(LLAMA, head_dim=7))


def test_yarn_needs_a_base_above_one() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    with pytest.raises(UsageError, match="above 1"):
        inverse_frequencies(replace(LLAMA, rope_scaling=scaling, rope_theta=1.0))


def test_yarn_keeps_quick_pairs_and_stretches_slow_ones() -> None:
    """A pair that turns 32 times or more in the trained context is kept, one that turns less than once is stretched."""
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "truncate": False}
    plain, stretched = (inverse_frequencies(replace(LLAMA, rope_scaling=x)) for x in (None, scaling))
    turns = 4096 * plain / (2 * torch.pi)
    torch.testing.assert_close(stretched[turns > 32.1], plain[turns > 32.1])
    torch.testing.assert_close(stretched[turns < 0.99], plain[turns < 0.99] / 8)
    table = RotaryTable(replace(LLAMA, rope_scaling=scaling), torch.device("cpu"))
    torch.testing.assert_close(table.at(torch.tensor([7]), 7).abs(), torch.full((1, 1, 64), 1 + 0.1 * math.log(8)))


def test_a_local_base_is_not_scaled() -> None:
    geometry = preset("gemma-3-12b")
    local = inverse_frequencies(geometry, is_local=True)
    torch.testing.assert_close(local, inverse_frequencies(replace(geometry, rope_theta=1e4, rope_scaling=None)))
