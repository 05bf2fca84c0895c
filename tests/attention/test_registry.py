from __future__ import annotations

import pytest

from kvbench.engine.attention.registry import attention_backend
from kvbench.errors import CannotRunError, UsageError


def test_auto_is_numba_on_a_cpu_and_triton_on_cuda() -> None:
    pytest.importorskip("triton")
    assert attention_backend("auto", "cpu").name == "numba"
    assert attention_backend("auto", "cuda").name.startswith("triton")


def test_each_name_gives_its_own_backend() -> None:
    assert [attention_backend(name, "cpu").name for name in ("torch", "numba")] == ["torch", "numba"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        attention_backend("flash", "cpu")
    assert "torch, numba, triton" in (caught.value.hint or "")


def test_numba_is_refused_on_cuda() -> None:
    with pytest.raises(CannotRunError, match="numba does not run on cuda"):
        attention_backend("numba", "cuda")
