"""Publishing: a block enters the prefix index when its last token is computed, not before (E09).

Of a row with c computed tokens, in blocks: [0, published) were offered before, [published, ⌊c / B⌋) are offered now,
and the rest stays private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.tail_index import TailIndex
from kvbench.cache.write_through import write_through
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.types import Int32s, Int64s


def publish_progress(books: Books, rows: Int64s, computed: Int32s) -> None:
    """Offer what has become full; only rows that crossed a block boundary cost anything."""
    full = computed // books.block_size
    published = books.tables.published.take(rows)
    due = (full > published).nonzero()[0]
    if not len(due):
        return
    ready, first, end = rows[due], published[due], full[due]
    books.tables.published[ready] = end
    single = end - first == 1
    if np.count_nonzero(single) == len(due):
        _publish_tails(books, ready, first)
    else:
        for row, start, stop in zip(ready.tolist(), first.tolist(), end.tolist(), strict=True):
            _publish_run(books, row, start, stop)
    if books.writes_through:
        for row, start, stop in zip(ready.tolist(), first.tolist(), end.tolist(), strict=True):
            write_through(books, row, start, stop)


def _publish_tails(books: Books, rows: Int64s, logical: Int32s) -> None:
    """One block per row, the usual step of running sequences."""
    keys, chunks = [], []
    contents, full = [_content(books, row) for row in rows.tolist()], logical.tolist()
    needs_keys = books.indexes[0].needs_keys
    for content, block in zip(contents, full, strict=True):
        if needs_keys:
            key, chunk = content.key_and_bytes(books.chain, block)
            keys.append(key)
        else:
            chunk = content.tokens[block * books.block_size : (block + 1) * books.block_size].tobytes()
        chunks.append(chunk)
    tokens = np.frombuffer(b"".join(chunks), dtype=np.int32).reshape(len(rows), -1)
    entries = rows * books.tables.width + logical
    for group, index in enumerate(books.indexes):
        flat = books.tables.flat[group]
        blocks = flat.take(entries).astype(np.int64)
        if books.policy.watches_priority:
            for at, content in enumerate(contents):
                books.policy.used_by(content.priority, blocks[at : at + 1])
        if isinstance(index, TailIndex):
            index.publish(_tail_keys(books, contents, full), tokens, blocks)
            continue
        parents = books.pool.content_ids.take(flat.take(entries - 1))
        for at in (logical == 0).nonzero()[0].tolist():
            parents[at] = books.labels.root_id(contents[at].salt)
        index.publish_tails(keys, tokens, blocks, parents)


def _publish_run(books: Books, row: int, first: int, end: int) -> None:
    """Consecutive blocks [first, end) of one row: a prefill."""
    content = _content(books, row)
    keys = content.keys(books.chain, end)[first:end] if books.indexes[0].needs_keys else []
    tokens = content.named(books.chain, first, end)
    for group, index in enumerate(books.indexes):
        entries = books.tables.blocks[group, row]
        blocks = entries[first:end].astype(np.int64)
        if books.policy.watches_priority:
            books.policy.used_by(content.priority, blocks)
        if isinstance(index, TailIndex):
            index.publish(content.keys(books.tail_chain, end)[first:end], tokens, blocks)
            continue
        before = int(books.pool.content_ids[entries[first - 1]]) if first else books.labels.root_id(content.salt)
        index.publish(keys, tokens, blocks, before)


def _tail_keys(books: Books, contents: list[Content], full: list[int]) -> list[bytes]:
    chain = books.tail_chain
    return [content.key_and_bytes(chain, block)[0] for content, block in zip(contents, full, strict=True)]


def _content(books: Books, row: int) -> Content:
    content = books.tables.contents[row]
    if content is None:
        raise InternalError(f"row {row} of the block tables holds no sequence")
    return content
