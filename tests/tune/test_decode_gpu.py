"""The GPU's decode as something to tune, in Triton's interpreter; and what static pruning leaves of its space."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.errors import UsageError
from kvbench.tune.correctness import verdict
from kvbench.tune.narrowing import narrowed
from kvbench.tune.prune import Candidate, Judged
from kvbench.tune.space import Space
from kvbench.tune.tunable import make_tunable
from kvbench_kernels.specs import KernelShape

SHAPE = KernelShape("bf16", "bf16", False, 16, 2, 1, 16, 16, "hnd", batch=1, context=70)
HAS_GPU = Path("/dev/nvidia0").exists()


@pytest.mark.skipif(HAS_GPU, reason="kernels are not interpreted where there is a GPU")
@pytest.mark.parametrize(
    "shape", [SHAPE, replace(SHAPE, kv_dtype="int8", has_block_scales=True, query_dtype="fp32", has_window=True)]
)
def test_every_batch_of_a_trial_is_right_with_any_splits(shape: KernelShape) -> None:
    tunable = make_tunable("decode")
    prepared = tunable.prepare(shape, "cpu", seed=1)
    default = tunable.default(shape)
    chosen = default if shape is SHAPE else {**default, "tile": 16, "splits": 2}
    for batch, (out, expected) in enumerate(zip(prepared.outputs, prepared.expected, strict=True)):
        out.fill_(float("nan"))
        prepared.launch(chosen, batch)
        error, reason = verdict(out, expected, shape.query_dtype)
        assert reason is None
        assert error > 0


def test_the_space_is_the_pages_times_splits_and_holds_the_default() -> None:
    tunable = make_tunable("decode")
    space = tunable.space(SHAPE, threads=1)
    default = tuple(tunable.default(SHAPE)[name] for name in space.names)
    assert default in space.place
    assert {space.as_dict(at)["splits"] for at in range(len(space))} == {0, 1}
    assert tunable.compile_spec(SHAPE, tunable.default(SHAPE)) is not None
    with pytest.raises(UsageError, match="kernel of its own"):
        tunable.space(replace(SHAPE, k_dim=32), threads=1)


def test_pruning_keeps_what_is_worth_timing_by_rank_and_always_the_default() -> None:
    space = Space.of({"tile": (16, 32, 64), "splits": (0, 1)})
    judged = [
        Judged(0, Candidate({"tile": 16}, False), "kept", rank=2),
        Judged(1, Candidate({"tile": 32}, True), "spills"),
        Judged(2, Candidate({"tile": 64}, False), "kept", rank=1),
    ]
    left = narrowed(space, judged, {"tile": 32, "splits": 0})
    assert left.configurations == ((32, 0), (64, 0), (64, 1), (16, 0), (16, 1))
