"""`kvbench export`: a run's metrics for services that draw them over time."""

from __future__ import annotations

from pathlib import Path

import click

FORMS = ("github-action-smaller", "github-action-bigger", "bencher")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "form", type=click.Choice(FORMS), required=True, help="Which service's form.")
@click.option("--metric", "metrics", multiple=True, help="This metric instead of the usual ones; repeatable.")
def export(run: Path, form: str, metrics: tuple[str, ...]) -> None:
    """Print RUN's metrics as JSON: medians over the samples that ended ok.

    github-action-benchmark takes one direction a file: github-action-smaller has the times (customSmallerIsBetter),
    github-action-bigger the rates (customBiggerIsBetter). bencher is the Bencher Metric Format.
    """
    from kvbench.report.ci.export import EXPORTS
    from kvbench.store.run import open_run
    from kvbench.tabulate import as_json

    click.echo(as_json(EXPORTS[form](open_run(run), metrics)))
