"""The CPU's decode as something to tune: its space, and every kind of shape against an attention written here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.errors import UsageError
from kvbench.tune.tunable import make_tunable
from kvbench_kernels.specs import KernelShape

SHAPE = KernelShape("fp32", "fp32", False, 16, 4, 2, 16, 16, "hnd", batch=3, context=300)
SHAPES = [
    SHAPE,
    replace(SHAPE, kv_dtype="int8", has_block_scales=True, layout="nhd", block_size=7),
    replace(SHAPE, kv_dtype="bf16", has_window=True, has_sinks=True, has_cap=True),
    replace(SHAPE, kv_heads=1, k_dim=40, v_dim=32),
    replace(SHAPE, kv_dtype="fp8_e4m3", has_block_scales=False),
]


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "int8", "rules", "latent", "tensor scales"])
def test_the_default_and_the_smallest_configuration_are_right_on_every_batch(shape: KernelShape) -> None:
    tunable = make_tunable("decode_numba")
    prepared = tunable.prepare(shape, "cpu", seed=3)
    for configuration in (tunable.default(shape), {"split": 64, "tile": 16, "threads": 1}):
        prepared.compile(configuration)
        for batch, (out, expected) in enumerate(zip(prepared.outputs, prepared.expected, strict=True)):
            out.fill_(float("nan"))
            prepared.launch(configuration, batch)
            assert float((out.double() - expected).abs().max()) < 1e-5 * max(1.0, float(expected.abs().max()))


def test_k18_a_configuration_gives_the_same_bits_in_any_batch() -> None:
    """K18: splits are of fixed size, so a sequence alone gives the bits that it gives in a batch."""
    from kvbench_kernels import decode_numba
    from kvbench_kernels.decode_config import Config

    tunable = make_tunable("decode_numba")
    prepared = tunable.prepare(SHAPE, "cpu", seed=3)
    for split, tile in ((64, 16), (256, 128)):
        prepared.launch({"split": split, "tile": tile, "threads": 0})
        whole = prepared.outputs[0].clone()
        prepared.outputs[0].fill_(float("nan"))
        prepared._call({"split": split, "tile": tile, "threads": 1}, 0, count=1)  # type: ignore[attr-defined]
        assert (prepared.outputs[0][0] == whole[0]).all()
        assert decode_numba.arguments(Config(split, tile, 1), 2)[0] == 1


def test_the_space_holds_the_default_and_only_what_the_kernel_takes() -> None:
    tunable = make_tunable("decode_numba")
    space = tunable.space(replace(SHAPE, batch=64), threads=4)
    default = tuple(tunable.default(SHAPE)[name] for name in space.names)
    assert default in space.place
    assert {c["split"] % c["tile"] for c in map(space.as_dict, range(len(space)))} == {0}
    assert {space.as_dict(at)["threads"] for at in range(len(space))} == {0, 1, 2}
    alone = tunable.space(replace(SHAPE, batch=1, context=8), threads=4)
    assert {alone.as_dict(at)["threads"] for at in range(len(alone))} == {0}


def test_what_the_kernel_cannot_do_is_said() -> None:
    with pytest.raises(UsageError, match="no kernel"):
        make_tunable("decode_nubma")
    with pytest.raises(UsageError, match="fp32 queries"):
        make_tunable("decode_numba").space(replace(SHAPE, query_dtype="bf16"), 1)
