"""Token ids that follow from (seed, stream, position) by a stable hash: the same in every process and numpy (M57).

A *stream* is an endless sequence of token ids with a number below 2^63. Its top three bits say what it is for, so
that a conversation, a shared prefix, a recorded hash block and a warm-up request can never name the same stream.
The hash is the finaliser of SplitMix64 (Steele, Lea and Flood 2014) over a per-stream key and the position.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from kvbench.errors import UsageError
from kvbench.workload.request import Segment

UInt64s = NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_KIND_SHIFT = 60
_INDEX_LIMIT = 1 << _KIND_SHIFT
_CONVERSATION, _PREFIX, _RECORDED, _RECORDED_DIGEST, _DOCUMENT, _DRAW, _FOREIGN = 0, 1, 2, 3, 4, 6, 7


def conversation_stream(index: int) -> int:
    """The private stream of session (or lone request) `index`: its prompts and its forced outputs."""
    return _named(_CONVERSATION, index)


def prefix_stream(group: int) -> int:
    """The stream of shared system prompt `group`."""
    return _named(_PREFIX, group)


def document_stream(index: int) -> int:
    """The stream of document `index` of a corpus."""
    return _named(_DOCUMENT, index)


def recorded_stream(hash_id: int) -> int:
    """The stream of a trace's hash block. Ids in [0, 2^60) are kept as they are; any other integer by a digest."""
    if 0 <= hash_id < _INDEX_LIMIT:
        return (_RECORDED << _KIND_SHIFT) | hash_id
    text = hash_id.to_bytes(hash_id.bit_length() // 8 + 1, "big", signed=True)
    return _named(_RECORDED_DIGEST, int.from_bytes(blake2b(text, digest_size=8).digest(), "big") % _INDEX_LIMIT)


def draw_stream(index: int) -> int:
    """A stream of random numbers (lengths, gaps, groups), never of tokens."""
    return _named(_DRAW, index)


def foreign_stream(index: int = 0) -> int:
    """A stream for warm-up, which no workload stream can equal (M21)."""
    return _named(_FOREIGN, index)


def stream_index(stream: int) -> int:
    """A stream's number within its kind."""
    return stream % _INDEX_LIMIT


def moved_stream(stream: int, by: int) -> int:
    """Another stream of the same kind, `by` numbers further (around the end of the kind)."""
    return stream - stream % _INDEX_LIMIT + (stream + by) % _INDEX_LIMIT


def token_ids(segments: Sequence[Segment], seed: int, vocab_size: int) -> NDArray[np.int32]:
    """The tokens that the segments name, concatenated: `[sum of lengths]`, each in [0, vocab_size)."""
    if not 1 <= vocab_size < 1 << 31:
        raise UsageError(
            f"a vocabulary of {vocab_size} tokens is outside 1 to 2^31 − 1", hint="vocab_size in config.json is wrong"
        )
    lengths = np.fromiter((segment.length for segment in segments), np.int64, len(segments))
    starts = np.fromiter((segment.start for segment in segments), np.int64, len(segments))
    streams = np.fromiter((segment.stream for segment in segments), np.uint64, len(segments))
    offsets = starts - (np.cumsum(lengths) - lengths)
    positions = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(offsets, lengths)
    words = hash_words(np.repeat(stream_keys(streams, seed), lengths), positions.astype(np.uint64))
    scaled = (words >> np.uint64(32)) * np.uint64(vocab_size) >> np.uint64(32)
    return scaled.astype(np.int32)


def stream_keys(streams: UInt64s, seed: int) -> UInt64s:
    """One 64-bit key per stream; for one seed, different streams always have different keys."""
    seed_key = mix(np.array([seed % (1 << 64)], dtype=np.uint64) + _GAMMA)
    return mix(streams + seed_key)


def hash_words(keys: UInt64s, positions: UInt64s) -> UInt64s:
    """64 random-looking bits for every (key, position)."""
    return mix(keys + (positions + np.uint64(1)) * _GAMMA)


def mix(words: UInt64s) -> UInt64s:
    """SplitMix64's finaliser, a bijection of 64-bit words."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _named(kind: int, index: int) -> int:
    return (kind << _KIND_SHIFT) | (index % _INDEX_LIMIT)
