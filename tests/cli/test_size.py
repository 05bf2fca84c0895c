"""`kvbench size`: its numbers against hand arithmetic, its refusals, its formats."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cli.size import size
from kvbench.errors import CannotRunError, KvbenchError, UsageError
from kvbench.geometry.lengths import parse_lengths

GIB = 1 << 30
LLAMA = ["--model", "llama-3.1-8b"]


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(size, list(arguments))


def _json(*arguments: str) -> Any:
    result = _run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def _error(*arguments: str) -> KvbenchError:
    result = _run(*arguments)
    assert isinstance(result.exception, KvbenchError), (result.exception, result.output)
    return result.exception


def test_the_whole_line_of_arithmetic_by_hand() -> None:
    """Llama-3.1-8B in bf16 on 40 GiB, runtime and headroom given: everything by the formulas of the budget."""
    found = _json(*LLAMA, "--memory", "40GiB", "--runtime", "1GiB", "--headroom", "2GiB", "--lengths", "8k",
                  "--max-sequences", "64", "--max-batch-tokens", "2048")  # fmt: skip
    (pool,) = found["pools"]
    weights, tables = 8_030_261_248 * 2, 2 * 64 * (131_072 // 16) * 4 + 2048 * 8
    kv = 40 * GIB - GIB - 2 * GIB - weights - tables
    block = 16 * 131_072
    blocks = (kv - block) // (block + 48)
    assert found["device"]["weights_bytes"] == weights
    assert (pool["kv_bytes"], pool["table_bytes"], pool["block_bytes"]) == (kv, tables, block)
    assert (pool["num_blocks"], pool["pool_bytes"]) == (blocks, blocks * block)
    assert pool["longest_sequence_tokens"] == blocks * 16
    (length,) = pool["lengths"]
    assert (length["sequences"], length["blocks_per_sequence"]) == (blocks // 512, 512)


def test_runtime_is_estimated_from_declared_parts() -> None:
    device = _json(*LLAMA, "--gpu", "h200")["device"]
    parts = device["device_context_bytes"] + device["activation_bytes"] + device["logit_bytes"]
    assert device["runtime_is_estimated"]
    assert device["runtime_bytes"] == parts
    assert device["logit_bytes"] == 256 * 128_256 * 4


@pytest.mark.parametrize(("tp", "kv_heads", "copies"), [(1, 8, 1), (4, 2, 1), (8, 1, 1), (16, 1, 2)])
def test_tensor_parallel_divides_heads_and_then_replicates_them(tp: int, kv_heads: int, copies: int) -> None:
    found = _json("--model", "llama-3.1-70b", "--gpu", "h200", "--tp", str(tp), "--weights", "fp8", "--lengths", "1k")
    assert (found["device"]["kv_heads"], found["device"]["kv_replication"]) == (kv_heads, copies)
    assert found["pools"][0]["kv_bytes_per_token"] == 80 * kv_heads * 256 * 2
    assert found["pools"][0]["kv_bytes_per_token_all_ranks"] == 80 * 8 * 256 * 2 * copies


def test_utilization_and_headroom_are_two_ways_to_say_one_thing() -> None:
    by_share = _json(*LLAMA, "--memory", "100000000000", "--utilization", "0.8")
    by_bytes = _json(*LLAMA, "--memory", "100000000000", "--headroom", "20000000000")
    assert by_share["pools"] == by_bytes["pools"]


def test_quantised_kv_of_half_the_bytes_holds_almost_twice_the_blocks() -> None:
    found = _json(*LLAMA, "--gpu", "h100", "--kv-dtype", "bf16,fp8,int4")
    bf16, fp8, int4 = (p["kv_bytes_per_token"] for p in found["pools"])
    assert (bf16, fp8, int4) == (131_072, 65_536 + 2048, 32_768 + 2048)


def test_tail_waste_grows_with_the_block() -> None:
    found = _json(*LLAMA, "--gpu", "h100", "--block-size", "16,64", "--lengths", "1000")
    assert [p["lengths"][0]["tail_waste_slots"] for p in found["pools"]] == [-1000 % 16, -1000 % 64]
    assert [p["lengths"][0]["mean_tail_share"] for p in found["pools"]] == [15 / 2000, 63 / 2000]


def test_a_lognormal_has_the_median_and_percentile_it_was_given() -> None:
    (drawn,) = parse_lengths("lognormal(1000, 4000)")
    ordered = sorted(drawn.tokens)
    assert len(ordered) == 1000
    assert ordered[500] == pytest.approx(1000, rel=0.01)
    assert ordered[950] == pytest.approx(4000, rel=0.02)
    sigma = math.log(4) / 1.6448536
    assert drawn.mean == pytest.approx(1000 * math.exp(sigma**2 / 2), rel=0.02)
    assert parse_lengths("lognormal(500,500)")[0].tokens == (500,) * 1000


def test_draws_beyond_the_longest_context_are_cut_and_counted() -> None:
    """Half of a lognormal lies above its median."""
    found = _json(*LLAMA, "--gpu", "h100", "--max-context", "1000", "--lengths", "lognormal(1000,4000)")
    length = found["pools"][0]["lengths"][0]
    assert length["clipped_share"] == pytest.approx(0.5, abs=0.002)
    assert length["mean_tokens"] < 1000
    table = _run(*LLAMA, "--gpu", "h100", "--max-context", "1000", "--lengths", "lognormal(1000,4000)").stdout
    assert "are cut to the longest context" in " ".join(table.split())


def test_lengths_are_read_with_their_suffixes() -> None:
    assert [x.tokens[0] for x in parse_lengths("1k, 8k,1500 , 1.5k,1m")] == [1024, 8192, 1500, 1536, 1 << 20]
    assert [x.label for x in parse_lengths("1k,lognormal(1k,2k),7")] == ["1k", "lognormal(1k,2k)", "7"]


@pytest.mark.parametrize(
    "text", ["", ",", "0", "-1", "1k,,2k", "k", "1e9", "lognormal(1)", "lognormal(2,1)", "lognormal(0,5)",
             "lognormal(1,2", "9" * 500, "9" * 5000, "nan", "1k;2k", "normal(1,2)", "))((", "٣"],
)  # fmt: skip
def test_lengths_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_lengths(text)


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic_and_the_way_out() -> None:
    error = _error("--model", "llama-3.1-70b", "--gpu", "h100")
    assert isinstance(error, CannotRunError)
    assert error.exit_code == 4
    for word in ("weights", "runtime", "headroom", "131 GiB", "79.6 GiB"):
        assert word in error.message
    assert error.hint == "it fits with --tp 2"


def test_the_way_out_is_tried_not_guessed() -> None:
    """28 ranks are the most that divide qwen2.5-7b's 28 heads, so only smaller weights are left."""
    cramped = _error("--model", "qwen2.5-7b", "--memory", "1.1GiB", "--tp", "28")
    assert cramped.hint == "it fits with --weights fp8_e4m3"
    hopeless = _error("--model", "deepseek-v3", "--memory", "600MiB")
    assert "more memory" in (hopeless.hint or "")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--model", "lama-3.1-8b"], "lama-3.1-8b"),
        ([*LLAMA, "--gpu", "h999"], "h999"),
        ([*LLAMA, "--gpu", "h100", "--memory", "1GiB"], "--gpu and --memory"),
        ([*LLAMA, "--memory", "lots"], "lots"),
        ([*LLAMA, "--memory", "0"], "0 bytes"),
        ([*LLAMA, "--memory", "9" * 400], "size in bytes"),
        ([*LLAMA, "--gpu", "9" * 400 + "GiB"], "size in bytes"),
        ([*LLAMA, "--memory", "9999999TiB"], "size in bytes"),
        ([*LLAMA, "--gpu", "h100", "--utilization", "nan"], "--utilization"),
        ([*LLAMA, "--gpu", "h100", "--tp", "3"], "32 query heads"),
        ([*LLAMA, "--gpu", "h100", "--weights", "fp7"], "fp7"),
        ([*LLAMA, "--gpu", "h100", "--kv-dtype", "bf16,fp9"], "fp9"),
        ([*LLAMA, "--gpu", "h100", "--kv-dtype", ","], "--kv-dtype"),
        ([*LLAMA, "--gpu", "h100", "--block-size", "0"], "block size '0'"),
        ([*LLAMA, "--gpu", "h100", "--block-size", "16,x"], "block size 'x'"),
        ([*LLAMA, "--gpu", "h100", "--block-size", "²"], "block size"),
        ([*LLAMA, "--gpu", "h100", "--lengths", "8z"], "8z"),
        ([*LLAMA, "--gpu", "h100", "--lengths", "1m"], "longest context"),
        ([*LLAMA, "--gpu", "h100", "--headroom", "1GiB", "--utilization", "0.5"], "--headroom"),
    ],
)
def test_a_wrong_option_is_one_clear_error(arguments: list[str], word: str) -> None:
    error = _error(*arguments)
    assert isinstance(error, UsageError)
    assert word in error.message


def test_without_gpu_the_device_at_hand_is_used() -> None:
    device = _json("--model", "tiny-llama")["device"]
    assert device["memory_bytes"] > 0
    assert device["name"]


def test_a_checkpoint_folder_is_a_model(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip
    folder = tmp_path / "[red]my|model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    arguments = ("--model", str(folder), "--memory", "1GiB")
    assert _json(*arguments)["model"]["name"] == "[red]my|model"
    assert "[red]my|model" in _run(*arguments).stdout
    assert "\\|model" in _run(*arguments, "--format", "md").stdout


def test_csv_has_one_row_per_dtype_block_and_length() -> None:
    result = _run(*LLAMA, "--gpu", "h100", "--kv-dtype", "bf16,int8", "--block-size", "8,16", "--lengths", "1k,2k",
                  "--format", "csv")  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    keys = [(r["kv_dtype"], r["block_size"], r["length"]) for r in rows]
    assert keys == [(d, b, t) for d in ("bf16", "int8") for b in ("8", "16") for t in ("1k", "2k")]
    assert all(None not in row and "" not in (row["model"], row["device"], row["sequences"]) for row in rows)


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(["tiny-llama", "gemma-3-12b", "gpt-oss-20b", "deepseek-v2-lite", "mistral-7b-v0.1"]),
    memory=st.integers(1, 300 * GIB), tp=st.integers(1, 8), block=st.integers(1, 1024), length=st.integers(1, 16_000),
)  # fmt: skip
def test_any_question_has_an_answer_or_one_clear_error(
    model: str, memory: int, tp: int, block: int, length: int
) -> None:
    result = _run("--model", model, "--memory", str(memory), "--tp", str(tp), "--block-size", str(block), "--lengths",
                  str(length), "--format", "json")  # fmt: skip
    if result.exception is None:
        (pool,) = json.loads(result.stdout)["pools"]
        assert pool["lengths"][0]["sequences"] * pool["lengths"][0]["bytes_per_sequence"] <= memory
    else:
        assert isinstance(result.exception, KvbenchError)


def test_every_option_is_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "size.md").read_text()
    for parameter in size.params:
        for name in parameter.opts:
            assert f"`{name}" in page or f" `{name}" in page, name
