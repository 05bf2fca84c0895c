"""What can be looked up after a re-blocking: contents of the rows, and cached ones that fill whole new blocks.

A published content is a block of tokens and the content before it, so the old contents form a tree below the salts.
When r old blocks become one, the contents at depths 0 … r − 1, r … 2r − 1, … of a path are one new content each; an
end that does not fill a new block is dropped. When one old block becomes r, so does its content.

Cached contents need blocks of their own. While there is room they are kept, the last to be evicted first: with one
content its parents come too, for no policy evicts them earlier. The new policy hears of them in the order of eviction;
what else an old policy had counted starts anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.books import Books
    from kvbench.cache.content import Content
    from kvbench.cache.types import Int32s, Int64s

Unit = tuple[int, int]


def publish_rows(new: Books, rows: list[int]) -> None:
    """Offer all whole blocks that the rows have computed."""
    for row in rows:
        content = new.tables.contents[row]
        if content is None:
            raise InternalError(f"row {row} of the block tables holds no sequence")
        full = int(new.tables.computed[row]) // new.block_size
        new.tables.published[row] = full
        if full:
            for group in range(new.num_groups):
                _publish_row(new, group, new.tables.blocks[group, row, :full].astype(np.int64), content)


def _publish_row(new: Books, group: int, blocks: Int64s, content: Content) -> None:
    """Blocks that the row shares with one before it are published already."""
    index, ids, count = new.indexes[group], new.pool.content_ids, len(blocks)
    keys = content.keys(new.chain, count)[:count]
    tokens = content.tokens[: count * new.block_size].reshape(count, new.block_size)
    parent, at = new.labels.root_id(content.salt), 0
    while at < count and parent:
        known = ids[blocks[at:]] != 0
        if not known.any():
            index.publish(keys[at:], tokens[at:], blocks[at:], parent)
            return
        if not known[0]:
            index.publish(keys[at : at + 1], tokens[at : at + 1], blocks[at : at + 1], parent)
        parent, at = int(ids[blocks[at]]), at + 1


@dataclass(slots=True)
class _Old:
    """A content of the old books."""

    block: int
    parent: int
    depth: int
    salt: str | None
    rank: int
    """Place in the order of eviction, the first to go first; contents in use come last"""


@dataclass(slots=True)
class _New:
    """A content that the new books could hold."""

    members: list[int]
    """Old contents that it holds a part of"""
    units: list[Unit]
    tokens: Int32s
    parent: _New | None
    salt: str | None
    rank: int
    depth: int
    key: bytes = b""
    content: int = 0
    """Its id once it is published"""

    def order(self) -> tuple[int, int]:
        return (self.rank, -self.depth)


def keep_cached(old: Books, new: Books, copies: list[dict[Unit, Unit]]) -> tuple[int, int]:
    """Publish what of the old contents is not published yet and still has room, as cached blocks; adds to `copies`.
    Returns the tokens of old contents that can still be looked up, and of those that cannot."""
    trees = [_old_contents(old, group) for group in range(old.num_groups)]
    whole = [_new_contents(old, new, tree) for tree in trees]
    missing = [(one, group) for group, contents in enumerate(whole) for one in _unknown(new, group, contents)]
    missing.sort(key=lambda found: found[0].order())
    kept = missing[len(missing) - min(len(missing), new.pool.free) :]
    blocks = [_publish(new, group, one, copies[group]) for one, group in reversed(kept)]
    cached = np.array([block for block in reversed(blocks) if block], dtype=np.int64)
    new.drop(cached)
    total = sum(len(tree) for tree in trees)
    is_split = new.block_size < old.block_size
    found = sum(_found(contents, is_split) for contents in whole)
    return found * old.block_size, (total - found) * old.block_size


def _old_contents(old: Books, group: int) -> dict[int, _Old]:
    """Content id → content, parents before children: a child's id is the larger one."""
    pool, labels = old.pool, old.labels
    salts = labels.salts()
    place = {block: at for at, block in enumerate(old.policy.order())}
    tree: dict[int, _Old] = {}
    blocks = np.flatnonzero(pool.content_ids)
    blocks = blocks[pool.groups[blocks] == group] if old.num_groups > 1 else blocks
    for block in blocks[np.argsort(pool.content_ids[blocks], kind="stable")].tolist():
        content, parent, rank = (
            int(pool.content_ids[block]),
            int(labels.parent_ids[block]),
            place.get(block, len(place)),
        )
        if content in tree:
            tree[content].rank = max(tree[content].rank, rank)
        elif parent < 0:
            tree[content] = _Old(block, 0, 0, salts[parent], rank)
        elif parent in tree:
            tree[content] = _Old(block, parent, tree[parent].depth + 1, tree[parent].salt, rank)
    for content in reversed(tree):
        one = tree[content]
        if one.parent:
            tree[one.parent].rank = max(tree[one.parent].rank, one.rank)
    return tree


def _new_contents(old: Books, new: Books, tree: dict[int, _Old]) -> list[_New]:
    """All whole new contents, parents before children."""
    if new.block_size >= old.block_size:
        return _joined(old, tree, new.block_size // old.block_size)
    return _split(old, tree, old.block_size // new.block_size)


def _joined(old: Books, tree: dict[int, _Old], ratio: int) -> list[_New]:
    made: dict[int, _New] = {}
    for content, one in tree.items():
        if (one.depth + 1) % ratio:
            continue
        members: list[int] = []
        before = content
        for _ in range(ratio):
            members.insert(0, before)
            before = tree[before].parent
        blocks = [tree[member].block for member in members]
        tokens = old.labels.tokens[blocks].reshape(-1)
        units = [(block, 0) for block in blocks]
        made[content] = _New(members, units, tokens, made.get(before), one.salt, one.rank, one.depth // ratio)
    return list(made.values())


def _split(old: Books, tree: dict[int, _Old], ratio: int) -> list[_New]:
    last: dict[int, _New] = {}
    made: list[_New] = []
    for content, one in tree.items():
        before = last.get(one.parent)
        for at, tokens in enumerate(old.labels.tokens[one.block].reshape(ratio, -1)):
            before = _New([content], [(one.block, at)], tokens, before, one.salt, one.rank, one.depth * ratio + at)
            made.append(before)
        last[content] = made[-1]
    return made


def _unknown(new: Books, group: int, contents: list[_New]) -> list[_New]:
    """Give every content its key; those that the rows have published get their id, the others are returned."""
    index, digest = new.indexes[group], new.chain.digest
    unknown = []
    for one in contents:
        before = one.parent.key if one.parent is not None else new.chain.root(one.salt)
        one.key = digest(before + one.tokens.tobytes())
        content = index.known(one.key, one.tokens, _parent_id(new, one))
        if content is None:
            unknown.append(one)
        else:
            one.content = content
    return unknown


def _parent_id(new: Books, one: _New) -> int:
    """The id of the content before it; 0 when that one is not published."""
    return new.labels.root_id(one.salt) if one.parent is None else one.parent.content


def _publish(new: Books, group: int, one: _New, copies: dict[Unit, Unit]) -> int:
    """A block for this content; 0 when it cannot be published."""
    parent = _parent_id(new, one)
    if not parent:
        return 0
    blocks = new.pool.allocate(1)
    block = int(blocks[0])
    new.pool.groups[block] = group
    new.indexes[group].publish([one.key], one.tokens[None], blocks, parent)
    one.content = int(new.pool.content_ids[block])
    if not one.content:  # its digest is another content's
        new.drop(blocks)
        return 0
    copies.update({(block, at): source for at, source in enumerate(one.units)})
    return block


def _found(contents: list[_New], is_split: bool) -> int:
    """Old contents that are part of a published one, or of which every part is published."""
    held = {member for one in contents if one.content for member in one.members}
    lost = {member for one in contents if not one.content for member in one.members} if is_split else set()
    return len(held - lost)
