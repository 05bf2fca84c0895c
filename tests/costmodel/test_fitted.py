"""Fitted models: seconds against the sum of the terms written out, files that are read as written and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.costmodel.fitted import FittedCost, Term, geometry_digest
from kvbench.costmodel.fitted_file import read_fitted, write_fitted
from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.rates import write_rates
from kvbench.costmodel.roofline import roofline
from kvbench.costmodel.sources import cost_for, read_cost_file
from kvbench.costmodel.terms import segments, term_names
from kvbench.digested import digest_of
from kvbench.errors import CannotRunError, DataError, KvbenchError, UsageError
from kvbench.geometry.presets import preset, preset_names
from tests.costmodel.fitted_samples import KNOTS, PLANTED, configuration, fitted_file
from tests.costmodel.test_model import naive

ASKED = {"weight_dtype": "fp32", "kv_dtype": "fp32", "block_size": 16}


def written_out(model: str, starts: list[int], counts: list[int], decodes: int, sampled: int, block_size: int) -> float:
    """The seconds of a step, term by term and layer by layer."""
    seconds = PLANTED["step"] + len(starts) * PLANTED["sequences"] + sampled * PLANTED["sampled_rows"]
    pieces = len(starts) - decodes
    seconds += pieces * PLANTED["prefills"] + (PLANTED["prefill_step"] if pieces else 0.0)
    for token in range(1, sum(counts) + 1):
        seconds += PLANTED["tokens_0" if token <= KNOTS[0] else "tokens_1" if token <= KNOTS[1] else "tokens_2"]
    for group in preset(model).groups:
        for at, (start, count) in enumerate(zip(starts, counts, strict=True)):
            context, pairs, blocks = naive(start, count, group.window, block_size)
            seconds += len(group.layers) * blocks * PLANTED["block_reads"]
            if at < decodes:
                seconds += len(group.layers) * context * PLANTED["decode_reads"]
            else:
                reads, products = context * PLANTED["prefill_reads"], pairs * PLANTED["prefill_pairs"]
                seconds += len(group.layers) * (reads + products)
    return seconds


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gemma3", "tiny-mistral"])
@pytest.mark.parametrize("seed", range(4))
def test_a_step_takes_the_sum_of_its_terms(model: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    decodes, pieces, block_size = (int(n) for n in (rng.integers(0, 9), rng.integers(0, 4), rng.integers(1, 33)))
    starts = rng.integers(0, 200, decodes + pieces)
    counts = np.concatenate([np.ones(decodes, int), rng.integers(1, 60, pieces)])
    cost = cost_for(fitted_file(model), preset(model), **{**ASKED, "block_size": block_size})
    seconds = cost.step_s(cost.features(starts, counts, decodes, decodes + 1))
    expected = written_out(model, starts.tolist(), counts.tolist(), decodes, decodes + 1, block_size)
    assert seconds == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gemma3", "tiny-mistral"])
@pytest.mark.parametrize("seed", range(6))
def test_a_run_of_decode_steps_is_its_steps_to_the_last_bit(model: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 300, int(rng.integers(1, 40)))
    cost = FittedCost(configuration(), preset(model), block_size=int(rng.choice([1, 3, 16, 64])))
    run = cost.decode_run_s(lengths, 50)
    ones, count = np.ones(len(lengths), int), len(lengths)
    steps = [cost.step_s(cost.features(lengths + n - 1, ones, count, count)) for n in range(50)]
    assert run.tolist() == steps


def test_segments_add_up_and_end_at_the_knots() -> None:
    tokens = np.array([0.0, 1.0, 4.0, 5.0, 32.0, 100.0])
    found = segments(tokens, KNOTS)
    assert found.sum(axis=1).tolist() == tokens.tolist()
    assert found[-1].tolist() == [4.0, 28.0, 68.0]


def test_copies_cost_their_bytes_and_those_that_were_never_seen_nothing_can_price() -> None:
    fit = configuration()
    priced = replace(fit, terms={**fit.terms, "host_bytes": Term(1e-9, 0.0, 1e-9)})
    cost = FittedCost(priced, preset("tiny-llama"), block_size=16)
    assert cost.copies_s("promote", 3) == pytest.approx(3 * cost.block_bytes * 1e-9)
    assert cost.copies_s("copy", 0) == 0.0
    for kind in ("copy", "demote", "load"):
        with pytest.raises(CannotRunError, match=kind):
            cost.copies_s(kind, 1)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"weight_dtype": "bf16"}, "weights in fp32"),
        ({"kv_dtype": "int8"}, "not as int8"),
        ({"kv_layout": "nhd"}, "not as fp32/token-head/nhd"),
    ],
)
def test_a_fit_says_nothing_about_other_engines(changed: dict[str, str], says: str) -> None:
    with pytest.raises(CannotRunError, match=says):
        cost_for(fitted_file(), preset("tiny-llama"), **{**ASKED, **changed})
    with pytest.raises(CannotRunError, match="another model"):
        cost_for(fitted_file(), preset("tiny-mha"), **ASKED)


def test_scales_decide_nothing_where_blocks_hold_none() -> None:
    assert cost_for(fitted_file(), preset("tiny-llama"), **ASKED, kv_scales="tensor-absmax").block_size == 16
    narrow = fitted_file(configurations=(configuration("int8"),))
    with pytest.raises(CannotRunError):
        cost_for(narrow, preset("tiny-llama"), **{**ASKED, "kv_dtype": "int8"}, kv_scales="tensor-absmax")


def test_models_of_one_shape_are_one_model_and_others_are_not() -> None:
    geometry = preset("tiny-llama")
    assert geometry_digest(replace(geometry, name="mine", source="a folder")) == geometry_digest(geometry)
    others = {geometry_digest(preset(name)) for name in preset_names()}
    assert len(others) >= len(preset_names()) - 2  # tiny-gqa is tiny-llama, and a preset may have a second name


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = fitted_file()
    write_fitted(tmp_path / "fit.json", file)
    found = read_fitted(tmp_path / "fit.json")
    assert found == file
    assert found.label == f"fitted planted ({file.digest[:12]})"
    assert found.errors["output_tokens_per_s"] == pytest.approx([math.log(1 + n / 100) for n in range(4)])
    scores = [math.log(1 + n / 100) / max(n / 2, 0.1) for n in range(4)]
    assert found.scores["output_tokens_per_s"] == pytest.approx(scores)


def test_either_kind_of_file_is_read_by_its_format(tmp_path: Path) -> None:
    write_fitted(tmp_path / "fit.json", fitted_file())
    write_rates(tmp_path / "rates.json", roofline(virtual_device("l4")).rates, name="l4", source="a test")
    assert read_cost_file(tmp_path / "fit.json") == fitted_file()
    assert read_cost_file(tmp_path / "rates.json").label.startswith("l4 (")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UsageError, match="kvbench cost model"):
        read_cost_file(tmp_path / "other.json")


def first(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["configurations"][0]
    return found


@pytest.mark.parametrize(
    "by",
    [
        lambda c: c.pop("threads"),
        lambda c: c.update(name=""),
        lambda c: c.update(threads=True),
        lambda c: c.update(device={"name": "x"}),
        lambda c: c.update(configurations=[]),
        lambda c: c.update(configurations=[3]),
        lambda c: c.update(left_out={}),
        lambda c: c["left_out"][0]["metrics"].update(tpot_p50_s=[1.0, 0.0, 1.0]),
        lambda c: c["left_out"][0]["metrics"].update(tpot_p50_s=[1.0, 1.0]),
        lambda c: c["left_out"][0]["metrics"].update(tpot_p50_s=[1.0, 1.0, -1.0]),
        lambda c: first(c)["terms"]["step"].update(value=-1.0),
        lambda c: first(c)["terms"]["step"].update(value=float("nan")),
        lambda c: first(c)["terms"]["step"].update(high=10**400),
        lambda c: first(c)["terms"]["step"].update(low=1.0),
        lambda c: first(c)["terms"].pop("sequences"),
        lambda c: first(c)["terms"].update(speed={"value": 1.0, "low": 1.0, "high": 1.0}),
        lambda c: first(c).update(knots=[32, 4]),
        lambda c: first(c).update(knots=[4, 4]),
        lambda c: first(c).update(knots=["4", "32"]),
        lambda c: first(c).update(covariance=[[1.0]]),
        lambda c: first(c).update(kv_dtype="fp7"),
        lambda c: first(c).update(kv_dtype=["fp32"]),
        lambda c: first(c)["domain"].pop("block_size"),
        lambda c: first(c)["domain"].update(tokens=[5.0, 1.0]),
        lambda c: first(c)["domain"].update(tokens=[0.0, float("inf")]),
        lambda c: c["settings"].update(batch_policy="chunked"),
        lambda c: c.update(runs=[]),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, by: Callable[[dict[str, Any]], object]) -> None:
    path = tmp_path / "fit.json"
    write_fitted(path, fitted_file())
    content = json.loads(path.read_text())
    by(content)
    path.write_text(json.dumps({**content, "digest": digest_of(content)}))
    with pytest.raises(KvbenchError, match=r"is not what kvbench fit writes|is missing"):
        read_fitted(path)


def test_a_file_changed_by_hand_and_one_of_a_newer_kvbench_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    write_fitted(path, fitted_file())
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "threads": 2}))
    with pytest.raises(DataError, match="digest"):
        read_fitted(path)
    path.write_text(json.dumps({**content, "version": 2}))
    with pytest.raises(UsageError, match="newer"):
        read_fitted(path)


def test_every_planted_term_is_one_of_the_model() -> None:
    assert set(PLANTED) < set(term_names(KNOTS))
