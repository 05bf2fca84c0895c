"""Token buffers and chain keys."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cache.content import Content, KeyChain
from kvbench.errors import InternalError, UsageError

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)
DIGESTS = {
    "xxh3-128": lambda data: xxhash.xxh3_128(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}


@given(TOKENS, TOKENS, st.integers(1, 5), st.sampled_from(sorted(DIGESTS)), st.sampled_from([None, "", "tenant"]))
def test_keys_are_the_chain_of_digests_however_the_content_grew(
    start: list[int], more: list[int], size: int, function: str, salt: str | None
) -> None:
    chain = KeyChain(size, b"name", function)
    content = Content(start, salt=salt)
    content.keys(chain, len(start) // size)
    for token in more:
        content.append(token)
        if content.length % size == 0:
            content.key_and_bytes(chain, content.length // size - 1)
    tokens = np.array([*start, *more], dtype="<i4")
    key, expected = chain.root(salt), []
    for end in range(size, len(tokens) + 1, size):
        key = DIGESTS[function](key + tokens[end - size : end].tobytes())
        expected.append(key)
    assert content.keys(chain, len(expected)) == expected
    assert content.tokens.tolist() == tokens.tolist()
    whole = Content(tokens, salt=salt)
    assert whole.keys(chain, len(expected)) == expected


@given(TOKENS, st.integers(0, 40), TOKENS)
def test_a_cut_content_has_the_keys_of_what_is_left(tokens: list[int], length: int, more: list[int]) -> None:
    chain, length = KeyChain(3), min(length, len(tokens))
    content = Content(tokens)
    content.keys(chain, len(tokens) // 3)
    content.truncate(length)
    content.extend(more)
    fresh = Content([*tokens[:length], *more])
    blocks = fresh.length // 3
    assert content.keys(chain, blocks)[:blocks] == fresh.keys(chain, blocks)


def test_a_copy_grows_apart_from_its_origin() -> None:
    chain = KeyChain(2)
    content = Content([1, 2, 3])
    content.keys(chain, 1)
    twin = content.copy()
    content.append(4)
    twin.append(5)
    assert content.keys(chain, 2)[0] == twin.keys(chain, 2)[0]
    assert content.keys(chain, 2)[1] != twin.keys(chain, 2)[1]


def test_a_content_used_with_another_chain_forgets_the_keys_of_the_first() -> None:
    content = Content(range(12))
    first = list(content.keys(KeyChain(2), 6))
    assert content.keys(KeyChain(3), 4) != first[:4]
    assert content.keys(KeyChain(2, b"other model"), 6) != first
    assert content.keys(KeyChain(2), 6) == first


def test_errors_say_what_is_wrong() -> None:
    content = Content([1, 2, 3])
    with pytest.raises(InternalError, match="3 tokens has no 2 full blocks"):
        content.keys(KeyChain(2), 2)
    with pytest.raises(InternalError, match="cannot be cut to 4"):
        content.truncate(4)
    with pytest.raises(UsageError, match="md5") as raised:
        content.keys(KeyChain(2, b"", "md5"), 1)
    assert "sha256" in str(raised.value.hint)


@pytest.mark.parametrize("tokens", [[2**31], [-(2**31) - 1]])
def test_a_token_that_is_no_int32_is_not_wrapped(tokens: list[int]) -> None:
    with pytest.raises(OverflowError):
        Content(tokens)
