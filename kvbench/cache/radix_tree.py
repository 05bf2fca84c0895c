"""A token tree over blocks: which blocks hold the front of a sequence of tokens.

A node owns a run of blocks and their tokens; below it are the runs that continue it, told apart by the tokens of their
first block. Runs are split where contents part, at a block boundary; a leaf grows in place.
"""

from __future__ import annotations

from array import array

import numpy as np

from kvbench.errors import InternalError


class Node:
    """Blocks [start, start + len(blocks)) of every sequence that passes through here; a root has none."""

    __slots__ = ("blocks", "children", "parent", "start", "tokens")

    def __init__(self, parent: Node | None, start: int) -> None:
        self.parent = parent
        self.start = start
        self.blocks = array("q")
        self.tokens = bytearray()
        """Of the whole run, four bytes each"""
        self.children: dict[bytes, Node] = {}
        """By the tokens of their first block"""

    @property
    def end(self) -> int:
        return self.start + len(self.blocks)


class RadixTree:
    """Roots are numbers. `data` are the tokens of whole blocks, `step` bytes each."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.step = 4 * block_size
        self.roots: dict[int, Node] = {}
        self._node_of: list[Node | None] = [None] * (num_blocks + 1)
        self._depth = [0] * (num_blocks + 1)

    def find(self, data: bytes, root: int) -> array[int]:
        """Blocks of the longest front of `data` that is in the tree."""
        node, at, found = self.roots.get(root), 0, array("q")
        while node is not None and at < len(data):
            node = node.children.get(data[at : at + self.step])
            if node is None:
                break
            common = self.common(node, 0, data, at)
            at += common * self.step
            if common < len(node.blocks):
                found += node.blocks[:common]
                break
            found += node.blocks
        return found

    def root(self, number: int) -> Node:
        node = self.roots.get(number)
        if node is None:
            node = self.roots[number] = Node(None, 0)
        return node

    def behind(self, block: int) -> tuple[Node, int]:
        """Where the successors of a block belong: a node, and how many of its blocks lie before them."""
        node = self.node(block)
        return node, self._depth[block] + 1 - node.start

    def common(self, node: Node, inside: int, data: bytes, at: int) -> int:
        """How many blocks of the run, from block `inside` on, are those of `data` from byte `at` on."""
        first = inside * self.step
        size = min(len(node.tokens) - first, len(data) - at)
        if node.tokens[first : first + size] == data[at : at + size]:
            return size // self.step
        ours = np.frombuffer(node.tokens, np.int32, size // 4, first)
        theirs = np.frombuffer(data, np.int32, size // 4, at)
        return int(np.argmax(ours != theirs)) * 4 // self.step

    def split(self, node: Node, inside: int) -> None:
        """The run ends after `inside` blocks; what is behind becomes a node below it."""
        rest = Node(node, node.start + inside)
        cut = inside * self.step
        rest.blocks, rest.tokens, rest.children = node.blocks[inside:], node.tokens[cut:], node.children
        del node.blocks[inside:], node.tokens[cut:]
        for child in rest.children.values():
            child.parent = rest
        for block in rest.blocks:
            self._node_of[block] = rest
        node.children = {bytes(rest.tokens[: self.step]): rest}

    def grow(self, node: Node, data: bytes, blocks: list[int]) -> None:
        """New blocks behind the end of a node: a leaf grows, anything else gets a child."""
        if node.parent is None or node.children:
            child = Node(node, node.end)
            node.children[data[: self.step]] = child
            node = child
        for depth, block in enumerate(blocks, node.end):
            self._node_of[block] = node
            self._depth[block] = depth
        node.blocks.extend(blocks)
        node.tokens += data

    def cut(self, blocks: list[int], at: int) -> int:
        """Take as many of `blocks[at:]` off the end of their node as stand there in this order, last block first."""
        node, count = self.node(blocks[at]), 0
        run, most = node.blocks, min(len(node.blocks), len(blocks) - at)
        while count < most and run[-1 - count] == blocks[at + count]:
            count += 1
        if node.children or not count:
            raise InternalError(f"block {blocks[at]} would leave the tree before the blocks that continue it")
        if count == len(run) and node.parent is not None:
            del node.parent.children[bytes(node.tokens[: self.step])]
        del run[-count:], node.tokens[-count * self.step :]
        for block in blocks[at : at + count]:
            self._node_of[block] = None
        return count

    def replace(self, block: int, other: int) -> None:
        """Another block with the same tokens takes this one's place."""
        node, depth = self.node(block), self._depth[block]
        node.blocks[depth - node.start] = other
        self._node_of[other], self._depth[other] = node, depth
        self._node_of[block] = None

    def node(self, block: int) -> Node:
        node = self._node_of[block]
        if node is None:
            raise InternalError(f"block {block} is published, but not in the tree")
        return node

    def check(self) -> list[tuple[int, int]]:
        """Walk the whole tree: nodes continue their parents, sizes agree, blocks know their place. Returns every block
        with the one before it, or with its root's number."""
        pairs: list[tuple[int, int]] = []
        stack = [(number, node) for number, node in self.roots.items()]
        while stack:
            before, node = stack.pop()
            if node.parent is not None and not node.blocks:
                raise InternalError(f"a node of the tree at block {node.start} holds nothing")
            if len(node.tokens) != len(node.blocks) * self.step:
                raise InternalError(f"a node of the tree has {len(node.blocks)} blocks, {len(node.tokens)} token bytes")
            for depth, block in enumerate(node.blocks, node.start):
                if self._node_of[block] is not node or self._depth[block] != depth:
                    raise InternalError(f"block {block} does not know its place in the tree")
                pairs.append((before, block))
                before = block
            for key, child in node.children.items():
                if child.parent is not node or child.start != node.end or bytes(child.tokens[: self.step]) != key:
                    raise InternalError(f"a node of the tree at block {child.start} does not continue its parent")
                stack.append((before, child))
        return pairs
