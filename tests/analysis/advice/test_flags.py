"""The facts about other servers' flags, and answers as their command lines."""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import fields
from typing import Any

import pytest

from kvbench.analysis.advice.backend_check import Asked, backend_warnings
from kvbench.analysis.advice.flags import Answer, Emitted, emit_flags
from kvbench.analysis.advice.servers import SERVERS, server
from kvbench.errors import UsageError
from kvbench.geometry.dtypes import DTYPES

FULL: dict[str, Any] = {
    "max_sequences": 128, "max_batch_tokens": 8192, "batch_policy": "chunked", "prefix_cache": True,
    "host_bytes": 32 << 30, "kv_bytes": 20 << 30, "tp": 2, "max_context": 4096,
}  # fmt: skip


def _emit(name: str, block_size: int = 64, kv_dtype: str = "bf16", **changes: Any) -> Emitted:
    return emit_flags(name, Answer(block_size, kv_dtype, **changes), "org/model")


def _options(found: Emitted) -> dict[str, str | None]:
    """Flag → value of the command, and key → value of the configuration file."""
    words = shlex.split(found.command)
    flags = {}
    for word, behind in itertools.pairwise([*words, "--"]):
        if word.startswith("--"):
            flags[word] = None if behind.startswith("--") else behind
    group = re.fullmatch(r"kv_cache_config: \{(.+)\}", found.config or "")
    return flags | dict(re.findall(r"(\w+): ([^\s,]+)", "" if group is None else group.group(1)))


@pytest.mark.parametrize("name", SERVERS)
def test_every_fact_names_a_document_that_is_listed(name: str) -> None:
    facts = server(name)
    for document in facts.sources.values():
        assert re.fullmatch(r"https://\S+", document.url)
        assert document.document
        assert document.version
    used = [source for setting in facts.settings.values() for source in setting.sources]
    used += [x.source for x in (*facts.backends, *facts.orders)] + list(facts.rules.values())
    assert set(used) == set(facts.sources)
    assert all(setting.sources for setting in facts.settings.values())


@pytest.mark.parametrize("name", SERVERS)
def test_every_setting_can_be_told_to_the_server_in_one_way(name: str) -> None:
    facts = server(name)
    known = {field.name for field in fields(Answer)} | {"chunked_prefill"}
    for key, setting in facts.settings.items():
        assert key in known
        ways = [setting.flag is not None, setting.key is not None, setting.on is not None and setting.off is not None]
        assert sum(ways) == 1
        assert setting.flag is None or re.fullmatch(r"--[a-z_-]+", setting.flag)
        assert setting.key is None or (re.fullmatch(r"\w+\.\w+", setting.key) and facts.config_flag)
    for dtype in facts.settings["kv_dtype"].values:
        base, _, scales = dtype.partition(" ")
        assert (base in DTYPES, scales in ("tensor", "token-head")) == (True, DTYPES[base].scale_bytes > 0)
    assert not facts.without.keys() & facts.settings.keys()


@pytest.mark.parametrize("name", SERVERS)
def test_backends_are_consistent(name: str) -> None:
    facts = server(name)
    values = set(facts.settings["kv_dtype"].values.values())
    for backend in facts.backends:
        assert backend.kind in ("standard", "latent", "any")
        assert backend.capability[0] < backend.capability[1]
        assert set(backend.kv_dtypes) <= values
        assert not (backend.block_sizes and backend.multiple_of > 1)
    for order in facts.orders:
        assert set(order.backends) <= {backend.name for backend in facts.backends}


@pytest.mark.parametrize("name", SERVERS)
def test_every_setting_that_is_said_is_printed_or_named_as_unknown(name: str) -> None:
    policies = ("static", "continuous", "chunked")
    for dtype, scales, policy, block in itertools.product(
        DTYPES, ("token-head", "tensor-absmax"), policies, (1, 24, 64)
    ):
        found = _emit(name, block, dtype, kv_scales=scales, **{**FULL, "batch_policy": policy})
        shlex.split(found.command)
        told = {fact[0] for fact in found.facts} | {text.partition(" =")[0] for text in found.unknown}
        assert told >= {
            *("block size", "KV dtype", "max sequences", "batch tokens", "chunked prefill", "prefix cache"),
            *("host tier", "KV memory", "tensor parallel", "longest context"),
        }
        assert ("batch policy = static: no such flag known, batches are continuous" in found.unknown) == (
            policy == "static"
        )


def test_what_is_not_said_is_not_printed() -> None:
    assert _options(_emit("vllm", 32)) == {"--block-size": "32", "--kv-cache-dtype": "auto"}
    assert _options(_emit("sglang", 32)) == {
        "--model-path": "org/model",
        "--page-size": "32",
        "--kv-cache-dtype": "bf16",
    }
    assert _options(_emit("trtllm", 32)) == {"--config": "config.yaml", "tokens_per_block": "32", "dtype": "auto"}


def test_vllm_gets_its_own_flags() -> None:
    found = _emit("vllm", **FULL)
    assert found.command.startswith("vllm serve org/model --block-size 64 ")
    assert "\n" not in found.command
    assert _options(found) == {
        "--block-size": "64", "--kv-cache-dtype": "auto", "--max-num-seqs": "128",
        "--kv-cache-memory-bytes": str(20 << 30), "--max-model-len": "4096", "--tensor-parallel-size": "2",
        "--max-num-batched-tokens": "8192", "--enable-chunked-prefill": None, "--enable-prefix-caching": None,
        "--kv-offloading-size": "64",
    }  # fmt: skip
    assert (found.config, found.unknown) == (None, [])


def test_sglang_gets_its_own_flags() -> None:
    found = _emit("sglang", **FULL)
    assert _options(found) == {
        "--model-path": "org/model", "--page-size": "64", "--kv-cache-dtype": "bf16", "--max-running-requests": "128",
        "--context-length": "4096", "--tensor-parallel-size": "2",
        "--chunked-prefill-size": "8192", "--enable-mixed-chunk": None, "--enable-hierarchical-cache": None,
        "--hicache-size": "34",
    }  # fmt: skip
    assert found.unknown[0].startswith("KV memory = 21474836480: its pool is sized by --mem-fraction-static")
    whole = _options(_emit("sglang", batch_policy="continuous", max_batch_tokens=4096, prefix_cache=False))
    assert whole["--chunked-prefill-size"] == "-1"
    assert whole["--max-prefill-tokens"] == "4096"
    assert "--disable-radix-cache" in whole


def test_trtllm_gets_flags_and_a_configuration_file() -> None:
    found = _emit("trtllm", kv_dtype="fp8_e4m3", kv_scales="tensor-absmax", **FULL)
    assert _options(found) == {
        "--config": "config.yaml", "--max_batch_size": "128", "--max_seq_len": "4096", "--tp_size": "2",
        "--max_num_tokens": "8192", "--enable_chunked_prefill": None, "tokens_per_block": "64", "dtype": "fp8",
        "max_gpu_total_bytes": str(20 << 30), "enable_block_reuse": "true", "host_cache_size": str(32 << 30),
    }  # fmt: skip
    assert not found.unknown


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("vllm", {"block_size": 24, "capability": 9.0}, "falls to FLEX_ATTENTION: FLASH_ATTN takes multiples of 16"),
        ("vllm", {"block_size": 128, "capability": 10.0}, "falls to FLASH_ATTN: FLASHINFER takes blocks of 16, 32, 64"),
        ("vllm", {"block_size": 16, "is_latent": True, "capability": 10.0}, "FLASHINFER_MLA takes blocks of 32, 64"),
        ("vllm", {"block_size": 24, "is_latent": True}, "no attention backend of vLLM is known to take blocks of 24"),
        ("vllm", {"kv_dtype": "fp8_e4m3", "kv_scales": "tensor-absmax", "capability": 8.0}, "falls to FLASHINFER"),
        (
            "vllm",
            {"kv_dtype": "fp8_e5m2", "kv_scales": "tensor-absmax"},
            "FLASH_ATTN takes it on compute capability 9–9.9",
        ),
        ("vllm", {"max_sequences": 64, "max_batch_tokens": 32}, "refuses fewer batch tokens (32) than sequences (64)"),
        (
            "vllm",
            {"batch_policy": "continuous", "max_batch_tokens": 2048, "max_context": 8192},
            "refuses batch tokens (2,048) below the longest context (8,192)",
        ),
        ("vllm", {"kv_dtype": "fp8_e5m2"}, "scales per tensor"),
        ("sglang", {"block_size": 256}, "trtllm_mha takes blocks of 16, 32, 64, 128"),
        ("sglang", {"block_size": 16, "is_latent": True}, "flashmla takes blocks of 64"),
        ("sglang", {"capability": 8.0}, "token by token, whatever the block, by flashinfer"),
        ("sglang", {"kv_dtype": "fp8_e5m2", "kv_scales": "tensor-absmax", "capability": 9.0}, "falls to triton"),
        ("sglang", {"host_bytes": 1 << 20}, "less than one: left out"),
        ("sglang", {"host_bytes": 1 << 34, "tp": 4}, "does not say if it counts one rank or all"),
        ("trtllm", {"block_size": 24}, "takes powers of two above 1 as block size, not 24"),
        ("trtllm", {"block_size": 1}, "takes powers of two above 1 as block size, not 1"),
        (
            "trtllm",
            {"kv_dtype": "fp8_e4m3", "kv_scales": "tensor-absmax", "capability": 7.5},
            "needs a GPU of compute capability 8.0",
        ),
    ],
)
def test_what_the_server_would_object_to_is_said(name: str, answer: dict[str, Any], said: str) -> None:
    assert any(said in warning for warning in _emit(name, **answer).warnings)


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    for block in (16, 32, 64, 128):
        assert _emit("vllm", block, capability=9.0, max_sequences=64, max_batch_tokens=2048).warnings == []
        assert _emit("trtllm", block, capability=8.0).warnings == []
        assert _emit("sglang", block, capability=9.0).warnings == []


@pytest.mark.parametrize("capability", [None, 7.5, 8.0, 8.9, 9.0, 10.0, 12.0])
@pytest.mark.parametrize("kind", ["standard", "latent"])
def test_a_first_choice_that_objects_is_always_named(kind: str, capability: float | None) -> None:
    facts = server("vllm")
    for block in (8, 16, 24, 64, 128, 256):
        here = [b for b in facts.backends if b.serves(kind, capability)]
        takes = {b.name for b in here if b.objection(block, "auto") is None}
        order = next(
            (
                [name for name in o.backends if name in {b.name for b in here}]
                for o in facts.orders
                if capability is not None and o.kind == kind and o.capability[0] <= capability <= o.capability[1]
            ),
            None,
        )
        found = backend_warnings(facts, Asked(block, "auto", kind, capability))
        is_fine = order[0] in takes if order else {b.name for b in here} == takes
        assert bool(found) != is_fine


def test_unknown_servers_and_dtypes_are_refused() -> None:
    with pytest.raises(UsageError, match="no flags are known for 'tgi'") as raised:
        _emit("tgi")
    assert raised.value.hint == "one of vllm, sglang, trtllm"
    with pytest.raises(UsageError, match="unknown dtype"):
        _emit("vllm", kv_dtype="fp7")
    with pytest.raises(UsageError, match="unknown KV scales"):
        _emit("vllm", kv_scales="none")
    with pytest.raises(UsageError, match="not positive"):
        _emit("vllm", 0)


def test_a_models_name_is_quoted_for_the_shell() -> None:
    found = emit_flags("vllm", Answer(16, "bf16"), "my model; rm -rf /")
    assert shlex.split(found.command)[2] == "my model; rm -rf /"
