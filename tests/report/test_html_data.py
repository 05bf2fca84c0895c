"""What the figures of a report are made of; needs no drawing library."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from kvbench.analysis.effects import effect
from kvbench.report.html import axis_effects, block_sizes, distributions, front, heat, hit_rates, kernels, over_time
from kvbench.report.html.contents import Contents
from kvbench.report.html.figure import Figure, HeatMap, LeftOut, Lines, Scatter
from kvbench.report.html.headline import answers, badges
from kvbench.report.html.over_time import BUCKETS, bounds
from kvbench.report.html.theme import DARK, LIGHT, contrast, shade
from tests.report.html_runs import axes_run
from tests.report.test_tables import shown
from tests.store.samples import run_folder

NOISE = (1.0, 1.02, 0.97)


def engine(axes: dict[str, Any], number: int) -> dict[str, Any]:
    """Throughput that block size multiplies by known factors, with the same noise for all cases of a round."""
    factor = {8: 1.0, 16: 1.5, 32: 1.2}[axes.get("block_size", 8)] * {"fp32": 1.0, "int8": 2.0}[
        axes.get("kv_dtype", "fp32")
    ]
    own = 1 + 0.001 * (number - 1) * (axes.get("block_size", 8) == 16)
    return {
        "output_tokens_per_s": 100 * factor * NOISE[number % 3] * own,
        "internal_share_mean": 0.1,
        "ttft_p50_s": 1 / factor,
    }


def figure(found: Figure | LeftOut) -> Figure:
    assert isinstance(found, Figure), found
    return found


def why(found: Figure | LeftOut) -> str:
    assert isinstance(found, LeftOut), found.name
    return found.why


def test_a_paired_effect_is_scipys_interval_of_the_log_ratios() -> None:
    left = {0: 100.0, 1: 110.0, 2: 95.0, 3: 102.0}
    right = {0: 121.0, 1: 130.0, 2: 116.0, 7: 1.0}
    found = effect([(left, right)])
    assert found is not None
    logs = np.log([right[n] / left[n] for n in (0, 1, 2)])
    low, high = stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))
    assert (found.change, found.low, found.high) == pytest.approx(tuple(np.expm1((logs.mean(), low, high))))
    assert (found.samples, found.settings) == (3, 1)


def test_an_effect_over_settings_says_how_far_they_differ_and_noise_of_a_round_cancels() -> None:
    """Both pairs change by their own factor in every round; what a round does to all of its cases is no noise."""
    pairs = [
        ({n: 10 * r for n, r in enumerate(NOISE)}, {n: 10 * f * r for n, r in enumerate(NOISE)}) for f in (1.1, 1.6)
    ]
    found = effect(pairs)
    assert found is not None
    assert found.change == pytest.approx(math.sqrt(1.1 * 1.6) - 1)
    assert found.low == pytest.approx(found.high) == pytest.approx(found.change)
    assert (found.smallest, found.largest) == (pytest.approx(0.1), pytest.approx(0.6))
    assert found.is_clear


def test_an_effect_of_one_sample_has_no_interval_and_of_none_there_is_no_effect() -> None:
    found = effect([({0: 2.0}, {0: 3.0})])
    assert found is not None
    assert found.change == pytest.approx(0.5)
    assert math.isnan(found.low)
    assert not found.is_clear
    assert effect([({0: 2.0}, {1: 3.0}), ({0: 0.0}, {0: 1.0})]) is None


def test_each_axis_is_paired_over_the_other(tmp_path: Path) -> None:
    run = axes_run(tmp_path, {"block_size": [8, 16, 32], "kv_dtype": ["fp32", "int8"]}, engine, samples=3)
    found = figure(axis_effects.figure(Contents(run), "engine"))
    rows = {row[0]: row for row in found.tables[0].rows}
    assert rows["kv_dtype int8"][2] == "+100.0 %"
    assert rows["block_size 16"][1:3] == ["8", "+50.0 %"]
    assert rows["block_size 32"][2:4] == ["+20.0 %", "+20.0 % to +20.0 %"]
    assert "95 % interval" in found.caption


def test_axes_of_a_zip_group_are_one_factor(tmp_path: Path) -> None:
    axes = {"block_size": [8, 16], "kv_dtype": ["fp32", "int8"]}
    run = axes_run(tmp_path, axes, engine, zipped=("block_size", "kv_dtype"), samples=3)
    contents = Contents(run)
    assert contents.engine is not None
    assert [(one.names, one.levels) for one in contents.engine.factors] == [(("block_size",), ("8", "16"))]
    assert figure(axis_effects.figure(contents, "engine")).tables[0].rows[0][2] == "+200.0 %"
    assert "fewer than two axes" in why(heat.figure(contents, "engine"))


def test_the_front_is_the_one_of_the_tables(tmp_path: Path) -> None:
    def row(axes: dict[str, Any], _: int) -> dict[str, Any]:
        rate, ttft = {8: (10.0, 1.0), 16: (20.0, 2.0), 32: (9.0, 1.5)}[axes["block_size"]]
        return {"output_tokens_per_s": rate, "ttft_p50_s": ttft}

    run = axes_run(tmp_path, {"block_size": [8, 16, 32]}, row)
    found = figure(front.figure(Contents(run)))
    plot = found.plots[0]
    assert isinstance(plot, Scatter)
    assert [(d.number, d.is_front) for d in plot.dots] == [("1", True), ("2", True), ("", False)]
    assert [row[0] for row in found.tables[0].rows] == ["◆ 1", "◆ 2", ""]
    assert plot.front == [(1.0, 10.0), (2.0, 20.0)]


def test_the_heat_map_has_the_median_of_every_combination(tmp_path: Path) -> None:
    axes = {"block_size": [8, 16, 32], "kv_dtype": ["fp32", "int8"]}
    found = figure(heat.figure(Contents(axes_run(tmp_path, axes, engine)), "engine"))
    plot = found.plots[0]
    assert isinstance(plot, HeatMap)
    assert (plot.rows, plot.columns) == (("8", "16", "32"), ("fp32", "int8"))
    assert {(c.y, c.x): c.text for c in plot.cells}["16", "int8"] == "300"
    assert [list(row) for row in found.tables[0].rows] == [
        ["8", "100", "200"],
        ["16", "150", "300"],
        ["32", "120", "240"],
    ]


def test_hit_rates_are_lines_over_capacity_by_what_does_not_decide_it(tmp_path: Path) -> None:
    def row(axes: dict[str, Any], _: int) -> dict[str, Any]:
        capacity = axes["kv_memory"] * 2
        rate = {"lru": 0.2, "lfu": 0.3}[axes["eviction"]] * axes["kv_memory"] / 1024
        return {"output_tokens_per_s": 1.0, "kv_capacity_tokens": capacity, "prefix_hit_rate": rate}

    run = axes_run(tmp_path, {"kv_memory": [1024, 2048], "eviction": ["lru", "lfu"]}, row)
    plot = figure(hit_rates.figure(Contents(run))).plots[0]
    assert isinstance(plot, Lines)
    points = {line.name: [(mark.x, mark.y.value) for mark in line.marks] for line in plot.lines}
    assert points == {
        "eviction lru": [(2048, 0.2), (4096, 0.4)],
        "eviction lfu": [(2048, 0.3), (4096, 0.6)],
    }


def test_what_a_run_has_no_data_for_is_left_out_with_the_reason(tmp_path: Path) -> None:
    contents = Contents(axes_run(tmp_path, {"block_size": [8]}, engine))
    assert "fewer than two cases" in why(front.figure(contents))
    assert "nothing was varied" in why(axis_effects.figure(contents, "engine"))
    assert "fewer than two block sizes" in why(block_sizes.figure(contents))
    assert "no case looked a prefix up" in why(hit_rates.figure(contents))
    assert "no kernel cases" in why(kernels.figure(contents))
    assert answers(contents) == ["output tokens/s: 100."]


def test_a_reason_is_true_of_a_run_in_which_nothing_ended_ok(tmp_path: Path) -> None:
    contents = Contents(axes_run(tmp_path, {"block_size": [8, 16]}, lambda axes, number: {"status": "crash"}))
    assert "fewer than two block sizes among the engine cases that ended ok" in why(block_sizes.figure(contents))
    assert "fewer than two cases" in why(front.figure(contents))


def test_distributions_have_the_values_of_the_requests_and_no_percentile_that_they_do_not_support(
    tmp_path: Path,
) -> None:
    run = axes_run(tmp_path, {"block_size": [8]}, engine, samples=2)
    found = figure(distributions.figure(Contents(run)))
    ttft, gaps = found.tables[0].rows
    assert ttft[2:] == ["12", "–", "200 ms", "350 ms", "500 ms", "–", "–", "–", "600 ms"]
    assert gaps[2] == "36"
    plot = found.plots[0]
    assert isinstance(plot, Lines)
    assert [(m.x, round(m.y.value, 4)) for m in plot.lines[0].marks][::2] == [
        (pytest.approx(0.1 * n), round((2 * n - 1) / 12, 4)) for n in range(1, 7)
    ]  # fmt: skip


def test_a_requests_table_of_few_samples_is_that_of_all_filtered(tmp_path: Path) -> None:
    """Sealed, unsealed and half of each."""
    sealed = axes_run(tmp_path / "a", {"block_size": [8, 16]}, engine, samples=2)
    open_ = Contents(axes_run(tmp_path / "b", {"block_size": [8, 16]}, engine, samples=2)).run
    for run in (sealed, open_):
        keys = [(run.plan["cases"][1]["case_id"], 1)]
        found = run.of_samples("requests", keys, ("ttft_s",)).to_pydict()
        whole = run.requests[(run.requests.case_id == keys[0][0]) & (run.requests["sample"] == 1)]
        assert found["ttft_s"] == list(whole.ttft_s)


def test_no_peak_is_lost_when_steps_are_put_together() -> None:
    time = np.cumsum(np.random.default_rng(1).exponential(size=5000))
    ranges = bounds(time, float(time[-1]) + 1)
    assert len(ranges) <= BUCKETS
    assert [at for low, high in ranges for at in range(low, high)] == list(range(5000))
    assert bounds(time[:3], 99.0) == [(0, 1), (1, 2), (2, 3)]


def test_occupancy_keeps_lowest_and_highest_of_the_first_sample(tmp_path: Path) -> None:
    found = figure(over_time.figure(Contents(axes_run(tmp_path, {"block_size": [8]}, engine))))
    assert len(found.plots) == 2
    assert [row[2] for row in found.tables[0].rows] == [f"{100 * n / 1600:.1%}" for n in range(8)]
    assert [row[5] for row in found.tables[0].rows] == [str(n + 1) for n in range(8)]


def test_kernel_cases_have_their_time_against_what_was_varied(tmp_path: Path) -> None:
    def row(axes: dict[str, Any], number: int) -> dict[str, Any]:
        return {"decode_s": axes["block_size"] * 1e-6 * NOISE[number], "bytes_per_s": 1e9 / axes["block_size"]}

    contents = Contents(axes_run(tmp_path, {"block_size": [8, 16]}, row, kind="kernel", samples=3))
    plot = figure(kernels.figure(contents)).plots[0]
    assert isinstance(plot, Lines)
    assert [(m.x, m.y.value, m.y.low) for m in plot.lines[0].marks] == [
        ("8", pytest.approx(8e-6), pytest.approx(7.76e-6)), ("16", pytest.approx(16e-6), pytest.approx(15.52e-6)),
    ]  # fmt: skip
    assert answers(contents)[0].startswith("Shortest decode: block_size=8 with 8.00 µs, ahead of every other case")


def test_the_answer_says_what_the_samples_do_not_tell_apart(tmp_path: Path) -> None:
    noisy = {8: (100.0, 104.0, 98.0), 16: (101.0, 99.0, 103.0), 32: (50.0, 52.0, 51.0)}
    run = axes_run(tmp_path / "n", {"block_size": list(noisy)},
                   lambda axes, n: {"output_tokens_per_s": noisy[axes["block_size"]][n]}, samples=3)  # fmt: skip
    told = answers(Contents(run))[0]
    assert "block_size=16 with 101; these samples do not tell it from block_size=8; last block_size=32" in told
    one = Contents(axes_run(tmp_path / "o", {"block_size": [8, 16]}, engine))
    assert answers(one)[-1] == "One sample of each case: small differences may be chance."


def test_labels_say_predicted_cpu_unfinished_and_failed(tmp_path: Path) -> None:
    run = axes_run(tmp_path, {"block_size": [8, 16]}, engine)
    assert [badge.tone for badge in badges(Contents(run))] == ["cpu"]
    run.plan["clock"], run.plan["repetitions"] = "virtual", 2
    assert [badge.tone for badge in badges(Contents(run))] == ["virtual", "trouble"]


def test_words_are_those_of_the_terminals_tables(tmp_path: Path) -> None:
    run = axes_run(tmp_path, {"block_size": [8, 16, 32]}, engine)
    terminal = shown(run, "md")
    found = figure(front.figure(Contents(run)))
    assert all(f" {cell} " in terminal for row in found.tables[0].rows for cell in row[2:])


def test_colours_are_readable_on_light_and_dark() -> None:
    """WCAG 2: text 4.5, marks 3."""
    for colours in (LIGHT, DARK):
        backs = {
            "fg": ("bg", "card", "note-bg"),
            "muted": ("bg",),
            "link": ("bg",),
            "warn": ("warn-bg",),
            "virtual": ("virtual-bg",),
        }
        assert all(contrast(colours[text], colours[back]) >= 4.5 for text, behind in backs.items() for back in behind)
        assert all(contrast(colours[f"s{n}"], colours["bg"]) >= 3 for n in range(1, 7))
    for share in np.linspace(0, 1, 101):
        back, text = shade(float(share))
        assert contrast(back, text) >= 4.5


def test_a_plain_run_of_the_store_has_contents(tmp_path: Path) -> None:
    from kvbench.store.run import open_run

    for is_sealed in (False, True):
        contents = Contents(open_run(run_folder(tmp_path / str(is_sealed), is_sealed=is_sealed)))
        assert figure(distributions.figure(contents)).tables[0].rows
