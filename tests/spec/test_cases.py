"""The matrix: how many cases, which, and what makes two the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.spec.cases import expand
from kvbench.spec.fields import Settings
from kvbench.spec.keys import all_keys, column
from kvbench.spec.problems import SuiteError
from tests.spec.build import cases_of, only_id, suite_of

POOLS: dict[str, list[Any]] = {
    "engine.block_size": [1, 2, 4, 8],
    "engine.kv_dtype": ["fp32", "bf16", "int8"],
    "engine.max_sequences": [1, 2, 3],
    "workload.requests": [5, 6, 7, 8, 9],
    "workload.input_tokens": [1, 2, {"kind": "uniform", "low": 1, "high": 2}],
    "model.seed": [0, 1, 2],
}


@st.composite
def matrices(draw: st.DrawFn) -> dict[str, Any]:
    """Axes and one zip group over disjoint keys, and an exclude rule over two of the axes."""
    keys = draw(st.permutations(list(POOLS)))
    cut = draw(st.integers(0, 3))
    size = draw(st.integers(1, 3))
    zipped = {key: POOLS[key][:size] for key in keys[:cut]}
    axes = {key: POOLS[key][: draw(st.integers(1, len(POOLS[key])))] for key in keys[cut : cut + 3]}
    ruled = draw(st.lists(st.sampled_from(sorted(axes)), max_size=2, unique=True))
    rule = {key: POOLS[key][: draw(st.integers(1, len(POOLS[key])))] for key in ruled}
    return {"axes": axes, "zip": [zipped] if zipped else [], "rule": rule}


@settings(max_examples=80, deadline=None)
@given(matrices())
def test_count_is_the_product_less_what_a_rule_removes(matrix: dict[str, Any]) -> None:
    axes, zips, rule = matrix["axes"], matrix["zip"], matrix["rule"]
    whole = len(next(iter(zips[0].values()))) if zips else 1
    hit = whole if rule else 0
    for key, values in axes.items():
        whole *= len(values)
        hit *= len([v for v in values if v in rule[key]]) if key in rule else len(values)
    sections = {"engine": {}, "axes": axes, "zip": zips}
    assert len(cases_of(**sections)) == whole
    if rule and hit < whole:
        assert len(cases_of(**sections, exclude=[rule])) == whole - hit
    if rule:
        assert len(cases_of(**sections, only=[rule])) == hit


def test_m06_zip_groups_advance_together_beside_products() -> None:
    """M06: input and output lengths that go together, times a product axis, with exclude and only."""
    zipped = {"workload.input_tokens": [1000, 8000], "workload.output_tokens": [100, 800]}
    sections: dict[str, Any] = {"axes": {"engine.block_size": [8, 16]}, "zip": [zipped]}
    rows = [tuple(case.axes.values()) for case in cases_of(**sections)]
    assert rows == [(8, 1000, 100), (8, 8000, 800), (16, 1000, 100), (16, 8000, 800)]
    left = cases_of(**sections, exclude=[{"workload.input_tokens": 8000, "engine.block_size": 8}])
    assert [tuple(case.axes.values()) for case in left] == [rows[0], *rows[2:]]
    kept = cases_of(**sections, only=[{"workload.output_tokens": 800}])
    assert [tuple(case.axes.values()) for case in kept] == [rows[1], rows[3]]


def test_rules_match_fixed_settings_and_parts_of_a_length_distribution() -> None:
    lengths = [{"kind": "uniform", "low": 1, "high": 9}, 7]
    sections: dict[str, Any] = {"engine": {"kv_dtype": "bfloat16"}, "axes": {"workload.input_tokens": lengths}}
    assert len(cases_of(**sections, only=[{"engine.kv_dtype": "bf16", "workload.input_tokens.kind": "uniform"}])) == 1


def test_a_rule_of_one_kind_leaves_the_other_kind_alone() -> None:
    sections: dict[str, Any] = {"axes": {"engine.block_size": [8, 16], "kernel.block_size": [8, 16, 32]}}
    assert [case.kind for case in cases_of(**sections, only=[{"engine.block_size": 8}])] == ["engine", *["kernel"] * 3]


@pytest.mark.parametrize("values", [[2, 2, 2], ["bf16", "bfloat16"], ["2KiB", 2048]])
def test_m05_axis_values_that_are_the_same_are_refused_with_both_places(values: list[Any]) -> None:
    """M05: two axis values that resolve to the same case (`2,2,2`, or `"bf16"` and `"bfloat16"`)."""
    key = {"bf16": "engine.kv_dtype", "2KiB": "engine.kv_memory"}.get(str(values[0]), "engine.block_size")
    with pytest.raises(SuiteError, match=r"value 1 \(.*\) and value 2 \(.*\) are the same"):
        suite_of(axes={key: values})


def test_m05_points_that_are_the_same_are_refused_with_both_places_and_the_reason() -> None:
    """M05, the same kind of fault between whole points: a zip row twice, or an axis that decides nothing."""
    with pytest.raises(SuiteError, match=r"\(block_size=8 eviction=lru\) and \(block_size=8 eviction=fifo\) are one"):
        suite_of(axes={"engine.block_size": [8], "engine.eviction": ["lru", "fifo"]})
    with pytest.raises(SuiteError, match="are one and the same"):
        suite_of(zip=[{"engine.block_size": [8, 16, 8], "engine.kv_dtype": ["bf16", "bf16", "bfloat16"]}])


GAMMA = {"workload.arrival.kind": "gamma", "workload.arrival.rate": 1}
CLOSED = {
    "workload.arrival.kind": "closed-loop",
    "workload.arrival.clients": 2,
    "workload.arrival.think_time_s": 1,
}

HOST = {"engine.prefix_cache": "hash", "engine.host_memory": 1, "engine.offload": "host"}
DISK = HOST | {"engine.offload": "host+disk", "engine.disk_memory": 1}
DECIDING: list[tuple[str, Any, dict[str, Any]]] = [
    ("model.name", "tiny-llama", {}),
    ("model.weights", "checkpoint", {}),
    ("model.seed", 1, {}),
    ("engine.block_size", 8, {}),
    ("engine.kv_dtype", "bf16", {}),
    ("engine.kv_layout", "nhd", {}),
    ("engine.cuda_graphs", True, {}),
    ("engine.reblock_to", 32, {}),
    ("engine.reblock_after", 5, {"engine.reblock_to": 32}),
    ("engine.kv_scales", "tensor-absmax", {"engine.kv_dtype": "int8"}),
    (
        "engine.kv_percentile",
        99.0,
        {"engine.kv_dtype": "fp8_e4m3", "engine.kv_scales": "tensor-percentile"},
    ),
    ("engine.kv_memory", "1MiB", {}),
    ("engine.max_sequences", 3, {}),
    ("engine.max_batch_tokens", 3, {}),
    ("engine.max_context", 64, {}),
    ("engine.batch_policy", "static", {}),
    ("engine.admission", "guaranteed-no-evict", {}),
    ("engine.order", "priority", {}),
    ("engine.starvation_limit", 3, {"engine.order": "priority"}),
    ("engine.victim", "priority", {}),
    ("engine.preset", "contiguous", {}),
    ("engine.watermark", 0.5, {"engine.admission": "watermark"}),
    ("engine.adaptive_initial", 0.5, {"engine.admission": "adaptive"}),
    ("engine.adaptive_floor", 0.5, {"engine.admission": "adaptive"}),
    ("engine.adaptive_decay_steps", 5, {"engine.admission": "adaptive"}),
    ("engine.adaptive_ahead", 5, {"engine.admission": "adaptive"}),
    ("engine.deduplicate_prefixes", True, {"engine.prefix_cache": "hash"}),
    ("engine.reservation", "oracle", {"engine.allocator": "buddy"}),
    ("engine.allocator", "contiguous", {}),
    ("engine.prefix_cache", "hash", {}),
    ("engine.hash_function", "sha256", {"engine.prefix_cache": "hash"}),
    ("engine.partial_block_reuse", True, {"engine.prefix_cache": "hash"}),
    ("engine.eviction", "fifo", {"engine.prefix_cache": "hash"}),
    ("engine.lrc_alpha", 2.0, {"engine.prefix_cache": "hash", "engine.eviction": "lrc-age"}),
    ("engine.lrc_beta", 2.0, {"engine.prefix_cache": "hash", "engine.eviction": "lrc-age"}),
    ("engine.offload", "host", {"engine.prefix_cache": "hash", "engine.host_memory": "1MiB"}),
    ("engine.host_memory", "2MiB", {"engine.prefix_cache": "hash", "engine.host_memory": 1, "engine.offload": "host"}),
    (
        "engine.host_eviction",
        "arc",
        {"engine.prefix_cache": "hash", "engine.host_memory": 1, "engine.offload": "host"},
    ),
    ("engine.offload_when", "completed", HOST),
    ("engine.store_threshold", 2, HOST | {"engine.offload_when": "completed"}),
    ("engine.disk_memory", "2MiB", DISK),
    ("engine.disk_path", "x", DISK),
    ("engine.promotion", "overlapped", HOST),
    ("engine.preemption", "swap", {"engine.swap_memory": "1MiB"}),
    ("engine.swap_memory", "2MiB", {"engine.swap_memory": "1MiB", "engine.preemption": "swap"}),
    ("engine.attention", "torch", {}),
    ("engine.speculation", "prompt-lookup", {}),
    ("engine.draft_tokens", 2, {"engine.speculation": "prompt-lookup"}),
    ("engine.draft_layers", 2, {"engine.speculation": "first-layers", "engine.draft_layers": 1}),
    ("engine.draft_model", "b", {"engine.speculation": "draft-model", "engine.draft_model": "a"}),
    ("engine.acceptance_rate", 0.5, {"engine.speculation": "prompt-lookup"}),
    ("engine.weight_dtype", "fp16", {}),
    ("workload.source", "trace", {}),
    ("workload.requests", 3, {}),
    ("workload.input_tokens", 3, {}),
    ("workload.input_tokens.min", 3, {}),
    ("workload.output_tokens", {"kind": "empirical", "values": [3]}, {}),
    ("workload.arrival.kind", "recorded", {"workload.source": "trace"}),
    ("workload.arrival.rate", 2.0, {"workload.arrival.kind": "poisson", "workload.arrival.rate": 1}),
    ("workload.arrival.burstiness", 2.0, GAMMA),
    ("workload.arrival.clients", 3, CLOSED),
    ("workload.arrival.think_time_s", 2.0, CLOSED),
    ("workload.arrival.think", "exponential", CLOSED),
    ("workload.prefix.groups", 1, {}),
    ("workload.prefix.shots", 2, {"workload.prefix.groups": 1}),
    ("workload.prefix.shot_tokens", 2, {"workload.prefix.groups": 1, "workload.prefix.shots": 1}),
    ("workload.prefix.tenants", 2, {}),
    ("workload.documents.corpus", 2, {}),
    ("workload.documents.per_request", 2, {"workload.documents.corpus": 3}),
    ("workload.documents.tokens", 2, {"workload.documents.corpus": 3}),
    ("workload.documents.zipf", 2.0, {"workload.documents.corpus": 3}),
    ("workload.prefix.tokens", 3, {"workload.prefix.groups": 1}),
    ("workload.prefix.zipf", 2.0, {"workload.prefix.groups": 1}),
    ("workload.sessions.turns", 2, {}),
    ("workload.sessions.think_time_s", 1.0, {"workload.sessions.turns": 2}),
    ("workload.sessions.think", "exponential", {"workload.sessions.turns": 2, "workload.sessions.think_time_s": 1}),
    ("workload.outputs", "sampled", {}),
    ("workload.sampling.temperature", 1.0, {}),
    ("workload.sampling.top_k", 3, {"workload.sampling.temperature": 1}),
    ("workload.sampling.top_p", 0.5, {"workload.sampling.temperature": 1}),
    ("workload.sampling.n", 2, {"workload.sampling.temperature": 1, "workload.outputs": "sampled"}),
    ("workload.sampling.beams", 2, {"workload.outputs": "sampled"}),
    ("workload.priorities", [1.0, 1.0], {}),
    ("workload.trace", "x.csv", {"workload.source": "trace"}),
    ("workload.format", "azure", {"workload.source": "trace"}),
    ("workload.limit", 3, {"workload.source": "trace"}),
    ("workload.scale_time", 0.5, {"workload.source": "trace", "workload.arrival.kind": "recorded"}),
    ("workload.scale_tokens", 0.5, {"workload.source": "trace"}),
    ("workload.max_input_tokens", 3, {}),
    ("workload.max_output_tokens", 3, {}),
    ("workload.seed", 1, {}),
    ("kernel.block_size", 8, {}),
    ("kernel.kv_dtype", "bf16", {}),
    ("kernel.kv_layout", "nhd", {}),
    ("kernel.kv_scales", "tensor-absmax", {"kernel.kv_dtype": "int8"}),
    (
        "kernel.kv_percentile",
        99.0,
        {"kernel.kv_dtype": "fp8_e4m3", "kernel.kv_scales": "tensor-percentile"},
    ),
    ("kernel.batch", 3, {}),
    ("kernel.buffers", "l2-flushed", {}),
    ("measure.cache_state", "primed", {"engine.prefix_cache": "hash"}),
    ("kernel.context", 3, {}),
    ("kernel.query_heads", 4, {}),
    ("kernel.kv_heads", 1, {}),
    ("kernel.head_dim", 32, {}),
    ("kernel.attention", "torch", {}),
]


def as_axes(settings_of: dict[str, Any]) -> dict[str, list[Any]]:
    return {key: [value] for key, value in settings_of.items()}


@pytest.mark.parametrize(("key", "value", "context"), DECIDING, ids=[row[0] for row in DECIDING])
def test_a_deciding_setting_changes_the_id(key: str, value: Any, context: dict[str, Any]) -> None:
    kind = all_keys()[key].kind or ""
    before = only_id(axes=as_axes(context)) if context else only_id(**{kind: {}})
    assert only_id(axes=as_axes(context | {key: value})) != before


def test_every_setting_of_a_case_is_known_to_decide() -> None:
    one_choice = {"kernel.name"}
    parts = {f"workload.{side}_tokens.{p}" for side in ("input", "output") for p in Settings.model_fields} | {
        key for key in all_keys() if key.startswith(("workload.input_tokens.", "workload.output_tokens."))
    }
    varied = {key for key, found in all_keys().items() if found.kind} - one_choice - parts
    assert varied <= {row[0] for row in DECIDING}


def nested(settings_of: dict[str, Any], order: random.Random) -> dict[str, Any]:
    """Fixed sections in shuffled key order."""
    data: dict[str, Any] = {}
    for key, value in sorted(settings_of.items(), key=lambda _: order.random()):
        *tables, last = key.split(".")
        inner = data
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[last] = value
    return data


SPELLINGS: dict[str, list[Any]] = {
    "engine.kv_dtype": ["bf16", "bfloat16", "BF16"],
    "engine.kv_memory": [2048, "2KiB", "2048 B", "2 KiB"],
    "workload.input_tokens": [64, {"kind": "constant", "value": 64}, {"value": 64}],
    "workload.scale_tokens": [1, 1.0, "1/1"],
    "workload.arrival": [{"kind": "poisson", "rate": 2}, {"rate": 2.0, "kind": "poisson"}],
    "engine.block_size": [8],
    "workload.outputs": ["forced"],
    "model.seed": [7],
}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_id_ignores_key_order_spelling_and_which_values_are_axes(data: st.DataObject) -> None:
    ids = set()
    for _ in range(2):
        chosen = {key: data.draw(st.sampled_from(spellings)) for key, spellings in SPELLINGS.items()}
        varied = data.draw(st.lists(st.sampled_from([key for key in SPELLINGS if key in all_keys()]), unique=True))
        fixed = nested({k: v for k, v in chosen.items() if k not in varied}, random.Random(data.draw(st.integers())))
        ids.add(only_id(**fixed, axes=as_axes({key: chosen[key] for key in varied})))
    assert len(ids) == 1


@pytest.mark.parametrize(
    "extra",
    [
        {"measure": {"repetitions": 9, "seed": 4}},
        {"slo": {"ttft_s": 1.0}},
        {"title": "x", "claim": "y"},
        {"workload": {"prefix": {"tokens": 9}}},
        {"engine": {"host_memory": "1MiB", "eviction": "fifo", "hash_function": "sha256"}},
    ],
)
def test_id_ignores_what_does_not_decide(extra: dict[str, Any]) -> None:
    assert only_id(**({"engine": {}} | extra)) == only_id(engine={})


def test_id_is_the_same_in_every_process_and_release() -> None:
    """A plain restatement of the rule: kind and deciding settings as sorted JSON, sha256, 12 digits."""
    import hashlib
    import json

    (case,) = cases_of(kernel={"batch": 2})
    assert case.kernel is not None
    deciding = case.kernel.model_dump(exclude={"kv_scales", "kv_percentile"})  # fp32 needs no scales
    text = json.dumps({"kind": "kernel", "kernel": deciding}, sort_keys=True)
    assert case.case_id == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_columns_are_last_parts_where_unique_else_whole_keys() -> None:
    assert column("engine.block_size") == column("kernel.block_size") == "block_size"
    assert column("workload.arrival.rate") == "rate"
    assert column("workload.seed") == "workload_seed"
    by_column: dict[str, set[str]] = {}
    for key in all_keys():
        by_column.setdefault(column(key), set()).add(key)
    shared = {frozenset(keys) for keys in by_column.values() if len(keys) > 1}
    assert shared == {
        frozenset({f"engine.{x}", f"kernel.{x}"})
        for x in ("block_size", "kv_dtype", "kv_scales", "kv_percentile", "kv_layout", "attention")
    }


def test_labels_and_axis_cells_are_for_people() -> None:
    axes = {"engine.block_size": [16], "workload.input_tokens": [{"kind": "uniform", "low": 1, "high": 2}, 5]}
    one, two = cases_of(axes=axes)
    assert one.label == "block_size=16 input_tokens=uniform(low=1, high=2)"
    assert two.axes == {"block_size": 16, "input_tokens": 5}


def test_axes_complete_a_fixed_section_that_is_not_whole_by_itself() -> None:
    sections: dict[str, Any] = {"workload": {"arrival": {"kind": "poisson"}}, "axes": {"workload.arrival.rate": [1, 2]}}
    assert [case.workload.arrival.rate for case in cases_of(**sections) if case.workload] == [1.0, 2.0]


def test_ten_thousand_cases_expand_to_as_many_ids() -> None:
    axes = {"workload.seed": list(range(100)), "model.seed": list(range(100))}
    assert len({case.case_id for case in expand(suite_of(axes=axes).suite)}) == 10_000
