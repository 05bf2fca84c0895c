"""`kvbench export`: a run for other programs: its metrics for services that draw them, a sample for the Perfetto UI."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import CASE_NAMES

FORMS = ("github-action-smaller", "github-action-bigger", "bencher")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "form", type=click.Choice(FORMS), help="Metrics in this service's form, on stdout.")
@click.option("--metric", "metrics", multiple=True, help="With --to: this metric, not the usual ones; repeatable.")
@click.option(
    "--perfetto",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A sample's timeline for the Perfetto UI; compressed when FILE ends in .gz.",
)
@click.option("--case", metavar="CASE", help=f"With --perfetto: the case, {CASE_NAMES}.")
@click.option("--sample", type=click.IntRange(min=0), help="With --perfetto: repetition, from 0; default the first ok.")
@click.option("--whole", is_flag=True, help="With --perfetto: every step and request, however many there are.")
def export(
    run: Path,
    form: str | None,
    metrics: tuple[str, ...],
    perfetto: Path | None,
    case: str | None,
    sample: int | None,
    whole: bool,
) -> None:
    """Give RUN to other programs: either --to or --perfetto.

    --to prints metrics as JSON, medians over the samples that ended ok. github-action-benchmark takes one direction a
    file: github-action-smaller has the times (customSmallerIsBetter), github-action-bigger the rates
    (customBiggerIsBetter). bencher is the Bencher Metric Format.

    --perfetto writes one sample's requests, steps, blocks and tiers over time; open the file at ui.perfetto.dev.

    \b
    Examples:
      kvbench export results/<run> --to bencher
      kvbench export results/<run> --perfetto timeline.json.gz --case block_size=16
    """
    if (form is None) == (perfetto is None):
        raise click.UsageError("give either --to SERVICE or --perfetto FILE")
    if perfetto is None and (case is not None or sample is not None or whole):
        raise click.UsageError("--case, --sample and --whole choose what --perfetto draws; give --perfetto FILE")
    if form is None and metrics:
        raise click.UsageError("--metric chooses what --to prints; a timeline has them all")
    if perfetto is not None:
        _timeline(run, perfetto, case, sample, whole)
    elif form is not None:
        _metrics(run, form, metrics)


def _metrics(run: Path, form: str, metrics: tuple[str, ...]) -> None:
    from kvbench.report.ci.export import EXPORTS
    from kvbench.store.run import open_run
    from kvbench.tabulate import as_json

    click.echo(as_json(EXPORTS[form](open_run(run), metrics)))


def _timeline(run: Path, path: Path, case: str | None, sample: int | None, whole: bool) -> None:
    from kvbench.console import say
    from kvbench.report.timeline.pick import pick
    from kvbench.report.timeline.write import write_timeline
    from kvbench.store.run import open_run
    from kvbench.units import format_bytes

    opened = open_run(run)
    for problem in opened.problems:
        say(f"warning: left out: {problem}", style="yellow")
    picked = pick(opened, case, sample)
    written = write_timeline(opened, picked, path, is_whole=whole)
    for note in written.notes:
        say(f"note: {note}", style="yellow")
    clock = "virtual clock: predicted times" if picked.is_virtual else "wall clock"
    say(f"{picked.label}, sample {picked.row['sample']} ({clock}): {written.steps} steps, {written.requests} requests")
    say(
        f"timeline: {path} ({format_bytes(written.bytes)}, {written.events} events); open it at https://ui.perfetto.dev"
    )
