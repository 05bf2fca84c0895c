"""Copies that overlap with steps on the virtual clock: ends by the closed formula, and what that does to requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.cache.transfers import Transfers
from kvbench.costmodel.model import CostModel
from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.engine.clock import VirtualClock
from kvbench.engine.serve import Served, serve
from kvbench.engine.virtual import VirtualEngine, VirtualRunner
from kvbench.geometry.memory import block_bytes
from kvbench.geometry.presets import preset
from kvbench.spec.engine import EngineSettings
from kvbench.workload.request import Request, Segment
from kvbench.workload.types import ImportReport, Workload

HOST, DISK = 8e7, 2e7
GEOMETRY = replace(preset("tiny-llama"), vocab_size=50)
RATES = replace(roofline(virtual_device("h100")).rates, host_bytes=HOST, disk_bytes=DISK)
COST = CostModel(GEOMETRY, RATES, weight_dtype="bf16", kv_dtype="fp32", block_size=16)
ONE = block_bytes(GEOMETRY, "fp32", 16)


def list_s(blocks: int, rate: float) -> float:
    return RATES.transfer_s + blocks * ONE / rate


def runner() -> tuple[VirtualRunner, VirtualClock]:
    clock = VirtualClock()
    return VirtualRunner(COST, clock, 50), clock


def test_lists_of_one_link_end_one_after_the_other_and_links_do_not_wait_for_each_other() -> None:
    moves, clock = runner()
    first = Transfers(promote_host=[0, 1, 2], promote_device=[1, 2, 3], load_disk=[5], load_device=[4], load_keys=[b""])
    assert len(moves.start(first)) == 0
    clock.advance(list_s(3, HOST) / 2)
    assert len(moves.start(Transfers(swap_in_swap=[7, 8], swap_in_device=[6, 7]))) == 0
    assert len(moves.poll()) == 0
    load_s, host_s = list_s(1, DISK), list_s(3, HOST)
    assert host_s < load_s < host_s + list_s(2, HOST)
    for kind, end_s in (("promote", host_s), ("load", load_s), ("swap_in", host_s + list_s(2, HOST))):
        found = moves.poll(wait=True)
        assert [len(found.done.pairs(name)[0]) > 0 for name in ("promote", "load", "swap_in")] == [
            name == kind for name in ("promote", "load", "swap_in")
        ]
        assert clock.now() == pytest.approx(end_s, rel=1e-12)
    assert len(moves.poll(wait=True)) == 0


def test_an_idle_link_begins_at_once_and_a_poll_takes_what_has_ended() -> None:
    moves, clock = runner()
    clock.advance(3.0)
    moves.start(Transfers(promote_host=[0], promote_device=[1]))
    clock.advance(1.0)
    assert moves.poll().done.promote_device == [1]
    assert clock.now() == 4.0


def test_the_step_waits_for_blocks_that_it_writes() -> None:
    moves, clock = runner()
    done = moves.start(Transfers(offload_device=[1, 2], offload_host=[0, 1])).done
    assert done.offload_host == [0, 1]
    assert clock.now() == pytest.approx(list_s(2, HOST), rel=1e-12)


def test_what_reads_a_block_that_is_on_its_way_waits_for_it() -> None:
    moves, clock = runner()
    both = Transfers(promote_host=[0], promote_device=[3], copy_source=[3], copy_destination=[4])
    done = moves.start(both).done
    assert (done.copy_destination, done.promote_device) == ([4], [])
    assert clock.now() == pytest.approx(list_s(1, HOST) + COST.copies_s("copy", 1), rel=1e-12)
    assert moves.poll().done.promote_device == [3]
    start = clock.now()
    moves.start(Transfers(store_device=[1], store_host=[0]))
    moves.start(Transfers(demote_host=[0], demote_disk=[0], demote_keys=[b""]))
    assert clock.now() == pytest.approx(start + list_s(1, HOST), rel=1e-12)
    assert moves.poll().done.store_host == [0]
    assert moves.poll(wait=True).done.demote_disk == [0]
    assert clock.now() == pytest.approx(start + list_s(1, HOST) + list_s(1, DISK), rel=1e-12)


def test_a_clock_that_begins_again_leaves_nothing_late() -> None:
    moves, clock = runner()
    clock.advance(100.0)
    moves.start(Transfers(promote_host=[0], promote_device=[1]))
    clock.restart()
    assert moves.poll().done.promote_device == [1]
    moves.start(Transfers(promote_host=[0], promote_device=[1]))
    moves.poll(wait=True)
    assert clock.now() == pytest.approx(list_s(1, HOST), rel=1e-12)


def engine(promotion: str) -> VirtualEngine:
    settings = EngineSettings(
        kv_dtype="fp32", kv_memory=17 * ONE, max_context=256, max_sequences=4, prefix_cache="hash", offload="host",
        host_memory=32 * ONE, promotion=promotion,  # type: ignore[arg-type]
    )  # fmt: skip
    return VirtualEngine(GEOMETRY, settings, COST, weight_dtype="bf16", max_context=256, check=True)


def request(number: int, arrival_s: float, stream: int, inputs: int, outputs: int) -> Request:
    forced = (Segment(1000 + number, 0, outputs),)
    return Request(number, inputs, outputs, (Segment(stream, 0, inputs),), arrival_s, forced)


def served(promotion: str) -> Served:
    """Request 0 leaves its prompt of 8 blocks, request 1 drives them to the host, request 2 decodes while request 3
    asks for the prompt of request 0 again."""
    load = (
        request(0, 0.0, 1, 129, 1),
        request(1, 1.0, 2, 240, 2),
        request(2, 2.0, 3, 16, 16),
        request(3, 2.0012, 1, 129, 1),
    )
    return serve(engine(promotion), Workload(load, ImportReport("synthetic", "synthetic"), "digest", 0))


def test_whoever_decodes_is_not_held_up_and_whoever_waits_joins_after_the_copy() -> None:
    blocking, overlapped = served("blocking"), served("overlapped")
    (step,) = [step for step in blocking.steps if step.host_promotions]
    assert step.host_promotions == 8
    assert step.promotion_stall_s == pytest.approx(list_s(8, HOST), rel=1e-9)
    assert sum(step.promotion_stall_s for step in overlapped.steps) == 0
    asked = next(step for step in overlapped.steps if step.t_s >= 2.0012)
    joined = next(step for step in overlapped.steps if step.host_promotions)
    assert joined.host_promotions == 8
    end_s = asked.t_s + list_s(asked.host_offload_bytes // ONE, HOST) + list_s(8, HOST)
    before = overlapped.steps[joined.step - 1]
    assert asked.step < before.step
    assert before.t_s < end_s <= joined.t_s + 1e-12
    meanwhile = overlapped.steps[asked.step + 1 : joined.step]
    assert all(one.batch_size == 1 and one.duration_s < list_s(2, HOST) for one in meanwhile)


def test_two_runs_are_the_same_to_the_last_bit() -> None:
    assert served("overlapped") == served("overlapped")
