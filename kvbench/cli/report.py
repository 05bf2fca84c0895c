"""`kvbench report`: the tables of a run, or a page with its charts."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import format_option


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@format_option
@click.option("--metrics", help="Comma-separated metrics instead of the usual ones; docs/results.md lists them.")
@click.option("--all", "show_all", is_flag=True, help="Every metric that some case has, whatever the width.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one offline HTML page with charts instead of tables.",
)
@click.option("--static", "is_static", is_flag=True, help="With --html: charts as SVG, without JavaScript; smaller.")
@click.pass_context
def report(
    context: click.Context,
    run: Path,
    form: str,
    metrics: str | None,
    show_all: bool,
    page: Path | None,
    is_static: bool,
) -> None:
    """Tables of the run in folder RUN, finished or not, and whether the suite's claim held there; with --html a page
    with charts.

    On a wide terminal a bar stands beside the main metric and KV memory held over time beside the case; pipes, files
    and the other formats have neither. No colour carries meaning.

    \b
    Examples:
      kvbench report results/<run> --format md
      kvbench report results/<run> --html report.html
    """
    from kvbench.console import say
    from kvbench.report.tables import render_run
    from kvbench.store.run import open_run

    _check_options(context, page, is_static)
    opened = open_run(run)
    for problem in opened.problems:
        say(f"warning: left out: {problem}", style="yellow")
    names = [name.strip() for name in (metrics or "").split(",") if name.strip()]
    if page is None:
        render_run(opened, form, metrics=names, show_all=show_all)
        return
    from kvbench.report.html.page import write_html
    from kvbench.units import format_bytes

    size = write_html(opened, page, is_static=is_static, metrics=names, show_all=show_all)
    say(f"report: {page} ({format_bytes(size)})")


def _check_options(context: click.Context, page: Path | None, is_static: bool) -> None:
    if page is None and is_static:
        raise click.UsageError("--static is a kind of --html; add --html FILE", context)
    is_asked = context.get_parameter_source("form") is not click.core.ParameterSource.DEFAULT
    if page is not None and is_asked:
        raise click.UsageError("--html writes a page and --format tables; ask for one of them", context)
