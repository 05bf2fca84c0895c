"""Many decode steps of the same rows as one operation on the books: what `plan_append`, `commit_append` and
`mark_computed` do step by step, for a paged pool with one layer group, LRU eviction, and no lower tier.

A row that knows L tokens before the run gets in step j a slot for its token at position L + j − 1, and has L + j tokens
computed after it. So it takes a block in the steps with (L + j − 1) mod B = 0 and publishes one in those with
(L + j) mod B = 0. Events are handled in the order of the plain loop, by step and then by row, which gives every block
the same contents and ids; only which free block is taken first may differ, and nothing looks at that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.eviction.lru import LruLog
from kvbench.cache.hash_index import HashIndex
from kvbench.cache.paged import PagedManager
from kvbench.cache.types import Int64s
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.types import CacheManager


@dataclass(frozen=True, slots=True)
class Events:
    """Things that happen to rows, by step and then by place in the run."""

    steps: Int64s
    places: Int64s
    """Which row of the run"""
    turns: Int64s
    """How many events the row had before"""

    def __len__(self) -> int:
        return len(self.steps)

    def before(self, step: int) -> Events:
        end = int(np.searchsorted(self.steps, step))
        return Events(self.steps[:end], self.places[:end], self.turns[:end])

    def per_step(self, steps: int) -> Int64s:
        return np.bincount(self.steps, minlength=steps)

    def per_row(self, rows: int) -> Int64s:
        return np.bincount(self.places, minlength=rows)

    def by_row(self, number: Int64s) -> Int64s:
        """The place of each event when all are sorted by row; `number` is `per_row`."""
        return (np.cumsum(number) - number)[self.places] + self.turns


@dataclass(slots=True)
class DecodeRun:
    """A run of `steps` decode steps that fits. `rows` are block-table rows in the order of the batch."""

    rows: Int64s
    known: Int64s
    """L of every row"""
    steps: int
    growth: Events
    publishing: Events
    keys: list[bytes] = field(default_factory=list)
    """Of `publishing`"""


@dataclass(frozen=True, slots=True)
class RunCounts:
    """State after every step of a run, `[steps]` each."""

    taken: Int64s
    """Blocks taken since the run began"""
    evictions: Int64s
    """In each step"""
    live_cached: Int64s
    """Distinct contents that can be looked up"""
    promised: Int64s
    """Blocks still promised to live rows"""
    tail_slots: Int64s
    """Slots without a token in the tail blocks of all live rows"""


def books_of(manager: CacheManager) -> Books | None:
    """The books of a manager that can run, None when some part of it needs to see every step."""
    if type(manager) is not PagedManager or manager.listener is not None:
        return None
    books = manager.books
    is_plain = (
        books.num_groups == 1
        and manager.settings.groups[0].window is None
        and type(books.policy) is LruLog
        and type(books.indexes[0]) is HashIndex
        and books.below is None
        and books.swap is None
    )
    is_quiet = not (books.pending or books.parked or books.pool.in_transfer or books.tables.forks)
    return books if is_plain and is_quiet else None


def plan_run(books: Books, rows: Int64s, known: Int64s, steps: int) -> DecodeRun | None:
    """The longest run of at most `steps` steps that needs no more blocks than there are; None when there is none, or
    when the rows are not in the state that decoding leaves them in. Reads only."""
    tables, size = books.tables, books.block_size
    lengths, held = tables.lengths.take(rows), tables.held.take(rows)
    if np.count_nonzero(lengths != known - 1) or np.count_nonzero(held != (lengths + size - 1) // size):
        return None
    if books.caching and np.count_nonzero(tables.published.take(rows) != lengths // size):
        return None
    growth = _events((1 - known) % size, size, steps)
    needs = growth.per_step(steps)
    if tables.promised_total:
        needs -= _spent(books, rows, growth).per_step(steps)
    short = (needs > 0) & (np.cumsum(needs) > books.supply())
    if np.count_nonzero(short):
        steps = int(np.argmax(short))
        growth = growth.before(steps)
    return DecodeRun(rows, known, steps, growth, _publishing(books, rows, known, steps)) if steps else None


def name_contents(books: Books, run: DecodeRun, contents: list[Content], watched: bytes | None) -> None:
    """Fill in the keys of what the run publishes; `contents` hold the tokens of all its steps. The run is cut before
    the step that would publish a content whose key is known, or is `watched`: such a step is for the plain loop."""
    number = run.publishing.per_row(len(contents))
    firsts = (run.known - 1) // books.block_size
    own: list[bytes] = []
    for content, first, count in zip(contents, firsts.tolist(), number.tolist(), strict=True):
        own += content.keys(books.chain, first + count)[first : first + count] if count else ()
    keys = [own[at] for at in run.publishing.by_row(number).tolist()]
    taken, seen = _index(books).blocks, {watched}
    for at, key in enumerate(keys):
        if key in taken or key in seen:
            cut_run(run, int(run.publishing.steps[at]))
            keys = keys[: len(run.publishing)]
            break
        seen.add(key)
    run.keys = keys


def cut_run(run: DecodeRun, steps: int) -> None:
    """Make the run end before step `steps`."""
    run.steps = steps
    run.growth, run.publishing = run.growth.before(steps), run.publishing.before(steps)


def commit_run(manager: CacheManager, run: DecodeRun, contents: list[Content]) -> RunCounts:
    """Carry out a run that was planned just now."""
    if not isinstance(manager, PagedManager):
        raise InternalError("a run was planned, but the manager knows no runs")
    books = manager.books
    tables, size = books.tables, books.block_size
    counts = _counts(books, run)
    manager.epoch += 1
    if len(run.growth):
        blocks = books.take(len(run.growth))
        owners = run.rows[run.growth.places]
        tables.flat[0][owners * tables.width + tables.held.take(owners) + run.growth.turns] = blocks
        _spend_promises(books, run)
        tables.held[run.rows] += np.bincount(run.growth.places, minlength=len(run.rows)).astype(np.int32)
    computed = run.known + run.steps - 1
    tables.lengths[run.rows] = tables.computed[run.rows] = computed
    if books.caching:
        tables.published[run.rows] = computed // size
        if len(run.publishing):
            _publish(books, run, contents)
    return counts


def _index(books: Books) -> HashIndex:
    index = books.indexes[0]
    if not isinstance(index, HashIndex):
        raise InternalError("a run was planned over an index that knows no runs")
    return index


def _events(first: Int64s, period: int, steps: int) -> Events:
    """Every row's events in the steps first, first + period, … below `steps`."""
    number = np.maximum((steps - first + period - 1) // period, 0)
    total = int(number.sum())
    places = np.repeat(np.arange(len(first)), number)
    turns = np.arange(total) - np.repeat(np.cumsum(number) - number, number)
    when = first[places] + turns * period
    order = np.argsort(when * len(first) + places, kind="stable")
    return Events(when[order], places[order], turns[order])


def _spent(books: Books, rows: Int64s, growth: Events) -> Events:
    """Of the blocks that are taken, those that were promised."""
    own = growth.turns < books.tables.promised.take(rows)[growth.places]
    return Events(growth.steps[own], growth.places[own], growth.turns[own])


def _publishing(books: Books, rows: Int64s, known: Int64s, steps: int) -> Events:
    """Blocks that become full, without rows whose last full block is not published: theirs never are."""
    if not books.caching:
        return Events(*(np.zeros(0, np.int64) for _ in range(3)))
    events = _events(-known % books.block_size, books.block_size, steps)
    if not len(events):
        return events
    full = (known - 1) // books.block_size
    tables = books.tables
    before = tables.flat[0].take(rows * tables.width + np.maximum(full - 1, 0))
    is_broken = (full > 0) & (books.pool.content_ids.take(before) == 0)
    if not np.count_nonzero(is_broken):
        return events
    keep = ~is_broken[events.places]
    return Events(events.steps[keep], events.places[keep], events.turns[keep])


def _counts(books: Books, run: DecodeRun) -> RunCounts:
    """The books are as before the run."""
    tables, pool, steps = books.tables, books.pool, run.steps
    growth = run.growth.per_step(steps)
    taken = np.cumsum(growth)
    missing = np.maximum(taken - pool.free, 0)
    gone = np.concatenate([[0], np.cumsum(_last_copies(books, int(missing[-1])))])[missing]
    published = np.cumsum(run.publishing.per_step(steps))
    spent = np.cumsum(_spent(books, run.rows, run.growth).per_step(steps))
    slots = books.block_size * taken - len(run.known) * np.arange(1, steps + 1)
    return RunCounts(
        taken=taken,
        evictions=np.diff(missing, prepend=0),
        live_cached=len(books.indexes[0]) - gone + published,
        promised=tables.promised_total - spent,
        tail_slots=tables.tail_waste() + slots,
    )


def _last_copies(books: Books, count: int) -> Int64s:
    """Of the next `count` victims in order, 1 for each that is the last copy of its content."""
    index, policy = _index(books), books.policy
    if not count or not index.spare or not isinstance(policy, LruLog):
        return np.ones(count, np.int64)
    left: dict[bytes, int] = {}
    flags = []
    for block in policy.peek(count).tolist():
        key = books.labels.keys[block]
        copies = left.get(key, 1 + len(index.spare.get(key, ())))
        left[key] = copies - 1
        flags.append(int(copies == 1))
    return np.array(flags, np.int64)


def _spend_promises(books: Books, run: DecodeRun) -> None:
    tables = books.tables
    if tables.promised_total:
        spent = _spent(books, run.rows, run.growth)
        tables.promised[run.rows] -= np.bincount(spent.places, minlength=len(run.rows)).astype(np.int32)
        tables.promised_total -= len(spent)


def _publish(books: Books, run: DecodeRun, contents: list[Content]) -> None:
    """Fresh content ids in the order of the events; a row's next block continues its last one."""
    events, tables = run.publishing, books.tables
    number = events.per_row(len(contents))
    firsts = (run.known - 1) // books.block_size
    at = events.by_row(number)
    first_id = books.labels.new_ids(len(events))
    ids = np.empty(len(events), np.int64)
    ids[at] = np.arange(first_id, first_id + len(events))
    entries = run.rows[events.places] * tables.width + firsts[events.places] + events.turns
    parents = books.pool.content_ids.take(tables.flat[0].take(np.maximum(entries - 1, 0)))
    parents = np.where(events.turns > 0, ids[np.maximum(at - 1, 0)], parents)
    for event in np.flatnonzero((events.turns == 0) & (firsts[events.places] == 0)).tolist():
        parents[event] = books.labels.root_id(contents[int(events.places[event])].salt)
    tokens = [
        content.named(books.chain, first, first + count)
        for content, first, count in zip(contents, firsts.tolist(), number.tolist(), strict=True)
        if count
    ]
    blocks = tables.flat[0].take(entries).astype(np.int64)
    _index(books).publish_new(run.keys, np.concatenate(tokens)[at], blocks, parents, first_id)
