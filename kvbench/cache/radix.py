"""The radix tree as a prefix index: the interface of `HashIndex` over a tree of tokens.

A look-up walks from the root and compares tokens, so it needs no digest and knows no collision; salts are separate
roots. Keys are made only where a lower tier or a listener wants names. Further copies of a content that is in the tree
already stand beside it: whoever computed them keeps its own blocks, and one takes the place of the first when that is
evicted (E55).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbench.cache.radix_tree import RadixTree
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbench.cache.content import KeyChain
    from kvbench.cache.eviction.policy import EvictionPolicy
    from kvbench.cache.pool import BlockPool
    from kvbench.cache.prefix import KnownElsewhere, Labels
    from kvbench.cache.radix_tree import Node
    from kvbench.cache.siblings import Siblings
    from kvbench.cache.types import Int32s, Int64s


class RadixIndex:
    """Contents of one layer group as a tree."""

    def __init__(self, pool: BlockPool, labels: Labels, policy: EvictionPolicy, group: int, chain: KeyChain) -> None:
        self._pool = pool
        self._labels = labels
        self._policy = policy
        self._group = group
        self._chain = chain
        self._tree = RadixTree(pool.num_blocks, chain.block_size)
        self._first: dict[int, int] = {}
        """Content id → its block in the tree"""
        self._spare: dict[int, list[int]] = {}
        """Content id → further blocks"""
        self.siblings: Siblings | None = None
        self.lower_tier: KnownElsewhere | None = None
        self.listener: Callable[[str, bytes], None] | None = None

    def __len__(self) -> int:
        return len(self._first)

    @property
    def needs_keys(self) -> bool:
        return self.lower_tier is not None or self.listener is not None

    def holds(self, key: bytes) -> bool:
        """No key is ever taken by another content: tokens alone tell contents apart."""
        return False

    def names(self) -> list[bytes]:
        return [self._name(block) for block in self._first.values()]

    def known(self, key: bytes, tokens: Int32s, parent: int) -> int | None:
        if not parent:
            return None
        data = tokens.tobytes()
        node, inside = self._place(parent)
        if inside == len(node.blocks):
            child = node.children.get(data)
            return None if child is None else int(self._pool.content_ids[child.blocks[0]])
        is_there = self._tree.common(node, inside, data, 0) == 1
        return int(self._pool.content_ids[node.blocks[inside]]) if is_there else None

    def find(self, keys: Sequence[bytes], tokens: Int32s, root: int) -> Int64s:
        return np.array(self._tree.find(tokens.tobytes(), root), dtype=np.int64)

    def publish(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parent: int) -> None:
        if not parent:
            return
        tree, data, own = self._tree, tokens.tobytes(), blocks.tolist()
        node, inside = self._place(parent)
        at = 0
        while at < len(own):
            common = tree.common(node, inside, data, at * tree.step) if inside < len(node.blocks) else 0
            self._add_copies(node.blocks[inside : inside + common], own[at : at + common], keys[at : at + common])
            at, inside = at + common, inside + common
            if at == len(own):
                return
            if inside < len(node.blocks):
                tree.split(node, inside)
            child = node.children.get(data[at * tree.step : (at + 1) * tree.step])
            if child is None:
                before = int(self._pool.content_ids[own[at - 1]]) if at else parent
                self._add(node, keys[at:], tokens[at:], blocks[at:], before)
                return
            node, inside = child, 0

    def publish_tails(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parents: Int64s) -> None:
        for at, parent in enumerate(parents.tolist()):
            self.publish(keys[at : at + 1], tokens[at : at + 1], blocks[at : at + 1], parent)

    def adopt(self, key: bytes, tokens: Int32s, block: int, content: int, parent: int) -> None:
        node, inside = self._place(parent)
        if inside < len(node.blocks):
            self._tree.split(node, inside)
        self._add(node, (key,), tokens[None], np.array([block]), parent, content)

    def remove(self, blocks: Int64s) -> list[int]:
        own: list[int] = blocks.tolist()
        contents = self._pool.content_ids.take(blocks).tolist()
        names = {block: self._name(block) for block in own} if self.listener is not None else {}
        if self._spare:
            left = [pair for pair in zip(own, contents, strict=True) if not self._drop_copy(*pair)]
            own, contents = [block for block, _ in left], [content for _, content in left]
        at = 0
        while at < len(own):
            at += self._tree.cut(own, at)
        for content in contents:
            del self._first[content]
        if self.siblings is not None:
            for block in own:
                self.siblings.remove(int(self._labels.parent_ids[block]), self._labels.tokens[block])
        self._pool.content_ids[blocks] = 0
        if self.listener is not None:
            for block in own:
                self.listener("removed", names[block])
        return own

    def check(self) -> list[int]:
        labels, ids = self._labels, self._pool.content_ids
        pairs = self._tree.check()
        seen = [block for _, block in pairs]
        if sorted(seen) != sorted(self._first.values()):
            raise InternalError("the tree and the list of contents do not have the same blocks")
        for before, block in pairs:
            parent = before if before < 0 else int(ids[before])
            node, behind = self._tree.behind(block)
            own = node.tokens[(behind - 1) * self._tree.step : behind * self._tree.step]
            if labels.parent_ids[block] != parent or labels.tokens[block].tobytes() != own:
                raise InternalError(f"block {block} does not hold what its place in the tree says")
        for content, copies in self._spare.items():
            for block in (self._first[content], *copies):
                same = labels.parent_ids[block] == labels.parent_ids[copies[0]] and ids[block] == content
                if not same or (labels.tokens[block] != labels.tokens[copies[0]]).any():
                    raise InternalError(f"block {block} is kept as a copy of another, which it is not")
            seen += copies
        if self.siblings is not None:
            self.siblings.check(list(self._first.values()), labels)
        return seen

    def _place(self, content: int) -> tuple[Node, int]:
        """Where the successors of a content belong."""
        if content < 0:
            return self._tree.root(content), 0
        return self._tree.behind(self._first[content])

    def _add(
        self, node: Node, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, parent: int, content: int = 0
    ) -> None:
        """Contents that are not in the tree, behind the end of `node`; `content` is the id that a single one has."""
        own = blocks.tolist()
        self._tree.grow(node, tokens.tobytes(), own)
        ids = [content] if content else self._new_ids(keys, tokens, parent)
        parents = [parent, *ids[:-1]]
        self._first.update(zip(ids, own, strict=True))
        self._label(keys, tokens, blocks, ids, parents)
        if self.siblings is not None:
            for block, before, one in zip(own, parents, tokens, strict=True):
                self.siblings.add(before, one, block)
        if self.listener is not None:
            for key in keys:
                self.listener("stored", key)

    def _new_ids(self, keys: Sequence[bytes], tokens: Int32s, parent: int) -> list[int]:
        """Fresh content ids, except for contents that a lower tier has."""
        if self.lower_tier is None:
            first = self._labels.new_ids(len(tokens))
            return list(range(first, first + len(tokens)))
        ids: list[int] = []
        for key, one in zip(keys, tokens, strict=True):
            known = self.lower_tier.content_id(self._group, key, one, ids[-1] if ids else parent)
            ids.append(known or self._labels.new_ids(1))
        return ids

    def _add_copies(self, known: Sequence[int], own: list[int], keys: Sequence[bytes]) -> None:
        """Further blocks with the contents of the blocks `known`."""
        for at, (first, block) in enumerate(zip(known, own, strict=True)):
            content = int(self._pool.content_ids[first])
            self._spare.setdefault(content, []).append(block)
            tokens, parent = self._labels.tokens[first : first + 1], int(self._labels.parent_ids[first])
            self._label(keys[at : at + 1], tokens, np.array([block]), [content], [parent])

    def _label(self, keys: Sequence[bytes], tokens: Int32s, blocks: Int64s, ids: list[int], parents: list[int]) -> None:
        labels, own = self._labels, blocks.tolist()
        self._pool.content_ids[blocks] = ids
        labels.parent_ids[blocks] = parents
        labels.tokens[blocks] = tokens
        for block, key in zip(own, keys or [b""] * len(own), strict=True):
            labels.keys[block] = key
        if self._policy.watches_contents:
            for block, content, parent in zip(own, ids, parents, strict=True):
                self._policy.published(block, content, parent)

    def _drop_copy(self, block: int, content: int) -> bool:
        """Whether another block has the same content; the next one takes this one's place in the tree."""
        copies = self._spare.get(content)
        if copies is None:
            return False
        if self._first[content] == block:
            self._first[content] = copies.pop(0)
            self._tree.replace(block, self._first[content])
            if self.siblings is not None:
                self.siblings.add(int(self._labels.parent_ids[block]), self._labels.tokens[block], self._first[content])
        else:
            copies.remove(block)
        if not copies:
            del self._spare[content]
        return True

    def _name(self, block: int) -> bytes:
        """The block's key, made from the tokens on the way to it where nobody wanted keys when it was published."""
        labels = self._labels
        if not labels.keys[block]:
            path, parent = [block], int(labels.parent_ids[block])
            while parent > 0:
                path.append(self._first[parent])
                parent = int(labels.parent_ids[path[-1]])
            keys: list[bytes] = []
            self._chain.extend(keys, labels.tokens[path[::-1]].ravel(), labels.salts()[parent], len(path))
            labels.keys[block] = keys[-1]
        return labels.keys[block]
