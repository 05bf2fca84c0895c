"""`kvbench report`: the tables of a run."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import format_option


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@format_option
@click.option("--metrics", help="Comma-separated metrics instead of the usual ones; docs/results.md lists them.")
@click.option("--all", "show_all", is_flag=True, help="Every metric that some case has, whatever the width.")
def report(run: Path, form: str, metrics: str | None, show_all: bool) -> None:
    """Tables of the run in folder RUN, finished or not, and whether the suite's claim held there.

    On a wide terminal a bar stands beside the main metric and KV memory held over time beside the case; pipes, files
    and the other formats have neither. No colour carries meaning.
    """
    from kvbench.console import say
    from kvbench.report.tables import render_run
    from kvbench.store.run import open_run

    opened = open_run(run)
    for problem in opened.problems:
        say(f"warning: left out: {problem}", style="yellow")
    names = [name.strip() for name in (metrics or "").split(",") if name.strip()]
    render_run(opened, form, metrics=names, show_all=show_all)
