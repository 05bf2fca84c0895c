from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest

from kvbench.workload.describe import describe, histogram, supports, tail_waste
from kvbench.workload.render import FORMATS
from tests.shared_data import shared_data
from tests.workload.helpers import FIXTURES, from_trace, naive_hit_tokens, synthetic


def test_tail_waste_is_exact() -> None:
    """Tail waste: (−T mod B) slots per sequence."""
    lengths = np.arange(1, 1000)
    for size in (1, 7, 16, 256):
        assert tail_waste(lengths, size) == sum(math.ceil(n / size) * size - n for n in range(1, 1000))


def test_tail_waste_share_is_of_allocated_slots() -> None:
    workload = synthetic(requests=10, input_tokens=20, output_tokens=3)
    (row,) = describe(workload, [16])["block_sizes"]
    assert (row["kv_blocks"], row["tail_waste_tokens"]) == (20, 90)
    assert row["tail_waste_share"] == pytest.approx(90 / 320)


@pytest.mark.parametrize(("count", "absent"), [(1, 4), (9, 3), (10, 2), (19, 2), (20, 1), (99, 1), (100, 0)])
def test_quantiles_that_the_count_cannot_support_are_absent_with_the_reason(count: int, absent: int) -> None:
    facts = describe(synthetic(requests=count, input_tokens={"kind": "uniform", "low": 1, "high": 500}), [16])
    quantiles = [facts["lengths"]["input_tokens"][name] for name in ("p50", "p90", "p95", "p99")]
    assert quantiles.count(None) == len(facts["quantiles_left_out"]) == absent
    assert supports(100, 0.99)
    assert not supports(99, 0.99)


def test_histogram_counts_every_value_once() -> None:
    for values in ([1], [5, 5, 5], [1, 2, 3, 4, 8, 16, 1000], list(range(1, 70_000)), [1, 2**31 - 1]):
        bins = histogram(np.array(values))
        assert sum(b["requests"] for b in bins) == len(values)
        assert bins[0]["low"] == min(values)
        assert bins[-1]["high"] == max(values) + 1
        for b in bins:
            assert b["requests"] == sum(b["low"] <= value < b["high"] for value in values)
        assert all(a["high"] == b["low"] for a, b in pairwise(bins))


def test_burstiness_tells_a_metronome_from_poisson() -> None:
    poisson = describe(synthetic(requests=5000, arrival={"kind": "poisson", "rate": 10}), [16])["arrivals"]
    assert poisson["burstiness"] == pytest.approx(1.0, abs=0.06)
    assert poisson["rate_per_s"] == pytest.approx(10.0, rel=0.06)
    at_once = describe(synthetic(requests=5), [16])["arrivals"]
    assert (at_once["rate_per_s"], at_once["burstiness"], at_once["duration_s"]) == (None, None, 0.0)


def test_hit_rate_bound_equals_a_token_by_token_account() -> None:
    workload = synthetic(requests=24, sessions={"turns": 4}, prefix={"groups": 2, "tokens": 40})
    facts = describe(workload, [8, 16])
    prompts = sum(request.input_tokens for request in workload.requests)
    for row in facts["block_sizes"]:
        assert row["hit_rate_bound"] == naive_hit_tokens(workload, row["block_size"], 10**9) / prompts


def test_recorded_blocks_of_the_real_mooncake_trace() -> None:
    path = shared_data("traces/mooncake/conversation_trace.jsonl")
    ids = [block for line in path.read_text().splitlines() for block in json.loads(line)["hash_ids"]]
    sharing = describe(from_trace(path, scale_tokens="1/16"), [32])["sharing"]
    assert (sharing["blocks"], sharing["unique_blocks"]) == (len(ids), len(set(ids)))


def test_every_format_shows_the_same_numbers_and_is_plain_text() -> None:
    facts = describe(from_trace(FIXTURES / "mooncake.jsonl", scale_tokens="1/16"), [16, 32])
    texts = {name: form([facts]) for name, form in FORMATS.items()}
    assert json.loads(texts["json"]) == json.loads(json.dumps(facts))
    assert f"0,digest,{facts['digest']}" in texts["csv"].splitlines()
    for name, text in texts.items():
        assert facts["digest"] in text
        assert "synthetic" in text
        assert "\x1b" not in text, name


def test_m68_a_path_with_markup_and_escapes_is_shown_as_text(tmp_path: object) -> None:
    """A suite name, error text or trace field with markup, HTML or terminal escapes is shown as text."""
    from pathlib import Path

    path = Path(str(tmp_path)) / "[red]<b>|\x1b[31m.csv"
    path.write_bytes((FIXTURES / "azure2023.csv").read_bytes())
    facts = describe(from_trace(path), [16])
    assert "[red]<b>|\\x1b[31m.csv" in FORMATS["table"]([facts])
    assert "\\[red\\]&lt;b&gt;\\|\\\\x1b\\[31m.csv" in FORMATS["md"]([facts])
