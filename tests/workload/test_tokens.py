from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from kvbench.errors import UsageError
from kvbench.workload.request import Segment
from kvbench.workload.tokens import (
    conversation_stream,
    draw_stream,
    foreign_stream,
    prefix_stream,
    recorded_stream,
    stream_index,
    token_ids,
)

_WORD = (1 << 64) - 1


def _mix(word: int) -> int:
    """SplitMix64's finaliser on Python integers, as its authors give it."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def _token(seed: int, stream: int, position: int, vocab_size: int) -> int:
    gamma = 0x9E3779B97F4A7C15
    key = _mix((stream + _mix((seed + gamma) & _WORD)) & _WORD)
    return ((_mix((key + (position + 1) * gamma) & _WORD) >> 32) * vocab_size) >> 32


def test_ids_equal_a_hash_written_with_plain_integers() -> None:
    """A change of the hash silently changes every workload that was ever measured: it would fail here."""
    segments = [Segment(3, 5, 7), Segment(foreign_stream(2), 0, 4), Segment(recorded_stream(2**40), 10**12, 3)]
    expected = [_token(11, s.stream, s.start + i, 2048) for s in segments for i in range(s.length)]
    assert token_ids(segments, 11, 2048).tolist() == expected


def test_segments_are_windows_of_one_endless_stream() -> None:
    whole = token_ids([Segment(9, 0, 100)], 1, 32_000)
    pieces = token_ids([Segment(9, 0, 33), Segment(9, 33, 0), Segment(9, 33, 67)], 1, 32_000)
    assert np.array_equal(whole, pieces)
    assert np.array_equal(whole[40:60], token_ids([Segment(9, 40, 20)], 1, 32_000))


def test_no_segments_are_no_tokens() -> None:
    assert token_ids([], 0, 100).shape == (0,)
    assert token_ids([], 0, 100).dtype == np.int32


@pytest.mark.parametrize("vocab_size", [1, 2, 2048, 128_256, 2**31 - 1])
def test_ids_lie_in_the_vocabulary(vocab_size: int) -> None:
    ids = token_ids([Segment(stream, 0, 1000) for stream in range(10)], 2**63 - 1, vocab_size)
    assert ids.min() >= 0
    assert ids.max() < vocab_size


@pytest.mark.parametrize("vocab_size", [0, -1, 2**31])
def test_impossible_vocabulary_is_refused(vocab_size: int) -> None:
    with pytest.raises(UsageError):
        token_ids([Segment(0, 0, 1)], 0, vocab_size)


def test_ids_are_roughly_uniform_within_and_across_streams() -> None:
    """χ² of 256 cells, 255 degrees of freedom: standard deviation √510 ≈ 22.6; five of them allowed."""
    along = token_ids([Segment(7, 0, 256_000)], 0, 256)
    across = token_ids([Segment(stream, 0, 1) for stream in range(256_000)], 0, 256)
    seeds = np.concatenate([token_ids([Segment(0, 0, 64)], seed, 256) for seed in range(4000)])
    for ids in (along, across, seeds):
        counts = np.bincount(ids, minlength=256)
        expected = len(ids) / 256
        assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 5 * 22.6


def test_neighbouring_ids_are_independent() -> None:
    ids = token_ids([Segment(1, 0, 200_000)], 3, 1 << 20).astype(float)
    assert abs(np.corrcoef(ids[:-1], ids[1:])[0, 1]) < 5 / np.sqrt(len(ids))


def test_streams_and_seeds_never_look_alike() -> None:
    """Pairs of streams agree on as many positions as chance has it, one in the vocabulary's size."""
    base = token_ids([Segment(0, 0, 100_000)], 0, 1000)
    for stream, seed in ((1, 0), (2**62, 0), (prefix_stream(0), 0), (foreign_stream(0), 0), (0, 1), (0, 2**32)):
        same = int((token_ids([Segment(stream, 0, 100_000)], seed, 1000) == base).sum())
        assert abs(same - 100) < 60


def test_namespaces_of_streams_never_meet() -> None:
    indexes = [0, 1, 2**32, 2**59, 2**60 - 1]
    makers = (conversation_stream, prefix_stream, recorded_stream, draw_stream, foreign_stream)
    streams = Counter(make(index) for make in makers for index in indexes)
    assert max(streams.values()) == 1
    assert all(0 <= stream < 2**63 for stream in streams)
    assert len({make(5) - stream_index(make(5)) for make in makers}) == len(makers)


def test_recorded_ids_of_any_size_are_kept_apart() -> None:
    ids = [0, 1, 2**32, 2**32 + 1, 2**60 - 1, 2**60, 2**63, 2**64, 2**64 + 1, 10**40, -1, -2, -(2**63)]
    assert len({recorded_stream(hash_id) for hash_id in ids}) == len(ids)


def test_m57_tokens_are_identical_in_processes_with_different_hash_seeds() -> None:
    """Token ids of a trace in two processes with different `PYTHONHASHSEED`: identical, digest included."""
    code = (
        "from kvbench.spec.workload import WorkloadSettings as S\n"
        "from kvbench.workload.build import build_workload\n"
        "from kvbench.workload.tokens import token_ids\n"
        "w = build_workload(S(source='trace', trace='tests/fixtures/traces/mooncake.jsonl', seed=3))\n"
        "print(w.digest, [token_ids(r.prompt, w.seed, 32000).sum() for r in w.requests])\n"
        "v = build_workload(S(requests=50, sessions={'turns': 3}, prefix={'groups': 4}, "
        "input_tokens={'kind': 'lognormal', 'median': 90, 'sigma': 1}, arrival={'kind': 'poisson', 'rate': 3}))\n"
        "print(v.digest)\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(printed) == 1
