"""Which winner a shape gets, and which ones it must not get."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.tuned.key import bucket, key_of
from kvbench.tuned.source import source_digest
from kvbench.tuned.table import TunedTable, retune_hint
from kvbench_kernels.specs import KernelShape
from tests.tuned.entries import KEY, winner


def at(batch: int, context: int) -> dict[str, int]:
    return {"split": batch * 64, "tile": 64, "threads": context}


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (513, 1024), (1024, 1024), (1025, 2048)])
def test_buckets_are_powers_of_two_that_hold_the_count(count: int, size: int) -> None:
    assert bucket(count) == size


def test_the_exact_bucket_wins_then_the_nearest_within_one_step_then_the_longer_context() -> None:
    places = [(8, 1024), (16, 1024), (8, 2048), (8, 512)]
    entries = {place: winner(replace(KEY, batch=place[0], context=place[1]), at(*place)) for place in places}

    def found(batch: int, context: int, without: tuple[tuple[int, int], ...] = ()) -> tuple[int, int] | None:
        table = TunedTable(w for place, w in entries.items() if place not in without)
        match = table.look_up(replace(KEY, batch=batch, context=context))
        assert match is None or match.is_exact == (
            (batch, context) == (match.winner.key.batch, match.winner.key.context)
        )
        return None if match is None else (match.winner.key.batch, match.winner.key.context)

    assert found(8, 1024) == (8, 1024)
    assert found(8, 1024, without=((8, 1024),)) == (8, 2048)
    assert found(8, 1024, without=((8, 1024), (8, 2048))) == (16, 1024)
    assert found(16, 2048) == (8, 2048)
    assert found(8, 8192) is None
    assert found(64, 1024) is None


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "decode"},
        {"source": "s2"},
        {"device": "a CPU, 1 thread"},
        {"compiler": "numba 2"},
        {"kv_dtype": "int8"},
        {"has_block_scales": True},
        {"block_size": 32},
        {"query_heads": 16},
        {"kv_heads": 1},
        {"k_dim": 128},
        {"layout": "nhd"},
        {"has_window": True},
    ],
)
def test_a_winner_of_other_circumstances_is_never_used(change: dict[str, object]) -> None:
    assert TunedTable([winner()]).look_up(replace(KEY, **change)) is None  # type: ignore[arg-type]


def test_a_stale_entry_is_named_with_what_changed_and_how_to_tune_again() -> None:
    table = TunedTable([winner()])
    (text,) = table.stale(replace(KEY, source="s2", compiler="numba 2"))
    assert "source s1 (now s2)" in text
    assert "compiler numba 1 (now numba 2)" in text
    assert table.stale(KEY) == []
    assert table.stale(replace(KEY, source="s2", kv_dtype="int8")) == []
    assert "kvbench tune decode_numba" in retune_hint(KEY)


def test_the_likest_shapes_come_first_and_only_of_the_same_circumstances() -> None:
    near = winner(replace(KEY, context=4096))
    far = winner(replace(KEY, kv_dtype="int8", context=1024))
    other = winner(replace(KEY, source="s2"))
    assert TunedTable([far, other, near, winner()]).neighbours(KEY) == [near, far]


def test_the_newest_of_two_winners_for_one_key_counts() -> None:
    newer = winner(configuration={"split": 64}, tuned_at="2021-01-01T00:00:00Z")
    for order in ([newer, winner()], [winner(), newer]):
        match = TunedTable(order).look_up(KEY)
        assert match is not None
        assert match.winner == newer


def test_the_source_digest_follows_what_the_page_imports_and_nothing_else() -> None:
    assert source_digest("kvbench_kernels.decode_numba") != source_digest("kvbench_kernels.write_numba")
    shape = KernelShape("fp32", "fp32", False, 16, 8, 2, 64, 64, "hnd", batch=5, context=700)
    key = key_of("decode_numba", "kvbench_kernels.decode_numba", "numba", "a CPU", shape)
    assert (key.batch, key.context) == (8, 1024)
    assert key.source == source_digest("kvbench_kernels.decode_numba")
    assert key.compiler.startswith("numba ")
