"""`kvbench fit`: a cost model from the steps of measured runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.cli.output import emit, format_option
from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.store.run import Run

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN…")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where the fitted model goes; else the user's data folder."
)
@click.option("--name", help="What it is called in tables; else the first run's id.")
@click.option(
    "--check",
    "checks",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Predict the cases of this run, which was not fitted, beside what was measured; repeatable.",
)
@format_option
def fit(runs: tuple[Path, ...], out: Path | None, name: str | None, checks: tuple[Path, ...], form: str) -> None:
    """Fit step time on the steps of measured runs of one device and model, and write it to a file.

    The file drives the virtual clock (-a cost_model=FILE) and predictions. Its errors are those of each case predicted
    from all the others; the intervals of predictions are made of them.

    \b
    Examples:
      kvbench fit results/<run> --name my-cpu
      kvbench fit results/<run> results/<other> --check results/<third>
      kvbench sweep suite.toml --clock virtual -a cost_model=FILE
    """
    from kvbench.cli import fit_tables
    from kvbench.console import say
    from kvbench.costmodel.fitted_file import FORMAT, text_of
    from kvbench.store.run import open_run
    from kvbench.store.targets import check_target, json_target, writing
    from kvbench.sweep.fitting import check, default_path, fit_and_check

    target = json_target(FORMAT, makes_folder=True)
    if out is not None:
        check_target(out, target)
    opened = _distinct([open_run(path) for path in runs])
    held_out = [open_run(path) for path in checks]
    chosen = _checked_name(name if name is not None else opened[0].run_id)
    path = out or default_path(chosen)
    check_target(path, target)
    file, found = fit_and_check(opened, chosen)
    checked = [case for run in held_out for case in check(file, run)]
    with writing(path, target) as whole:
        whole.write(text_of(file).encode())
    for note in found.notes:
        say(note, style="yellow")
    tables = [*fit_tables.terms(file, found), fit_tables.errors(file), *fit_tables.checks(checked)]
    records = fit_tables.records(file)
    document = fit_tables.document(file, found, checked, path)
    emit(form, tables=tables, columns=fit_tables.RECORD, records=records, document=document)
    say(f"fitted model: {path}  ({file.label})")


def _distinct(runs: list[Run]) -> list[Run]:
    """The runs, none of them given twice: its samples would count twice."""
    ids = [run.run_id for run in runs]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is given twice", hint="name every run once")
    return runs


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a fitted model",
            hint="use up to 100 letters, digits, '.', '_' or '-', with a letter or digit first",
        )
    return name
