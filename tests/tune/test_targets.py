"""Facts of architectures, and how many blocks an SM holds."""

from __future__ import annotations

import pytest

from kvbench.errors import UsageError
from kvbench.tune.occupancy import occupancy
from kvbench.tune.targets import TARGETS, device_of, known_target, refuse_dtype


@pytest.mark.parametrize("name", ["sm_90", "sm90", "90", "9.0", " SM_90 ", "sm_90a", "cuda:90"])
def test_a_target_is_known_by_its_usual_names(name: str) -> None:
    assert known_target(name).name == "sm_90"


@pytest.mark.parametrize("name", ["", "sm_75", "sm_", "hopper", "9000", "sm_9_0", "gfx942", "90.5", "sm_90\n80"])
def test_an_unknown_target_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match="unknown target") as refused:
        known_target(name)
    assert "sm_90" in str(refused.value.hint)


def test_shared_memory_limits_are_those_of_the_datasheets() -> None:
    limits = {target.name: target.shared_per_block_bytes for target in TARGETS}
    assert limits == {
        "sm_80": 166_912, "sm_86": 101_376, "sm_89": 101_376, "sm_90": 232_448, "sm_100": 232_448, "sm_120": 101_376,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["sm_80", "sm_86"])
def test_k12_fp8_e4m3_below_sm_89_is_refused_up_front_and_the_rest_is_offered(name: str) -> None:
    """fp8_e4m3 on a device that cannot convert it: a clear refusal; fp8_e5m2 and int8 are still there."""
    target = known_target(name)
    with pytest.raises(UsageError, match=f"fp8_e4m3 needs sm_89 or later; the target is {name}") as refused:
        refuse_dtype(target, "fp8")
    assert "fp8_e5m2" in str(refused.value.hint)
    assert "int8" in str(refused.value.hint)
    for offered in ("fp8_e5m2", "int8", "bf16", "fp16", "fp32"):
        refuse_dtype(target, offered)


def test_dtypes_that_no_kernel_reads_are_refused_everywhere() -> None:
    for target in TARGETS:
        with pytest.raises(UsageError, match="int4 is not a dtype of the Triton kernels"):
            refuse_dtype(target, "int4")
    with pytest.raises(UsageError, match="unknown dtype"):
        refuse_dtype(TARGETS[0], "fp7")
    refuse_dtype(known_target("sm_89"), "fp8_e4m3")


def test_every_target_has_a_device_to_rank_for_and_one_of_another_architecture_is_refused() -> None:
    for target in TARGETS:
        device = device_of(target)
        assert device.compute_capability == target.compute_capability
        assert device.sms
        assert device.bandwidth_bytes_per_s
    assert device_of(known_target("sm_90"), "h200").name == "H200"
    with pytest.raises(UsageError, match=r"A100-80GB has compute capability 8.0; sm_90 is 9.0"):
        device_of(known_target("sm_90"), "a100")
    with pytest.raises(UsageError, match="no known architecture"):
        device_of(known_target("sm_90"), "24GiB")


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "blocks", "limit"),
    [
        # 128 × 32 = 4,096 registers a warp, 16,384 in a partition: 4 warps in each of 4
        ("sm_90", 128, 0, 4, 4, "registers"),
        # 96 × 32 = 3,072: 5 warps a partition, 20 in all, 5 blocks; shared 49,152 + 1,024: 4 times in 233,472
        ("sm_90", 96, 49_152, 4, 4, "shared memory"),
        # 33 × 32 = 1,056 is rounded up to 1,280: 12 warps a partition, as with 40 registers
        ("sm_90", 33, 0, 1, 32, "blocks"),
        ("sm_90", 33, 0, 8, 6, "registers"),
        ("sm_90", 40, 0, 8, 6, "registers"),
        ("sm_90", 32, 0, 8, 8, "warps"),
        # 255 × 32 = 8,160 → 8,192: two warps a partition; 16 warps of it do not fit
        ("sm_90", 255, 0, 8, 1, "registers"),
        ("sm_90", 255, 0, 16, 0, "registers"),
        ("sm_86", 40, 0, 8, 6, "warps"),
        ("sm_86", 16, 0, 1, 16, "blocks"),
        # what others have found on sm_89: 256 threads with 80 registers 3 blocks, with 64 registers 4
        ("sm_89", 80, 0, 8, 3, "registers"),
        ("sm_89", 64, 0, 8, 4, "registers"),
        # and 4 blocks need 24,576 bytes or less
        ("sm_89", 32, 24_576, 4, 4, "shared memory"),
        ("sm_89", 32, 24_577, 4, 3, "shared memory"),
        # the largest block, and one byte more
        ("sm_80", 32, 166_912, 4, 1, "shared memory"),
        ("sm_80", 32, 166_913, 4, 0, "shared memory"),
    ],
)
def test_occupancy_is_that_of_hand_computed_examples(
    target: str, registers: int, shared: int, warps: int, blocks: int, limit: str
) -> None:
    found = occupancy(registers, shared, warps, known_target(target))
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.warps == blocks * warps
    assert found.share == blocks * warps / known_target(target).warps_per_sm


def test_tensor_memory_limits_blocks_too() -> None:
    assert occupancy(32, 0, 4, known_target("sm_100"), tensor_memory_columns=256).blocks == 2
