"""The GPU's attention kernels as something to tune, in Triton's interpreter: the same trial as on a GPU, whose times
mean nothing; and what static pruning leaves of a space."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
from kvbench.errors import UsageError
from kvbench.tune.narrowing import narrowed
from kvbench.tune.prune import Candidate, Judged
from kvbench.tune.shapes import kernel_shape
from kvbench.tune.space import Space
from kvbench.tune.trial import try_configuration
from kvbench.tune.tunable import make_tunable
from kvbench.tune.worker import Workbench
from kvbench_kernels.specs import KernelShape
from kvbench_kernels.triton_runtime import INTERPRETED
from tests.tune.interpreted import WRONG_STAGES
from tests.tune.tuning import run, tuning

DECODE = KernelShape("bf16", "bf16", False, 16, 2, 1, 16, 16, "hnd", batch=1, context=150)
PREFILL = replace(DECODE, query_heads=2, context=40, query_tokens=24, block_size=8)
MLA = replace(DECODE, query_heads=3, k_dim=24, v_dim=16)
SHAPES = {
    "decode": ("Decode", DECODE),
    "decode of int8 in a window with sinks": (
        "Decode",
        replace(DECODE, kv_dtype="int8", has_block_scales=True, query_dtype="fp32", has_window=True, has_sinks=True),
    ),
    "prefill of two pieces": ("Prefill", replace(PREFILL, batch=2)),
    "prefill in a window with sinks and a cap": (
        "Prefill",
        replace(PREFILL, context=130, query_tokens=20, has_window=True, has_sinks=True, has_cap=True),
    ),
    "mla of int8": ("Mla", replace(MLA, kv_dtype="int8", has_block_scales=True)),
    "mla with more queries than one": ("Mla", replace(MLA, context=40, query_tokens=20)),
}
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="kernels are not interpreted where there is a GPU")


class Here:
    """A trial process's work, in this process."""

    def __init__(self, tunable: str, shape: KernelShape) -> None:
        self._bench = Workbench(lambda kind, value: None)
        request = {"tunable": tunable, "shape": asdict(shape), "device": "cpu", "seed": 1, "threads": 1}
        self.bytes_per_call = self._bench.answer({"op": "prepare", **request})["bytes_per_call"]

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        return self._bench.answer(dict(request))


@needs_interpreter
@pytest.mark.parametrize("name", SHAPES)
def test_a_trial_checks_every_batch_on_poisoned_output_then_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timed batch and the one of short, empty and ragged sequences; the planted configuration is `correctness`."""
    monkeypatch.setattr("kvbench.tune.worker._set_up", lambda threads: None)
    monkeypatch.setattr("kvbench.tune.racing.RUNGS", ((1, 1.2),))
    monkeypatch.setattr("kvbench.tune.pools.EDGE_LENGTHS", (0, 1, 17, 33))
    kind, shape = SHAPES[name]
    reference = f"tests.tune.interpreted:{kind}"
    space = make_tunable(reference).space(shape, 1)
    here = Here(reference, shape)
    trials = [try_configuration(here, space.as_dict(at), None, 60.0) for at in range(len(space))]  # type: ignore[arg-type]
    assert [trial.status for trial in trials] == ["correct", "correct", "correctness"]
    assert [trial.configuration["stages"] == WRONG_STAGES for trial in trials] == [False, False, True]
    for trial in trials[:2]:
        assert trial.is_timed
        assert trial.error_rel is not None
        assert trial.error_rel > 0
    assert here.bytes_per_call > 0


@needs_interpreter
def test_a_tuning_of_a_triton_kernel_ends_with_a_winner_for_the_page_as_it_is(tmp_path: Path) -> None:
    """Through trial processes, as on a GPU; the planted configuration does not win."""
    shape = replace(DECODE, context=40)
    (outcome,) = run(tuning(tmp_path, kernel="Decode", module="interpreted", shapes=[shape], rounds=2, timeout_s=60.0))
    assert outcome.winner is not None
    assert (outcome.key.kernel, outcome.key.compiler.split()[0]) == ("decode", "triton")
    assert outcome.winner.configuration["stages"] != WRONG_STAGES
    assert outcome.statuses["correctness"] == 1


def test_a_space_is_the_pages_times_splits_and_holds_the_default() -> None:
    for name, splits in (("decode", {0, 1, 2}), ("mla", {0, 1, 2}), ("prefill", {None})):
        shape = kernel_shape(name, context=150, query_tokens=None if name != "prefill" else 100)
        tunable = make_tunable(name)
        space = tunable.space(shape, threads=1)
        assert tuple(tunable.default(shape)[field] for field in space.names) in space.place
        assert {space.as_dict(at).get("splits") for at in range(len(space))} == splits
        assert tunable.compile_spec(shape, tunable.default(shape)) is not None


@pytest.mark.parametrize(
    ("name", "shape"), [("decode", MLA), ("prefill", replace(MLA, query_tokens=9)), ("mla", DECODE)]
)
def test_latent_layers_and_others_have_kernels_of_their_own(name: str, shape: KernelShape) -> None:
    with pytest.raises(UsageError, match="not the kernel of this layer"):
        make_tunable(name).space(shape, threads=1)


def test_pruning_keeps_what_is_worth_timing_by_rank_and_always_the_default() -> None:
    space = Space.of({"tile": (16, 32, 64), "splits": (0, 1)})
    judged = [
        Judged(0, Candidate({"tile": 16}, False), "kept", rank=2),
        Judged(1, Candidate({"tile": 32}, True), "spills"),
        Judged(2, Candidate({"tile": 64}, False), "kept", rank=1),
    ]
    left = narrowed(space, judged, {"tile": 32, "splits": 0})
    assert left.configurations == ((32, 0), (64, 0), (64, 1), (16, 0), (16, 1))
