"""`-a`: what a key and a value from the command line stand for, and every way to get them wrong."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.errors import UsageError
from kvbench.spec.cases import expand
from kvbench.spec.load import from_effective, load_suite
from kvbench.spec.overrides import apply_overrides
from tests.spec.build import suite_of

BOTH: dict[str, Any] = {"engine": {"block_size": 64}, "kernel": {"batch": 2}, "axes": {"engine.kv_dtype": ["fp32"]}}


def axes_after(*texts: str, **sections: Any) -> dict[str, list[Any]]:
    return apply_overrides(suite_of(**(sections or BOTH)), list(texts)).suite.axes


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("engine.block_size=8,16", {"engine.block_size": [8, 16]}),
        ("block_size=8", {"engine.block_size": [8], "kernel.block_size": [8]}),
        ("max_sequences= 4 , 8", {"engine.max_sequences": [4, 8]}),
        ("kv_memory=64MiB,auto", {"engine.kv_memory": ["64MiB", "auto"]}),
        ("input_tokens=128,256", {"workload.input_tokens": [128, 256]}),
        (
            "input_tokens={ kind = 'uniform', low = 1, high = 2 },5",
            {"workload.input_tokens": [{"kind": "uniform", "low": 1, "high": 2}, 5]},
        ),
        ("model.name=7b,'a,b'", {"model.name": ["7b", "a,b"]}),
        ("model.name=123", {"model.name": ["123"]}),
        ("temperature=0,0.5,1", {"workload.sampling.temperature": [0, 0.5, 1]}),
        ("arrival.kind=all-at-once", {"workload.arrival.kind": ["all-at-once"]}),
        ("batch=1,2", {"kernel.batch": [1, 2]}),
    ],
)
def test_values_are_read_as_toml_with_text_as_the_fallback(text: str, wanted: dict[str, list[Any]]) -> None:
    found = axes_after(text)
    assert {key: found[key] for key in wanted} == wanted
    assert set(found) == {"engine.kv_dtype", *wanted}


def test_an_override_replaces_a_fixed_value_an_axis_and_a_zip_of_its_own() -> None:
    sections: dict[str, Any] = {
        "engine": {"block_size": 64},
        "axes": {"engine.kv_dtype": ["fp32", "bf16"], "engine.max_sequences": [1, 2]},
        "zip": [{"workload.requests": [1, 2]}],
    }
    changed = apply_overrides(suite_of(**sections), ["block_size=8", "kv_dtype=int8", "requests=5"])
    assert list(changed.suite.axes) == [
        "engine.kv_dtype",
        "engine.max_sequences",
        "engine.block_size",
        "workload.requests",
    ]
    assert changed.suite.zip == []
    assert "block_size" not in changed.effective["engine"]
    (one, two) = expand(changed.suite)
    assert (one.label, two.axes["max_sequences"]) == ("kv_dtype=int8 max_sequences=1 block_size=8 requests=5", 2)


def test_a_setting_of_the_whole_run_takes_one_value_and_becomes_no_axis() -> None:
    changed = apply_overrides(suite_of(**BOTH), ["repetitions=7", "slo.ttft_s=0.5"])
    assert (changed.suite.measure.repetitions, changed.suite.slo.ttft_s) == (7, 0.5)
    assert "measure.repetitions" not in changed.suite.axes


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("block_sise=8", 'unknown setting; did you mean "engine.block_size"?'),
        ("engine.bloksize=8", 'unknown setting; did you mean "engine.block_size"?'),
        ("seed=3", "ambiguous: model.seed, workload.seed, measure.seed; write one of these"),
        ("name=x", "ambiguous: model.name, kernel.name"),
        ("engine=3", "is a whole table; name one of its settings"),
        ("block_size", "expected key=value"),
        ("=3", "expected key=value"),
        ("", "expected key=value"),
        ("block_size=", "a value is missing"),
        ("block_size=8,,16", "a value is missing"),
        ("block_size=8x", 'expected a whole number from 1 to 256, got "8x"'),
        ("block_size=8,8", "value 1 (8) and value 2 (8) are the same"),
        ("block_size=0", "expected a whole number from 1 to 256, got 0"),
        ("kv_dtype=bf61", 'did you mean "bf16"?'),
        ("repetitions=3,4", "measure.repetitions holds for the whole run and takes one value"),
        ("rate=nan", "expected a number above 0, got NaN"),
        ("rate=2000-01-01", "expected a number above 0"),
        ("host_memory=1MiB", 'has no effect while engine.offload is "none"'),
        ("scale_tokens=1/16", 'has no effect while workload.source is "synthetic"'),
        ("offload=host", 'offload = "host" extends the prefix cache'),
        ("model.name=\udcff", "not text that a file could hold"),
    ],
)
def test_a_bad_override_is_one_clear_error(text: str, wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        axes_after(text)
    assert wanted in caught.value.message


def test_all_bad_overrides_are_named_at_once_as_they_were_typed() -> None:
    with pytest.raises(UsageError) as caught:
        axes_after("foo=1", "block_size=x", "kv_dtype=fp32", "engine.kv_dtype=bf16")
    for part in (
        "3 errors",
        "-a foo=1: ",
        "-a block_size=x: ",
        "engine.kv_dtype was given before, by -a kv_dtype=fp32",
    ):
        assert part in caught.value.message


def test_a_key_zipped_with_others_is_refused_with_their_names() -> None:
    sections: dict[str, Any] = {"zip": [{"engine.block_size": [1, 2], "workload.requests": [1, 2]}]}
    with pytest.raises(UsageError, match=r"zipped with workload\.requests"):
        axes_after("block_size=8", **sections)


def test_a_setting_of_a_kind_that_the_suite_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="sets kernel cases, and suite t has none"):
        axes_after("batch=8", engine={})
    assert axes_after("block_size=8", engine={}) == {"engine.block_size": [8]}
    assert axes_after("block_size=8", kernel={}) == {"kernel.block_size": [8]}


def test_effective_content_round_trips_and_its_digest_follows_the_content() -> None:
    plain = load_suite("block-size")
    changed = apply_overrides(plain, ["block_size=8", "repetitions=2", "input_tokens=64"])
    again = from_effective(changed.effective)
    assert again.suite == changed.suite
    assert again.digest == changed.digest != plain.digest
    assert [case.case_id for case in expand(again.suite)] == [case.case_id for case in expand(changed.suite)]
    assert plain.digest == load_suite("block-size").digest
    assert changed.changes == ("block_size=8", "repetitions=2", "input_tokens=64")
    assert changed.text == plain.text


def test_an_override_gives_the_cases_that_the_file_would_have_given() -> None:
    typed = apply_overrides(suite_of(engine={"block_size": 64}), ["block_size=8,16", "kv_dtype=bfloat16"])
    written = suite_of(engine={"kv_dtype": "bf16"}, axes={"engine.block_size": [8, 16]})
    assert [case.case_id for case in expand(typed.suite)] == [case.case_id for case in expand(written.suite)]
