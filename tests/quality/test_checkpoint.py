"""The numbers of a checkpoint that has learned: against transformers, exact where they must be, and able to notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kvbench.analysis.divergence import TokenNumbers
from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.engine import Engine
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.model import Model
from kvbench.engine.teacher import TeacherForced, blocks_for
from kvbench.errors import DataError
from kvbench.measure.quality import Walk, scales_of, take_quality
from kvbench.spec.engine import EngineSettings
from tests.checkpoints import VOCAB, reference_model, write_checkpoint
from tests.quality.conftest import CONTEXT

TOLERANCE = 1e-4
WALK = Walk(block_size=16, chunk_tokens=40, first_target=1)
INT8 = ("int8", "token-head")


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> Model:
    return Model.from_pretrained(checkpoint)


@pytest.fixture(scope="session")
def numbers(model: Model, windows: Any) -> dict[Any, TokenNumbers]:
    """Of every kind of setting, on six windows."""
    settings = [
        ("fp32", None),
        ("fp16", None),
        ("bf16", None),
        INT8,
        ("int8", "tensor-absmax"),
        ("fp8_e4m3", "token-head"),
    ]
    return judged(model, windows, scales_of(model, settings, 99.9, windows[:2]))


def judged(model: Model, windows: Any, scales: Any, walk: Walk = WALK) -> dict[Any, TokenNumbers]:
    taken = take_quality(model, windows, scales, walk)
    assert all(found.error is None for found in taken.values())
    return {setting: found.numbers for setting, found in taken.items()}


def paged_logits(model: Model, windows: Any, kv_dtype: str, block_size: int, chunk: int) -> torch.Tensor:
    """`[windows, tokens, vocab]`."""
    count, tokens = windows.shape
    store = KVStore(model.geometry, kv_dtype, block_size, blocks_for(1, count, tokens, block_size))
    teacher = TeacherForced(model, store, attention_backend("torch", "cpu"), count, tokens)
    parts = [teacher.forward(windows[:, at : at + chunk], at) for at in range(0, tokens, chunk)]
    return torch.cat([part.unflatten(0, (count, -1)) for part in parts], dim=1)


def theirs(checkpoint: Path, windows: Any, round_trip: Any = None) -> torch.Tensor:
    """Logits by transformers; with `round_trip` it keeps K and V in a cache that rounds them."""
    from transformers import DynamicCache

    class Rounded(DynamicCache):
        def update(self, k: Any, v: Any, *where: Any, **more: Any) -> Any:
            return super().update(round_trip(k), round_trip(v), *where, **more)

    cache = {} if round_trip is None else {"past_key_values": Rounded(), "use_cache": True}
    with torch.no_grad():
        return reference_model(checkpoint)(torch.from_numpy(windows), **cache).logits


def test_the_checkpoint_has_learned(trained: tuple[Path, dict[str, float]]) -> None:
    """The page was held out. 5 bits is about what the frequencies of bytes alone give; uniform is 8."""
    assert trained[1]["bits_per_byte"] < 4.5


@pytest.mark.parametrize(("block_size", "chunk"), [(16, CONTEXT), (4, 40), (64, 7), (5, 1)])
def test_the_paged_path_gives_the_logits_of_transformers(
    checkpoint: Path, model: Model, windows: Any, block_size: int, chunk: int
) -> None:
    found = paged_logits(model, windows, "fp32", block_size, chunk)
    assert (found - theirs(checkpoint, windows)).abs().max() < TOLERANCE


def test_the_baseline_has_the_perplexity_of_transformers(
    checkpoint: Path, windows: Any, numbers: dict[Any, TokenNumbers]
) -> None:
    logits = theirs(checkpoint, windows)[:, :-1].double()
    expected = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(windows[:, 1:]).flatten(), reduction="none")
    np.testing.assert_allclose(numbers["fp32", None].nll_nats.reshape(-1), expected, atol=TOLERANCE)


@pytest.mark.parametrize("family", ["gemma2", "deepseek-v2"])
def test_windows_and_latents_have_the_likelihoods_of_transformers(family: str, tmp_path: Path) -> None:
    """Block tables of two kinds of layers; one row for K and V together, with static scales too."""
    model = Model.from_pretrained(write_checkpoint(family, tmp_path, seed=1))
    windows = np.random.default_rng(0).integers(0, VOCAB, (3, 70))
    found = judged(model, windows, scales_of(model, [INT8, ("int8", "tensor-absmax")], 99.9, windows), Walk(8, 20, 1))
    p = F.log_softmax(theirs(tmp_path, windows)[:, :-1].double(), dim=-1)
    expected = -p.gather(-1, torch.from_numpy(windows[:, 1:, None]))[..., 0].numpy()
    np.testing.assert_allclose(found["fp32", None].nll_nats, expected, atol=TOLERANCE)
    assert 0 < found[INT8].kl_nats.mean() < found["int8", "tensor-absmax"].kl_nats.mean() < 1


def int8_and_back(x: torch.Tensor) -> torch.Tensor:
    """Per token and head, written down apart from the engine."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


def test_int8_diverges_as_much_as_in_transformers_with_a_rounding_cache(
    checkpoint: Path, windows: Any, numbers: dict[Any, TokenNumbers]
) -> None:
    p, q = (F.log_softmax(theirs(checkpoint, windows, trip)[:, :-1].double(), dim=-1) for trip in (None, int8_and_back))
    expected = F.kl_div(q, p, log_target=True, reduction="none").sum(-1).numpy()
    found = numbers[INT8].kl_nats
    assert found.mean() == pytest.approx(expected.mean(), rel=0.02)
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99


def test_the_engine_serving_the_text_ends_with_the_same_logits(model: Model, windows: Any) -> None:
    """Scheduler, block tables and chunked prefill of the whole engine, in int8, against the last row of a window."""
    settings = EngineSettings(
        block_size=8, kv_dtype="int8", batch_policy="chunked", max_batch_tokens=40, attention="torch"
    )
    engine = Engine(model, settings, kv_memory_bytes=1 << 20)
    seen = []
    forward = engine.runner.forward
    engine.runner.forward = lambda batch: seen.append(forward(batch)) or seen[-1]
    try:
        engine.generate([windows[0, :-1].tolist()], 1)
    finally:
        engine.close()
    own = paged_logits(model, windows[:1, :-1], "int8", 8, CONTEXT)
    torch.testing.assert_close(seen[-1][-1], own[0, -1], atol=TOLERANCE, rtol=0)


def test_full_precision_is_exactly_itself_and_every_other_form_is_not(numbers: dict[Any, TokenNumbers]) -> None:
    assert (numbers["fp32", None].kl_nats == 0).all()
    assert numbers["fp32", None].is_same_top1.all()
    errors = {setting: found.kl_nats.mean() for setting, found in numbers.items() if setting[0] != "fp32"}
    assert all(error > 0 for error in errors.values())
    assert errors["fp16", None] < errors["bf16", None] < errors["fp8_e4m3", "token-head"]


def test_blocks_and_chunks_change_nothing_in_full_precision(
    model: Model, windows: Any, numbers: dict[Any, TokenNumbers]
) -> None:
    for block_size, chunk in ((1, 95), (64, 17)):
        found = judged(model, windows, {}, Walk(block_size, chunk, 1))["fp32", None]
        np.testing.assert_allclose(found.nll_nats, numbers["fp32", None].nll_nats, atol=1e-5)


def test_within_a_dtype_the_chunk_changes_nothing_either(
    model: Model, windows: Any, numbers: dict[Any, TokenNumbers]
) -> None:
    """A token reads itself as it is stored, not as it was computed."""
    found = judged(model, windows, {INT8: None}, Walk(4, 95, 1))[INT8]
    np.testing.assert_allclose(found.kl_nats.mean(), numbers[INT8].kl_nats.mean(), rtol=0.05)


def test_fewer_windows_at_once_and_a_prefix_change_no_number(
    model: Model, windows: Any, numbers: dict[Any, TokenNumbers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvbench.measure.quality.ROWS_AT_ONCE", 170)  # four windows, then two
    found = judged(model, windows, {INT8: None}, Walk(16, 40, 3))[INT8]
    np.testing.assert_allclose(found.kl_nats, numbers[INT8].kl_nats[:, 2:], atol=1e-9)


def test_scales_of_k_and_v_swapped_are_noticed(model: Model, windows: Any, numbers: dict[Any, TokenNumbers]) -> None:
    setting = ("int8", "tensor-absmax")
    right = scales_of(model, [setting], 99.9, windows[:2])[setting]
    assert right is not None
    swapped = judged(model, windows, {setting: TensorScales(right.v, right.k)})[setting]
    assert swapped.kl_nats.mean() > 10 * numbers[setting].kl_nats.mean()


def test_scales_from_one_pass_are_those_of_the_engine(model: Model) -> None:
    from kvbench.engine.calibration import calibrated

    settings = [("int8", "tensor-absmax"), ("fp8_e4m3", "tensor-percentile"), INT8, ("fp16", None)]
    found = scales_of(model, settings, 99.0, None)
    for setting in settings[:2]:
        assert found[setting] == calibrated(model, *setting, 99.0)
    assert found[INT8] is found["fp16", None] is None


class Broken:
    """A model whose logits are no numbers in one stored form, after so many calls."""

    def __init__(self, model: Model, kv_dtype: str, calls: int) -> None:
        self.geometry, self.device = model.geometry, model.device
        self._model, self._kv_dtype, self._left = model, kv_dtype, calls

    def forward(self, batch: Any, store: Any, attention: Any) -> torch.Tensor:
        logits = self._model.forward(batch, store, attention).clone()
        if store.kv_dtype == self._kv_dtype:
            self._left -= 1
            if self._left < 0:
                logits[50, 3] = torch.nan
        return logits


def test_a_setting_without_numbers_is_given_up_and_the_others_go_on(
    model: Model, windows: Any, numbers: dict[Any, TokenNumbers]
) -> None:
    taken = take_quality(Broken(model, "fp16", 1), windows, {("fp16", None): None, INT8: None}, WALK)
    assert taken["fp16", None].numbers is None
    assert taken["fp16", None].error == "logits are not finite at position 50 of window 2"
    np.testing.assert_array_equal(taken[INT8].numbers.kl_nats, numbers[INT8].kl_nats)


def test_a_baseline_without_numbers_is_an_error(model: Model, windows: Any) -> None:
    with pytest.raises(DataError, match="nothing to compare with"):
        take_quality(Broken(model, "fp32", 0), windows, {INT8: None}, WALK)
