"""A sequence's token ids, and the prefix keys that follow from them.

A key names the content of one full block together with everything before it:
key[i] = digest(key[i − 1] + tokens of block i), and key[−1] is the root: namespace, block size and salt, tagged and
under sha256. Keys hold no block id, no object identity and no Python hash, so two processes compute the same (E25).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from kvbench.errors import InternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

HASH_FUNCTIONS = {"xxh3-128": "xxhash:xxh3_128_digest", "sha256": "kvbench.cache.content:sha256_digest"}
_TOKEN = np.dtype("<i4")


def sha256_digest(data: bytes) -> bytes:
    """The digest to choose when tenants might craft collisions; hits compare tokens in any case."""
    return hashlib.sha256(data).digest()


@cache
def _load(place: str) -> Callable[[bytes], bytes]:
    module, _, name = place.partition(":")
    function: Callable[[bytes], bytes] = getattr(import_module(module), name)
    return function


@dataclass(frozen=True, slots=True)
class KeyChain:
    """How one manager turns tokens into keys."""

    block_size: int
    namespace: bytes = b""
    hash_function: str = "xxh3-128"
    digest: Callable[[bytes], bytes] = field(init=False, repr=False, compare=False)
    """The function behind that name; `UsageError` when there is none"""

    def __post_init__(self) -> None:
        place = HASH_FUNCTIONS.get(self.hash_function)
        if place is None:
            raise UsageError(
                f"unknown hash function {self.hash_function!r}", hint=f"choose one of {', '.join(HASH_FUNCTIONS)}"
            )
        object.__setattr__(self, "digest", _load(place))

    def root(self, salt: str | None) -> bytes:
        """Parent of every first block. Fields are length-prefixed, so no two (namespace, salt) pairs meet (E22)."""
        fields = [self.namespace, str(self.block_size).encode()]
        if salt is not None:
            fields.append(salt.encode("utf-8", "surrogatepass"))
        return sha256_digest(b"".join(len(field).to_bytes(8, "little") + field for field in fields))

    def extend(self, keys: list[bytes], tokens: NDArray[np.int32], salt: str | None, count: int) -> None:
        """Append to `keys` until it holds those of the first `count` blocks of `tokens`."""
        digest, step = self.digest, self.block_size * _TOKEN.itemsize
        data = tokens[len(keys) * self.block_size : count * self.block_size].tobytes()
        key = keys[-1] if keys else self.root(salt)
        append = keys.append
        for at in range(0, len(data), step):
            key = digest(key + data[at : at + step])
            append(key)


class Content:
    """Token ids of one sequence, growing at the end; keys are computed on first use and kept, those of two chains."""

    __slots__ = ("_buffer", "_chain", "_keys", "_other_chain", "_other_keys", "length", "priority", "salt")

    def __init__(
        self,
        tokens: Sequence[int] | NDArray[np.integer],
        *,
        salt: str | None = None,
        capacity: int = 0,
        priority: int = 0,
    ) -> None:
        """`priority` is the request's: what eviction by priority goes by. It is no part of the keys."""
        given = np.asarray(tokens, dtype=_TOKEN)
        self.length = len(given)
        self.salt = salt
        self.priority = priority
        self._buffer = np.empty(max(capacity, self.length, 1), dtype=_TOKEN)
        self._buffer[: self.length] = given
        self._chain: KeyChain | None = None
        self._keys: list[bytes] = []
        self._other_chain: KeyChain | None = None
        self._other_keys: list[bytes] = []

    def __len__(self) -> int:
        return self.length

    @property
    def tokens(self) -> NDArray[np.int32]:
        """[length] a view; read it, do not keep it across an append."""
        return self._buffer[: self.length]

    def append(self, token: int) -> None:
        at = self.length
        if at == len(self._buffer):
            self._grow(at + 1)
        self._buffer[at] = token
        self.length = at + 1

    def extend(self, tokens: Sequence[int] | NDArray[np.integer]) -> None:
        given = np.asarray(tokens, dtype=_TOKEN)
        end = self.length + len(given)
        if end > len(self._buffer):
            self._grow(end)
        self._buffer[self.length : end] = given
        self.length = end

    def truncate(self, length: int) -> None:
        """Forget tokens from position `length` on (speculation rolled back), and the keys that covered them."""
        if not 0 <= length <= self.length:
            raise InternalError(f"content of {self.length} tokens cannot be cut to {length}")
        self.length = length
        if self._chain is not None:
            del self._keys[length // self._chain.block_size :]
        if self._other_chain is not None:
            del self._other_keys[length // self._other_chain.block_size :]

    def copy(self) -> Content:
        """An independent content with the same tokens, for a forked sequence."""
        twin = Content(self.tokens, salt=self.salt, capacity=len(self._buffer), priority=self.priority)
        twin._chain, twin._keys = self._chain, self._keys.copy()
        twin._other_chain, twin._other_keys = self._other_chain, self._other_keys.copy()
        return twin

    def keys(self, chain: KeyChain, count: int) -> list[bytes]:
        """Keys of at least the first `count` full blocks; the list is the cache itself, do not change it."""
        if chain is not self._chain and chain != self._chain:
            self._turn_to(chain)
        if len(self._keys) < count:
            if count * chain.block_size > self.length:
                raise InternalError(f"content of {self.length} tokens has no {count} full blocks")
            chain.extend(self._keys, self.tokens, self.salt, count)
        return self._keys

    def key_and_bytes(self, chain: KeyChain, block: int) -> tuple[bytes, bytes]:
        """Key of one full block, and its tokens as little-endian bytes; for the block that has just become full."""
        end = (block + 1) * chain.block_size
        data = self._buffer[end - chain.block_size : end].tobytes()
        keys = self._keys if chain is self._chain else self._other_keys if chain is self._other_chain else None
        if keys is None or len(keys) != block or self.length < end:
            return self.keys(chain, block + 1)[block], data
        key = chain.digest((keys[-1] if block else chain.root(self.salt)) + data)
        keys.append(key)
        return key, data

    def _turn_to(self, chain: KeyChain) -> None:
        """Keys of the chain asked for last come first; a third chain pushes out the older of two."""
        known = self._other_keys if chain == self._other_chain else []
        self._other_chain, self._other_keys = self._chain, self._keys
        self._chain, self._keys = chain, known

    def named(self, chain: KeyChain, first: int, end: int) -> NDArray[np.int32]:
        """What a hit compares of full blocks [first, end), a row each: their tokens."""
        size = chain.block_size
        return self._buffer[first * size : end * size].reshape(end - first, size)

    def _grow(self, needed: int) -> None:
        larger = np.empty(max(needed, 2 * len(self._buffer)), dtype=_TOKEN)
        larger[: self.length] = self.tokens
        self._buffer = larger
