"""The JSON Schema accepts what loads and refuses what does not, key by key."""

from __future__ import annotations

import json
import tomllib

import pytest
from jsonschema import Draft202012Validator

from kvbench.paths import suites_dir
from kvbench.spec.effective import filled_in
from kvbench.spec.keys import all_keys
from kvbench.spec.load import load_suite, suite_names
from kvbench.spec.schema import json_schema

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def test_it_is_a_schema_of_the_draft_that_it_names() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"].endswith("2020-12/schema")


@pytest.mark.parametrize("name", suite_names())
def test_shipped_suites_pass_as_written_and_filled_in(name: str) -> None:
    VALIDATOR.validate(tomllib.loads((suites_dir() / f"{name}.toml").read_text(encoding="utf-8")))
    VALIDATOR.validate(filled_in(load_suite(name).suite))


@pytest.mark.parametrize(
    "text",
    [
        "[axes]\nengine.block_size = [8]\n'engine.kv_dtype' = ['bfloat16']\n[axes.workload]\narrival.rate = [1, 2.5]\n",
        "[axes]\nworkload.input_tokens = [64, { kind = 'lognormal', median = 3, sigma = 1 }]\n",
        "[axes.workload.input_tokens]\nmedian = [1]\nsigma = [2]\n",
        "[[zip]]\nengine.block_size = [8]\n[[exclude]]\nengine.block_size = 8\n[[only]]\nengine.block_size = [8, 16]\n",
        "[engine]\nkv_memory = 'auto'\nhost_memory = '1.5 GiB'\n[workload]\nscale_tokens = '1/16'\n",
    ],
)
def test_every_spelling_that_loads_is_accepted(text: str) -> None:
    VALIDATOR.validate(tomllib.loads(f"name = 't'\n{text}"))


@pytest.mark.parametrize(
    "text",
    [
        "nme = 1\n",
        "[engin]\n",
        "[engine]\nblock_sise = 8\n",
        "[engine]\nblock_size = 0\n",
        "[engine]\nblock_size = '8'\n",
        "[engine]\nkv_dtype = 'bf61'\n",
        "[engine]\nkv_memory = '8 quarts'\n",
        "[workload]\nscale_tokens = 2\n",
        "[workload]\ninput_tokens = { knd = 1 }\n",
        "[axes]\nengine.block_size = []\n",
        "[axes]\nengine.block_size = 8\n",
        "[axes]\nengine.block_size = [300]\n",
        "[axes]\n'engine.block_size' = ['x']\n",
        "[axes]\nengine = [1]\n",
        "[axes]\nmeasure.repetitions = [1]\n",
        "[axes]\nworkload.arrival.rat = [1]\n",
        "[[zip]]\n",
        "[zip]\n",
        "[[exclude]]\nengine.blok_size = 1\n",
        "[[only]]\nengine.block_size = 'x'\n",
    ],
)
def test_wrong_suites_are_refused(text: str) -> None:
    assert not VALIDATOR.is_valid(tomllib.loads(f"name = 't'\n{text}"))


def test_a_suite_without_a_name_is_refused() -> None:
    assert not VALIDATOR.is_valid({"engine": {}})


def test_every_key_and_axis_carries_its_documentation() -> None:
    undocumented = [path for path, key in all_keys().items() if not key.doc]
    assert undocumented == []
    for path, key in all_keys().items():
        if key.kind:
            assert SCHEMA["$defs"][path]["description"] == key.doc
            assert path in SCHEMA["$defs"]["axes"]["properties"]


def test_nothing_in_it_says_null() -> None:
    """TOML has no null, so an editor must not offer it."""
    assert '"null"' not in json.dumps(SCHEMA)
