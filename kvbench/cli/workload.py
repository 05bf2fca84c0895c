"""`kvbench workload`: look at the requests of a trace or a suite."""

from __future__ import annotations

from typing import Any

import click

from kvbench.cli.hits import hits
from kvbench.cli.output import format_option
from kvbench.cli.source import source_options, workloads_of


@click.group()
def workload() -> None:
    """Look at the requests of a trace or a suite, and at the hits that they allow."""


@workload.command()
@source_options
@click.option(
    "--block-size",
    "block_sizes",
    type=click.IntRange(1, 1 << 20),
    multiple=True,
    help="Block size to count blocks and tail waste for; repeatable.",
)
@format_option
def describe(source: str, block_sizes: tuple[int, ...], form: str, **options: Any) -> None:
    """Distributions, arrivals, sharing and tail waste of a trace FILE or of the workloads of a SUITE."""
    from kvbench.workload.describe import DEFAULT_BLOCK_SIZES
    from kvbench.workload.describe import describe as described
    from kvbench.workload.render import FORMATS

    found = workloads_of(source, options)
    sizes = sorted(set(block_sizes)) or DEFAULT_BLOCK_SIZES
    click.echo(FORMATS[form]([described(one, sizes) for one in found]))


workload.add_command(hits)
