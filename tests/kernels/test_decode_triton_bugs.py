"""The decode tests bite: each bug planted into the page is noticed by a small scenario that the page itself passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from kvbench.engine.attention.rule import ScoreRule
from kvbench.engine.kvstore.scales import TensorScales
from kvbench_kernels import decode_triton
from tests.attention.batches import Paged, paged
from tests.kernels.decode_runs import assert_right, page_with

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
SINKS = torch.tensor([4.0, -2.0])


def rising(kv_dtype: str, context: int) -> Paged:
    """Scores that rise to the last token, so that every tile and every split raises the maximum."""
    case = paged(kv_dtype, 5, (2, 1), (24, 40), [context], rule=ScoreRule(0.25))
    for t in range(context):
        case.store.layers[0].k[case.batch.block_tables[0, 0, t // 5], 0, t % 5] = case.q[0, 0] * (t / context)
        case.keys[0][t] = case.q[0, 0] * (t / context)
    return case


def tail(page: Any) -> None:
    assert_right(paged("fp32", 5, (4, 2), (24, 40), [0, 68]), page=page)


def several_tiles(page: Any) -> None:
    assert_right(rising("fp32", 70), page=page)


def several_splits(page: Any) -> None:
    assert_right(rising("fp32", 70), splits=2, page=page)


def more_splits_than_are_merged_at_once(page: Any) -> None:
    assert_right(rising("fp32", 40 * 16), splits=40, page=page)


def empty_splits(page: Any) -> None:
    assert_right(paged("fp32", 5, (1, 1), (16, 16), [90], window=5), splits=8, page=page)


def window(page: Any) -> None:
    assert_right(paged("int8", 16, (2, 2), (16, 16), [70], window=13, kv_layout="nhd"), page=page)


def sinks(page: Any) -> None:
    assert_right(paged("fp32", 16, (2, 2), (16, 16), [20], rule=ScoreRule(sinks=SINKS)), page=page)


def sinks_of_splits(page: Any) -> None:
    assert_right(paged("fp32", 16, (2, 2), (16, 16), [20, 0], rule=ScoreRule(sinks=SINKS)), splits=2, page=page)


def static_scales(page: Any) -> None:
    assert_right(paged("int8", 4, (2, 2), (16, 16), [20], tensor_scales=TensorScales((0.06,), (3.0,))), page=page)


def static_scales_of_splits(page: Any) -> None:
    case = paged("int8", 4, (2, 2), (16, 16), [20], tensor_scales=TensorScales((0.06,), (3.0,)))
    assert_right(case, splits=2, page=page)


def narrow_halves(page: Any) -> None:
    assert_right(paged("int8", 4, (2, 2), (16, 16), [20]), torch.bfloat16, page=page)


def many_heads(page: Any) -> None:
    assert_right(paged("fp32", 4, (20, 1), (16, 16), [5]), page=page)


Scenario = Callable[[Any], None]
BUGS: dict[str, tuple[str, str, Scenario]] = {
    "the accumulator is not rescaled": ("acc * shrink[:, None])", "acc)", several_tiles),
    "the mass is not rescaled": (
        "mass = mass * shrink + tl.sum(weight, 1)",
        "mass += tl.sum(weight, 1)",
        several_tiles,
    ),
    "splits are merged without rescaling": (
        "acc = acc * shrink + tl.sum(parts",
        "acc = acc + tl.sum(parts",
        more_splits_than_are_merged_at_once,
    ),
    "splits are merged without their masses": ("high + tl.log2(mass)", "high", several_splits),
    "the last splits are not merged": (
        "range(0, splits, AT_ONCE)",
        "range(0, 16, AT_ONCE)",
        more_splits_than_are_merged_at_once,
    ),
    "empty splits are merged": ("(split < splits) & (begin + split * share < length)", "split < splits", empty_splits),
    "V is loaded beyond the length": ("mask=is_seen[:, None] & is_v[None, :]", "mask=is_v[None, :]", tail),
    "K is loaded beyond its head": ("mask=is_seen[None, :] & is_k[:, None]", "mask=is_seen[None, :]", tail),
    "queries are loaded beyond their head": ("mask=is_row[:, None] & is_k[None, :]", "mask=is_row[:, None]", tail),
    "scores beyond the length count": (
        "tl.where(is_seen[None, :], scores_base2(",
        "tl.where(is_seen[None, :] | True, scores_base2(",
        tail,
    ),
    "the result is stored beyond its head": (
        "is_result = is_row[:, None] & is_v[None, :]",
        "is_result = is_row[:, None] & (v_column[None, :] <= V_DIM)",
        tail,
    ),
    "another head's queries": ("rows[:, None] * q_head_stride", "rows[:, None] * V_DIM", tail),
    "sequences' queries lie close": ("s * q_stride", "s * (GROUP * kv_heads * K_DIM)", tail),
    "length 0 divides by nothing": ("tl.where(length > 0, mass, 1.0)", "mass", tail),
    "heads lie in the other order": ("h * head_rows", "h * BLOCK", window),
    "tokens lie in the other order": ("token % BLOCK * token_rows", "token % BLOCK", window),
    "the window is one too long": (
        "length - window, 0)\n    begin = first",
        "length - window - 1, 0)\n    begin = first",
        window,
    ),
    "the window is one too short": (
        "length - window, 0)\n    begin = first",
        "length - window + 1, 0)\n    begin = first",
        window,
    ),
    "a tile starts within a block": ("begin = first // TILE * TILE", "begin = first", window),
    "the K scale is forgotten": ("raw *= tl.load(words", "raw += 0 * tl.load(words", window),
    "the V scale is forgotten": ("weight *= V_UNIT * tl.load", "weight *= 1 + 0 * tl.load", window),
    "V has the scale of K": ("words + v_scale_base", "words + k_scale_base", window),
    "a static V scale is forgotten": (
        "acc * (v_scale / V_UNIT) / tl.where(length",
        "acc / V_UNIT / tl.where(length",
        static_scales,
    ),
    "merging forgets a static V scale": (
        "acc * (v_scale / V_UNIT) / tl.where(mass",
        "acc / V_UNIT / tl.where(mass",
        static_scales_of_splits,
    ),
    "queries moved into range stay there": (
        "score_scale = scale * q_unit[:, None]",
        "score_scale = scale",
        narrow_halves,
    ),
    "all tiles of heads are the first": ("tl.program_id(1) % head_blocks * ROWS +", "0 *", many_heads),
    "the sink is a natural exponent": ("mask=is_row, other=0.0) * _LOG2E", "mask=is_row, other=0.0)", sinks),
    "merging takes the sink for a natural exponent": (
        "tl.load(sinks + head) * _LOG2E",
        "tl.load(sinks + head)",
        sinks_of_splits,
    ),
    "the sink's mass is forgotten in merging": ("mass += 1.0", "mass += 0.0", sinks_of_splits),
}


@pytest.mark.parametrize("scenario", dict.fromkeys(scenario for _, _, scenario in BUGS.values()))
def test_the_page_passes(scenario: Scenario) -> None:
    scenario(decode_triton)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str, tmp_path: Path) -> None:
    old, new, scenario = BUGS[bug]
    with pytest.raises(AssertionError):
        scenario(page_with(old, new, tmp_path))
