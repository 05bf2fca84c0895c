"""Shapes as people type them, and the kernels that are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.errors import CannotRunError, UsageError
from kvbench.tune.pages import PAGES, configurations, default_of, load_page
from kvbench.tune.shapes import kernel_shape


def test_a_shape_is_typical_of_its_kernel_where_nobody_says() -> None:
    decode, mla = kernel_shape("decode"), kernel_shape("mla")
    assert (decode.query_heads, decode.kv_heads, decode.k_dim, decode.v_dim, decode.query_tokens) == (
        32,
        8,
        128,
        128,
        1,
    )
    assert (mla.query_heads, mla.kv_heads, mla.k_dim, mla.v_dim) == (128, 1, 576, 512)


def test_heads_and_dims_are_one_number_or_two() -> None:
    shape = kernel_shape("decode", heads="16", head_dim=" 192 / 128 ", kv_dtype="e4m3")
    assert (shape.query_heads, shape.kv_heads, shape.k_dim, shape.v_dim) == (16, 16, 192, 128)
    assert (shape.kv_dtype, shape.has_block_scales) == ("fp8_e4m3", True)
    assert not kernel_shape("decode", kv_dtype="int8", kv_scales="tensor-absmax").has_block_scales
    assert not kernel_shape("decode", kv_dtype="bf16").has_block_scales


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "7/2"}, "7 query heads cannot share 2 KV heads"),
        ({"heads": "8/0"}, "--heads '8/0' is not understood"),
        ({"heads": "8/-2"}, "--heads '8/-2' is not understood"),
        ({"heads": "８"}, None),
        ({"heads": "2048/1"}, "cannot share"),
        ({"head_dim": "128x"}, "--head-dim '128x' is not understood"),
        ({"head_dim": "4096"}, "a head dim of 4096 is out of range"),
        ({"block_size": 0}, "a block size of 0 is out of range"),
        ({"block_size": 10**9}, "a block size of 1000000000 is out of range"),
        ({"batch": -1}, "a batch of -1 is out of range"),
        ({"context": 0}, "a context of 0 is out of range"),
        ({"context": 8, "query_tokens": 9}, "9 query tokens do not fit into a context of 8"),
        ({"kv_dtype": "fp7"}, "unknown dtype 'fp7'"),
        ({"query_dtype": "int8"}, "queries are not int8"),
        ({"kv_scales": "per-row"}, "unknown kind|unknown KV scales"),
        ({"layout": "dhn"}, "unknown KV layout 'dhn'"),
    ],
)
def test_an_impossible_shape_is_refused_with_a_way_out(options: dict[str, Any], message: str | None) -> None:
    if message is None:  # a digit of another script is a digit
        assert kernel_shape("decode", **options).query_heads == 8
        return
    with pytest.raises(UsageError, match=message) as refused:
        kernel_shape("decode", **options)
    assert refused.value.hint


def test_an_unknown_kernel_is_refused_with_its_nearest_name() -> None:
    with pytest.raises(UsageError, match="no Triton kernel 'prefil'") as refused:
        load_page("prefil")
    assert refused.value.hint == "did you mean prefill?"


@pytest.mark.parametrize("name", ["os.path", "..", ".", "", "a..b", "-x", "decode ", "kvbench_kernels.reference", "\0"])
def test_what_is_no_kernel_is_refused_whatever_it_is(name: str) -> None:
    with pytest.raises(UsageError, match=r"no Triton kernel|no kernel's page"):
        load_page(name)


def test_a_kernel_that_cannot_be_imported_says_what_is_missing() -> None:
    with pytest.raises(CannotRunError, match="no_such_module"):
        load_page("tests.tune.no_such_module")


@pytest.mark.parametrize("name", PAGES)
def test_every_page_has_its_default_in_its_space_and_allows_it_for_its_typical_shape(name: str) -> None:
    page, shape = load_page(name), kernel_shape(name)
    found = dict(configurations(page, shape))
    assert found[default_of(page, shape)] == ""
    assert len(found) == len(configurations(page, shape)), "no configuration twice"


def test_a_shape_that_no_configuration_can_do_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="no configuration fits this shape: rows of 72 elements"):
        configurations(load_page("tests.tune.small_page"), kernel_shape("decode", head_dim="72"))
