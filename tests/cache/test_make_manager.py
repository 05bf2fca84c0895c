"""The door: settings that cannot be served, and what the manager refuses once it stands."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from kvbench.cache.content import Content
from kvbench.cache.manager import make_manager
from kvbench.cache.types import CacheGroup, CacheSettings
from kvbench.errors import InternalError, UsageError
from tests.cache.machines import admit, append, ints, paged, serve


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"allocator": "slab"}, "slab"),
        ({"reservation": "half"}, "half"),
        ({"prefix_cache": "trie"}, "trie"),
        ({"eviction": "arc"}, "arc"),
        ({"hash_function": "md5"}, "md5"),
        ({"block_size": 0}, "block_size"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"max_sequences": 0}, "max_sequences"),
        ({"max_context": -4}, "max_context"),
        ({"host_blocks": -1}, "host_blocks"),
        ({"groups": ()}, "layer group"),
        ({"prefix_cache": "none", "host_blocks": 4}, "host tier"),
    ],
)
def test_settings_that_cannot_be_served_are_named(changes: dict[str, Any], named: str) -> None:
    settings = {"block_size": 4, "num_blocks": 4, "max_sequences": 2, "max_context": 16, "prefix_cache": "hash"}
    with pytest.raises(UsageError, match=named):
        make_manager(CacheSettings(**{**settings, **changes}))


def test_a_latent_group_is_kept_like_a_full_one() -> None:
    manager = make_manager(CacheSettings(4, 4, 2, 16, (CacheGroup("latent"),)))
    assert manager.plan(Content(range(16)), 16).new_blocks == 4


def test_plans_are_good_for_one_change_only() -> None:
    manager = paged(8)
    first, second = manager.plan(Content([1]), 1), manager.plan(Content([2]), 1)
    row = manager.commit(first).row
    with pytest.raises(InternalError, match="stale"):
        manager.commit(second)
    growth = manager.plan_append(ints(row), ints(2))
    manager.mark_computed(ints(row), ints(1))
    with pytest.raises(InternalError, match="stale"):
        manager.commit_append(growth)
    manager.release(row)
    manager.reset()
    with pytest.raises(InternalError, match="stale"):
        manager.commit(first)


def test_rows_that_are_not_live_or_named_twice_are_refused() -> None:
    manager = paged(8)
    row = admit(manager, range(4)).row
    with pytest.raises(InternalError, match=f"row {row} .*twice"):
        manager.plan_append(ints(row, row), ints(5, 5))
    with pytest.raises(InternalError, match=r"row 5 .*no sequence"):
        manager.plan_append(ints(5), ints(1))
    with pytest.raises(InternalError, match=r"row 5 .*no sequence"):
        manager.mark_computed(ints(5), ints(1))
    manager.release(row)
    for call in (lambda: manager.release(row), lambda: manager.truncate(row, 0), lambda: manager.release(-1)):
        with pytest.raises(InternalError, match="no sequence"):
            call()
    manager.check_invariants()


def test_progress_never_runs_ahead_of_slots_or_backwards() -> None:
    manager = paged(8)
    row = admit(manager, range(8), hold=6).row
    with pytest.raises(InternalError, match="cannot have 7 computed"):
        manager.mark_computed(ints(row), ints(7))
    manager.mark_computed(ints(row), ints(5))
    with pytest.raises(InternalError, match="cannot have 4 computed"):
        manager.mark_computed(ints(row), ints(4))
    with pytest.raises(InternalError, match="from 6 to 5"):
        manager.plan_append(ints(row), ints(5))
    with pytest.raises(InternalError, match="ends at 64"):
        manager.plan_append(ints(row), ints(65))


def test_all_rows_taken_is_an_error_before_anything_changes() -> None:
    manager = paged(8, max_sequences=1)
    row = serve(manager, range(3))
    plan = manager.plan(Content([9]), 1)
    before = manager.stats()
    with pytest.raises(InternalError, match="all 1 rows"):
        manager.commit(plan)
    with pytest.raises(InternalError, match="all 1 rows"):
        manager.fork(row, Content(range(3)))
    assert manager.stats() == before
    manager.check_invariants()


def test_a_sequence_longer_than_a_table_row_is_an_error_that_shows_the_arithmetic() -> None:
    manager = paged(99)
    with pytest.raises(InternalError, match=r"65 tokens .* 64 slots"):
        manager.plan(Content(range(65)), 1)
    with pytest.raises(InternalError, match="0 tokens"):
        manager.plan(Content([]), 0)


def test_reset_forgets_contents_counters_and_pending_copies_but_keeps_the_listener() -> None:
    manager = paged(4, host_blocks=4)
    events: list[str] = []
    manager.listener = lambda event, key: events.append(event)
    for start in (0, 50):
        manager.release(serve(manager, range(start, start + 16)))
    admission = admit(manager, range(16))
    manager.release(admission.row)
    manager.reset()
    fresh = paged(4, host_blocks=4)
    assert manager.stats() == fresh.stats()
    assert not manager.take_transfers()
    assert manager.plan(Content(range(16)), 16).cached_tokens == 0
    events.clear()
    serve(manager, range(4))
    assert events == ["stored"]


def test_internal_waste_counts_a_shared_tail_once() -> None:
    manager = paged(8)
    content = Content(range(5))
    row = serve(manager, content)
    assert manager.stats().internal_slots == 3
    twin_content = content.copy()
    twin = manager.fork(row, twin_content)
    assert manager.stats().internal_slots == 3
    twin_content.extend([7, 8])
    append(manager, twin, 7)
    assert manager.stats().internal_slots == 3 + 1


def test_live_cached_tokens_are_distinct_full_blocks_that_all_groups_have() -> None:
    manager = paged(20, groups=2)
    rows = [admit(manager, range(11)).row for _ in range(2)]
    manager.mark_computed(ints(*rows), ints(11, 11))
    assert manager.stats().live_cached_tokens == 8
    for row in rows:
        manager.release(row)
    assert manager.stats().live_cached_tokens == 8


def test_the_books_import_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import kvbench.cache.manager as m; "
        "from kvbench.cache.types import CacheSettings; "
        "[m.make_manager(CacheSettings(4, 4, 2, 16, allocator=a)) for a in m.ALLOCATORS]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})
