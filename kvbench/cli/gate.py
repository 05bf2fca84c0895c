"""`kvbench gate`: has a candidate become slower than its baseline?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.gate_judge import judge
from kvbench.cli.gate_run import run as gate_run
from kvbench.cli.gate_trend import trend
from kvbench.cli.output import Table, emit, format_option
from kvbench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbench.analysis.gate.replay import Score
    from kvbench.analysis.gate.series import Night, Recording


@click.group()
def gate() -> None:
    """Judge a candidate against a baseline, and the rule on recorded nights."""


gate.add_command(gate_run)
gate.add_command(judge)
gate.add_command(trend)


@gate.command()
@click.argument("data", nargs=-1, type=click.Path())
@click.option(
    "--design",
    "designs",
    multiple=True,
    type=click.Choice(["pairs", "halves", "neighbours"]),
    help="May be repeated.  [pairs, or halves where the two sides are different code]",
)
@click.option("--unit", "units", multiple=True, help="Units of Go text to judge; may be repeated.  [ns/op]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Deals runs to halves.")
@format_option
def replay(data: tuple[str, ...], designs: tuple[str, ...], units: tuple[str, ...], seed: int, form: str) -> None:
    """Judge recorded nights of unchanged code, by our rule and by others: how often is it called slower, and how often
    is an injected slowdown found?

    DATA are files or folders: Go benchmark text (baseline and experiment of a night by the date in the name), or the
    CSV or JSON that docs/measurement.md describes; a small recording of our own when left out.

    pairs: both sides as recorded; they must be the same code. halves: each side's runs against one another, two runs in
    a row a block. neighbours: the baseline of a night against that of the next.

    Our rule works without a self-test here, hence without a noise floor. Slowdowns are injected into one case at a
    time; "detectable" are the cells whose minimum detectable effect by our rule is not above the slowdown.
    """
    from kvbench.analysis.gate.recordings import read_recordings, shipped
    from kvbench.analysis.gate.replay import replay as play

    recordings = read_recordings(data or (shipped(),), units)
    scores: list[Score] = []
    dropped = 0
    for nights in _nights(recordings, designs, seed):
        dropped += sum(night.dropped for night in nights)
        scores += play(nights)
    if not scores:
        raise DataError(
            "nothing to judge: no two sides of five blocks or more",
            hint="try another --design or --unit, or give more data",
        )
    records = [_record(score) for score in scores]
    emit(form, tables=_tables(scores, dropped), columns=list(records[0]), records=records)


def _nights(recordings: Sequence[Recording], designs: Sequence[str], seed: int) -> list[list[Night]]:
    """The nights of each design that the recordings have, those without a case left out."""
    from kvbench.analysis.gate.series import halves, neighbours, pairs

    found: dict[str, list[Night]] = {}
    for recording in recordings:
        for design in designs or (("pairs",) if recording.has_pairs else ("halves",)):
            if design == "pairs":
                made = pairs(recording) if recording.has_pairs else []
            else:
                made = halves(recording, seed) if design == "halves" else neighbours(recording)
            found.setdefault(design, []).extend(night for night in made if night.cases)
    return [nights for nights in found.values() if nights]


def _record(score: Score) -> dict[str, Any]:
    record: dict[str, Any] = {
        "design": score.design,
        "rule": score.rule,
        "nights": score.nights,
        "cells": score.cells,
        "false_cells": score.false_cells,
        "false_cell_rate": score.false_cells / score.cells,
        "false_nights": score.false_nights,
        "false_night_rate": score.false_nights / score.nights,
        "pass_rate": None if score.passed is None else score.passed / score.cells,
    }
    for effect in score.power:
        percent = f"{effect:.0%}".replace("%", "pct")
        record[f"power_{percent}"] = score.power[effect]
        record[f"detectable_{percent}"] = score.detectable[effect]
        record[f"power_detectable_{percent}"] = score.power_detectable[effect]
    return record


def _tables(scores: Sequence[Score], dropped: int) -> list[Table]:
    effects = [f"+{effect:.0%}" for effect in scores[0].power]
    alarms = [
        [
            s.design,
            s.rule,
            str(s.nights),
            str(s.cells),
            _share(s.false_cells / s.cells),
            f"{s.false_nights} of {s.nights}",
            _share(None if s.passed is None else s.passed / s.cells),
        ]
        for s in scores
    ]
    power = [[s.design, s.rule, *map(_share, s.power.values())] for s in scores]
    sizes = [
        [scores[at].design, "(cells)", *map(str, scores[at].detectable.values())]
        for at in range(len(scores))
        if at == 0 or scores[at].design != scores[at - 1].design
    ]
    within = [[s.design, s.rule, *map(_share, s.power_detectable.values())] for s in scores]
    numbers = frozenset(range(2, 2 + len(effects)))
    columns = ("design", "rule", *effects)
    footer = f"{dropped} series dropped: fewer than five sound blocks on both sides." if dropped else ""
    return [
        Table(
            "Unchanged code",
            ("design", "rule", "nights", "cells", "called slower", "nights with one", "PASS"),
            alarms,
            frozenset(range(2, 7)),
            footer,
        ),
        Table("Injected slowdowns that are found, of all cells", columns, power, numbers),
        Table("The same, of the cells that could show it", columns, [*sizes, *within], numbers),
    ]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
