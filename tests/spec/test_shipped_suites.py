"""The suites that ship: each says what it claims, can be run on a small CPU, and touches what it promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvbench.paths import suites_dir
from kvbench.spec.cases import expand
from kvbench.spec.effective import filled_in
from kvbench.spec.keys import all_keys, value_at
from kvbench.spec.load import load_suite, suite_names
from kvbench.spec.toml_write import to_toml

PROMISED = {"smoke", "block-size", "kv-dtype", "batch-policy", "prefix-cache", "offload", "contiguous-vs-paged"}
PROMISED |= {"beam-cow", "mla", "reblocking"}
PROMISED |= {"sliding-window"}
PROMISED |= {"admission", "preemption", "systems"}
PROMISED |= {"speculative"}
MAX_CONTEXT = 8192


def test_what_was_promised_ships() -> None:
    assert set(suite_names()) == PROMISED | {"traffic"}


@pytest.mark.parametrize("name", suite_names())
def test_a_suite_introduces_itself(name: str) -> None:
    suite = load_suite(name).suite
    text = (suites_dir() / f"{name}.toml").read_text(encoding="utf-8")
    assert suite.name == name
    assert suite.title
    assert suite.claim
    assert re.search("look at", text, re.IGNORECASE)


@pytest.mark.parametrize("name", suite_names())
def test_a_suite_gives_its_kv_memory_in_bytes_and_the_same_for_every_case(name: str) -> None:
    sizes = {case.engine.kv_memory for case in expand(load_suite(name).suite) if case.engine}
    assert len(sizes) == 1
    assert isinstance(sizes.pop(), int)


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_no_request_outgrows_its_context_or_the_pool(name: str) -> None:
    """The longest request by its clips: a whole conversation with its prefix."""
    for case in expand(load_suite(name).suite):
        if case.engine is None or case.workload is None:
            continue
        work = case.workload
        turn = longest(work.input_tokens) + longest(work.output_tokens)
        tokens = (work.prefix.tokens if work.prefix.groups else 0) + work.sessions.turns * turn
        context = MAX_CONTEXT if case.engine.max_context == "auto" else case.engine.max_context
        assert tokens <= context
        fp32_bytes_per_token = 4 * 2 * 2 * 32 * 4  # layers × K and V × KV heads × head_dim × 4 bytes
        assert isinstance(case.engine.kv_memory, int)
        assert tokens + case.engine.block_size <= case.engine.kv_memory // fp32_bytes_per_token


def longest(lengths: Any) -> int:
    top = {"constant": lengths.value, "uniform": lengths.high, "empirical": max(lengths.values or [0])}
    return lengths.max if lengths.max else top[lengths.kind]


def test_smoke_has_two_values_of_every_engine_axis_and_two_kernel_cases() -> None:
    cases = expand(load_suite("smoke").suite)
    engines = [case.engine for case in cases if case.engine]
    one_choice = {"preset", "cuda_graphs"}  # presets set the others: the suite systems has them; graphs need a GPU
    one_choice |= {"speculation", "draft_tokens", "draft_layers", "draft_model", "acceptance_rate"}  # speculative has
    whole_run = {"kv_memory", "host_memory", "disk_memory", "disk_path", "swap_memory", "max_context"}
    for name in set(type(engines[0]).model_fields) - one_choice - whole_run:
        assert len({getattr(engine, name) for engine in engines}) >= 2, name
    assert sum(case.kind == "kernel" for case in cases) == 2
    assert load_suite("smoke").suite.measure.repetitions == 2


def test_every_choice_of_every_engine_setting_is_in_some_shipped_suite() -> None:
    engines = [case.engine for name in suite_names() for case in expand(load_suite(name).suite) if case.engine]
    for key in all_keys().values():
        last = key.path.partition(".")[2]
        if key.section == "engine" and "enum" in key.schema and last != "weight_dtype":
            found = {value_at(engine, [last]) for engine in engines}
            dtypes = {"fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"}
            wanted = {*key.schema["enum"]} & dtypes or {*key.schema["enum"]}
            assert wanted - {"numba", "triton"} <= found, key.path  # what `auto` picks on a CPU and on a GPU


def test_block_size_covers_the_claimed_range_in_both_kinds() -> None:
    sizes: dict[str, set[int]] = {"engine": set(), "kernel": set()}
    for case in expand(load_suite("block-size").suite):
        sizes[case.kind].add(case.axes["block_size"])
        assert case.kernel is None or (case.kernel.batch, case.kernel.context) == (8, 1024)
    assert sizes["engine"] == sizes["kernel"] == {4, 8, 16, 32, 64, 128, 256}


@pytest.mark.parametrize("name", suite_names())
def test_the_filled_in_suite_saves_and_loads_as_the_same_cases(name: str, tmp_path: Path) -> None:
    suite = load_suite(name).suite
    file = tmp_path / "again.toml"
    file.write_text(to_toml(filled_in(suite)), encoding="utf-8")
    again = load_suite(file).suite
    assert [(c.case_id, c.axes) for c in expand(again)] == [(c.case_id, c.axes) for c in expand(suite)]
    assert (again.measure, again.slo) == (suite.measure, suite.slo)
