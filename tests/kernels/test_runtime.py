from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

from kvbench_kernels import compiled_variants, set_threads, threading_layer
from kvbench_kernels.runtime import PARALLEL_ELEMENTS, parts
from tests.attention.batches import paged
from tests.attention.test_backends import attend


def test_a_second_run_at_other_shapes_compiles_nothing() -> None:
    """One variant per stored form: shapes, block sizes and heads are run-time values."""
    attend("numba", paged("bf16", 16, (4, 2), (32, 32), [20, 700]))
    before = compiled_variants()
    attend("numba", paged("bf16", 3, (7, 1), (80, 40), [1, 300]))
    assert compiled_variants() == before > 0


@pytest.mark.parametrize("count", [0, -1, 10_000])
def test_a_number_of_threads_that_numba_does_not_have_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="threads asked for"):
        set_threads(count)


def test_little_work_starts_no_parallel_region() -> None:
    assert parts(PARALLEL_ELEMENTS - 1) == 1
    set_threads(1)
    try:
        assert parts(PARALLEL_ELEMENTS) == 1
    finally:
        set_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))


def test_numba_and_torch_take_turns_in_one_process() -> None:
    """Same OpenMP, so no crash and no second set of threads; `workqueue` only where OpenMP cannot be loaded."""
    case = paged("fp32", 16, (8, 2), (64, 64), [900, 800])
    weights = torch.randn(512, 512)
    expected = attend("numba", case)
    for _ in range(20):
        weights @ weights
        torch.testing.assert_close(attend("numba", case), expected, atol=0, rtol=0)
    assert threading_layer() in {"omp", "tbb", "workqueue"}
    assert np.isfinite(expected.numpy()).all()
