"""Text pictures: longer and higher means more, never wider than asked, and what is no number draws nothing."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvbench.report.sparks import ASCII, BLOCKS, Ink, bar, ink_for, over_time, sparkline
from kvbench.report.tables import render_run
from kvbench.store.run import Run, open_run
from kvbench.store.run_folder import RunFolder
from tests.store.samples import plan, sample, step_record

finite = st.floats(0, 1e12)
inks = st.sampled_from([BLOCKS, ASCII])
widths = st.integers(1, 40)


def length(text: str, ink: Ink) -> float:
    """Cells that a bar covers, parts of one included."""
    whole = text.count(ink.parts[-1])
    return whole + sum((ink.parts.index(char) + 1) / len(ink.parts) for char in text if char != ink.parts[-1])


@given(finite, finite, st.floats(1e-6, 1e12), widths, inks)
def test_a_larger_value_never_has_a_shorter_bar_and_none_is_wider_than_asked(
    a: float, b: float, top: float, width: int, ink: Ink
) -> None:
    first, second = (bar(value, top, width, ink) for value in sorted((a, b)))
    assert length(first, ink) <= length(second, ink)
    assert len(second) <= width
    assert bool(second) == (max(a, b) > 0)


@given(st.floats(1e-3, 1e9), widths)
def test_a_bar_is_within_half_a_step_of_its_share(top: float, width: int) -> None:
    for share in (0.1, 0.25, 0.5, 0.99, 1.0):
        step = 1 / len(BLOCKS.parts)
        drawn = length(bar(share * top, top, width), BLOCKS)
        assert abs(drawn - max(share * width, step)) <= step / 2 + 1e-9


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, -1.0, 0.0])
@pytest.mark.parametrize("ink", [BLOCKS, ASCII])
def test_what_is_no_positive_number_has_no_bar_and_no_top_has_none_either(value: float | None, ink: Ink) -> None:
    assert bar(value, 10.0, 8, ink) == ""
    assert bar(1.0, value if value is not None else math.nan, 8, ink) == ""


@given(st.lists(st.one_of(st.none(), st.floats()), max_size=30), st.floats(), inks)
def test_a_sparkline_has_one_character_a_value_and_a_space_for_what_is_no_number(
    values: list[float | None], top: float, ink: Ink
) -> None:
    text = sparkline(values, top, ink)
    assert len(text) == len(values)
    for value, char in zip(values, text, strict=True):
        known = value is not None and math.isfinite(value) and math.isfinite(top)
        assert (char in ink.levels) if known else char == " "


@given(finite, finite, st.floats(1e-6, 1e12), inks)
def test_a_larger_value_never_stands_lower(a: float, b: float, top: float, ink: Ink) -> None:
    low, high = sparkline(sorted((a, b)), top, ink)
    assert ink.levels.index(low) <= ink.levels.index(high)


@pytest.mark.parametrize("ink", [BLOCKS, ASCII])
def test_ends_of_the_scale_and_constants(ink: Ink) -> None:
    assert sparkline([0.0, 1.0], 1.0, ink) == ink.levels[0] + ink.levels[-1]
    assert len(set(sparkline([0.4] * 9, 1.0, ink))) == 1
    assert sparkline([0.0] * 3, 0.0, ink) == ink.levels[0] * 3
    assert sparkline([], 1.0, ink) == ""
    assert "*" not in ink.levels + ink.parts  # stands for the best of a column


def naive(start: list[float], took: list[float], values: list[float], width: int) -> list[float | None]:
    """Each step belongs to the part of time in which it begins."""
    begin, end = min(start), max(s + t for s, t in zip(start, took, strict=True))
    parts: list[list[tuple[float, float]]] = [[] for _ in range(width)]
    for s, t, v in zip(start, took, values, strict=True):
        parts[min(int((s - begin) / (end - begin) * width), width - 1)].append((t, v))
    return [sum(t * v for t, v in part) / sum(t for t, _ in part) if part else None for part in parts]


@given(st.lists(st.tuples(st.floats(0.01, 2), st.floats(0.01, 1), st.floats(0, 1)), min_size=1, max_size=40), widths)
def test_means_over_time_are_those_of_a_naive_loop(steps: list[tuple[float, float, float]], width: int) -> None:
    start = np.cumsum([gap for gap, _, _ in steps]).tolist()
    took, values = [t for _, t, _ in steps], [v for _, _, v in steps]
    expected = naive(start, took, values, width)
    found = over_time(start, took, values, width)
    assert len(found) == width
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or one == pytest.approx(other)


def test_no_steps_or_none_with_a_number_make_no_line() -> None:
    assert over_time([], [], [], 8) == []
    assert over_time([0.0], [1.0], [math.nan], 8) == []
    assert over_time([0.0, 1.0], [1.0, 1.0], [math.nan, 0.5], 2) == [pytest.approx(0.5), None]


@pytest.mark.parametrize(
    ("encoding", "ink"),
    [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), ("no such", ASCII), (None, ASCII)],
)
def test_blocks_are_drawn_only_where_the_encoding_has_them(encoding: str | None, ink: Ink) -> None:
    assert ink_for(encoding) is ink


def run_of(tmp_path: Path) -> Run:
    with RunFolder.create(tmp_path, plan(2, 2)) as folder:
        for case in range(2):
            for number in range(2):
                one = sample(case, number, ttft_p50_s=0.1 + case)
                one.steps = [step_record(n, kv_bytes_used=100 * n) for n in range(15)]
                folder.add(one)
        return open_run(folder.path)


def shown(run: Run, form: str = "table", *, width: int = 200, terminal: bool = True) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, force_terminal=terminal, no_color=True)
    render_run(run, form, console)
    return out.getvalue()


def test_a_terminal_shows_a_bar_and_the_pool_filling_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = shown(run_of(tmp_path))
    assert "of most" in text
    held = [100 * n / 1600 for n in range(15)]
    assert text.count(sparkline(over_time([0.1 * n for n in range(15)], [0.1] * 15, held, 14), 1.0, BLOCKS)) == 2


@pytest.mark.parametrize("form", ["md", "csv", "json"])
def test_files_and_pipes_have_no_pictures(tmp_path: Path, form: str) -> None:
    run = run_of(tmp_path)
    for text in (shown(run, form), shown(run, terminal=False)):
        assert not set(text) & set(BLOCKS.levels + BLOCKS.parts)
        assert "of most" not in text


def test_a_narrow_terminal_loses_the_pictures_before_a_main_metric(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    for width in range(30, 200, 5):
        text = shown(run, width=width)
        head = next(line for line in text.splitlines() if "status" in line)
        assert "of most" not in head or "ttft p50" in head, width
        assert "left out for width: of most" not in text


def test_damaged_steps_cost_the_picture_and_not_the_table(tmp_path: Path) -> None:
    path = run_of(tmp_path).path
    with RunFolder(path) as folder:
        folder.seal()
    (path / "steps.parquet").write_bytes(b"PAR1")
    text = shown(open_run(path))
    assert "output tokens/s" in text
    assert "no picture of KV held" in text


def test_a_run_of_kernels_has_bars_and_no_steps(tmp_path: Path) -> None:
    facts = plan(2, 1)
    for case in facts["cases"]:
        case["kind"] = "kernel"
    with RunFolder.create(tmp_path, facts) as folder:
        for case in range(2):
            one = sample(case, 0, kind="kernel", decode_s=0.1 + case)
            one.requests = one.steps = None
            folder.add(one)
        run = open_run(folder.path)
    assert run.first_steps(["t_s"]) == {}
    assert "of most" in shown(run)
