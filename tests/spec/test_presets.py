"""Presets: data that the settings accept, explicit keys that win, and ids that follow what is resolved."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from kvbench.cli.main import cli
from kvbench.spec.cases import Case, expand
from kvbench.spec.effective import filled_in
from kvbench.spec.engine import EngineSettings
from kvbench.spec.keys import all_keys
from kvbench.spec.load import from_effective
from kvbench.spec.presets import PRESETS
from kvbench.spec.problems import SuiteError


def cases(**content: Any) -> list[Case]:
    return expand(from_effective({"name": "x", **content}).suite)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_says_where_it_is_from_and_what_it_lacks(name: str) -> None:
    preset = PRESETS[name]
    settings = EngineSettings(preset=name, swap_memory=1 << 20)  # type: ignore[arg-type]
    assert {key: getattr(settings, key) for key in preset.settings} == preset.settings
    assert preset.source
    assert preset.cannot
    sizes = {"kv_memory", "max_sequences", "max_batch_tokens", "max_context", "host_memory", "swap_memory"}
    assert not sizes & set(preset.settings), "a preset names policies, not sizes"


def test_the_setting_knows_every_preset() -> None:
    assert all_keys()["engine.preset"].schema["enum"] == ["none", *PRESETS]


def test_explicit_keys_win_whether_fixed_or_axes() -> None:
    fixed, plain = cases(engine={"preset": "vllm", "watermark": 0.3}), cases(engine={"preset": "vllm"})
    assert fixed[0].engine is not None
    assert plain[0].engine is not None
    assert (fixed[0].engine.watermark, plain[0].engine.watermark) == (0.3, 0.01)
    assert fixed[0].engine.prefix_cache == "hash"
    varied = cases(engine={"preset": "vllm"}, axes={"engine.watermark": [0.1, 0.2]})
    assert [case.engine and case.engine.watermark for case in varied] == [0.1, 0.2]
    presets = cases(engine={"watermark": 0.5}, axes={"engine.preset": ["vllm", "none"]})
    assert [case.engine and (case.engine.watermark, case.engine.admission) for case in presets] == [
        (0.5, "watermark"),
        (0.5, "max-utilization"),
    ]


def test_a_default_that_is_written_down_wins_as_well() -> None:
    (case,) = cases(engine={"preset": "vllm", "prefix_cache": "none"})
    assert case.engine is not None
    assert case.engine.prefix_cache == "none"


def test_a_preset_and_the_same_settings_spelled_out_are_one_case() -> None:
    """The id is of what runs: the name alone decides nothing, so a resume knows the sample, and twice is refused."""
    (by_name,), (spelled_out,) = cases(engine={"preset": "vllm"}), cases(engine=dict(PRESETS["vllm"].settings))
    assert by_name.case_id == spelled_out.case_id
    assert by_name.engine is not None
    assert by_name.engine.preset == "vllm"
    with pytest.raises(SuiteError, match="are one and the same"):
        cases(engine=dict(PRESETS["vllm"].settings), axes={"engine.preset": ["vllm", "none"]})


def test_different_presets_are_different_cases() -> None:
    found = cases(engine={"swap_memory": "1MiB"}, axes={"engine.preset": ["none", *PRESETS]})
    assert len({case.case_id for case in found}) == 1 + len(PRESETS)


def test_rules_see_what_a_preset_sets() -> None:
    found = cases(axes={"engine.preset": ["vllm", "orca", "contiguous"]}, exclude=[{"engine.allocator": "contiguous"}])
    assert [case.axes for case in found] == [{"preset": "vllm"}]


def test_a_key_that_contradicts_the_preset_is_refused_with_the_reason() -> None:
    with pytest.raises(SuiteError, match="cannot share blocks"):
        cases(engine={"preset": "orca", "prefix_cache": "hash"})


def test_a_preset_that_swaps_leaves_the_size_of_the_swap_area_to_the_suite() -> None:
    with pytest.raises(SuiteError, match="needs swap_memory"):
        cases(engine={"preset": "hf-continuous"})
    recomputes = cases(engine={"preset": "hf-continuous", "preemption": "recompute"})
    assert [case.engine and case.engine.watermark for case in recomputes] == [0.2]


@pytest.mark.parametrize(
    "content",
    [
        {"engine": {"preset": "vllm", "block_size": 32}},
        {"engine": {"swap_memory": "1MiB"}, "axes": {"engine.preset": [*PRESETS]}},
    ],
)
def test_the_filled_in_suite_keeps_the_preset_alive(content: dict[str, Any]) -> None:
    """What the suite leaves to the preset is not written down as a default."""
    loaded = from_effective({"name": "x", **content})
    again = from_effective(filled_in(loaded.suite))
    assert [case.case_id for case in expand(again.suite)] == [case.case_id for case in expand(loaded.suite)]


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_presets_are_listed_with_source_and_limits(form: str) -> None:
    result = CliRunner().invoke(cli, ["suites", "presets", "--format", form])
    assert result.exit_code == 0
    for name in PRESETS:
        assert name in result.stdout
    if form == "json":
        assert {row["preset"]: row["settings"] for row in json.loads(result.stdout)} == {
            name: preset.settings for name, preset in PRESETS.items()
        }
