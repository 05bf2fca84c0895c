from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kvbench.analysis.claims.evidence import Evidence
from tests.analysis.claims.runs import around, evidence, words

LOOK_UPS = "Tiny blocks (4) cost kernel time per look-up"
TAILS = "Large blocks (128 and more) waste tails"
BEST = "The sweet spot is 16 to 64"
AS_CLAIMED = {4: (90.0, 0.01, 1.2e-4), 16: (100.0, 0.02, 1e-4), 64: (99.0, 0.1, 9e-5), 128: (80.0, 0.2, 9e-5)}
REVERSED = {4: (110.0, 0.2, 0.9e-4), 16: (100.0, 0.2, 1e-4), 64: (99.0, 0.2, 9e-5), 128: (80.0, 0.1, 9e-5)}


def run(numbers: Mapping[int, tuple[Any, Any, Any]], **options: Any) -> Evidence:
    engine = [
        ({"block_size": size}, {"output_tokens_per_s": speed, "internal_share_mean": waste})
        for size, (speed, waste, _) in numbers.items()
    ]
    kernel = [({"block_size": size}, {"decode_s": decode}) for size, (_, _, decode) in numbers.items()]
    return evidence(engine, kernel, **options)


def test_as_claimed_and_the_reverse() -> None:
    assert set(words("block-size", run(AS_CLAIMED)).values()) == {"held"}
    assert words("block-size", run(REVERSED)) == dict.fromkeys((LOOK_UPS, TAILS, BEST), "not held")


def test_noise_that_hides_the_difference_is_unclear() -> None:
    noisy = {
        size: tuple(around(value, 0.5, n) for n, value in enumerate((100.0, 0.1, 1e-4), start=at))
        for at, size in enumerate((4, 16, 64, 128))
    }
    assert set(words("block-size", run(noisy)).values()) == {"unclear"}
    assert set(words("block-size", run(AS_CLAIMED, samples=1)).values()) == {"unclear"}


@pytest.mark.parametrize(
    ("sizes", "left"), [((16, 64), set()), ((4, 16), {LOOK_UPS, BEST}), ((64, 128), {TAILS, BEST})]
)
def test_what_was_overridden_away_is_not_tested(sizes: tuple[int, ...], left: set[str]) -> None:
    found = words("block-size", run({size: AS_CLAIMED[size] for size in sizes}))
    assert {claim for claim, word in found.items() if word != "not tested"} == left
