"""`kvbench workload hits`: what hit rate a prefix cache of which size would have."""

from __future__ import annotations

from dataclasses import asdict, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import Table, emit, format_option
from kvbench.cli.source import source_options, workloads_of
from kvbench.units import format_count

if TYPE_CHECKING:
    from kvbench.analysis.hits import HitRate
    from kvbench.workload.types import Workload

DEFAULT_BLOCK_SIZE = 16
_POLICIES = ("lru", "fifo", "lfu", "lrc", "lrc-age", "priority", "arc", "min")
_FOOTER = (
    "Requests one at a time, in order; shares of the prompt tokens that are looked up. min: Belady's optimum, which "
    "knows the future. bound: nothing is ever evicted. arc counts contents, without further copies of them."
)


@click.command()
@source_options
@click.option(
    "--block-size",
    "block_sizes",
    type=click.IntRange(1, 1 << 20),
    multiple=True,
    help="Tokens per block; repeatable.  [the block by which a trace records sharing, else 16]",
)
@click.option(
    "--capacity",
    "capacities",
    type=click.IntRange(1, 1 << 40),
    multiple=True,
    help="Size of the cache in blocks; repeatable.  [a ladder up to all distinct blocks]",
)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(_POLICIES),
    multiple=True,
    help="Eviction policy; min is Belady's optimum; repeatable.  [all]",
)
@click.option("--lrc-alpha", type=click.FloatRange(0, 1e9), default=1.0, show_default=True, help="As engine.lrc_alpha.")
@click.option("--lrc-beta", type=click.FloatRange(0, 1e9), default=1.0, show_default=True, help="As engine.lrc_beta.")
@format_option
def hits(
    source: str,
    block_sizes: tuple[int, ...],
    capacities: tuple[int, ...],
    policies: tuple[str, ...],
    lrc_alpha: float,
    lrc_beta: float,
    form: str,
    **options: Any,
) -> None:
    """Prefix-cache hit rate against capacity, by eviction policy, for a trace FILE or the workloads of a SUITE.

    A simulation without an engine. Requests are served one at a time, in order; with many at once, what they hold
    leaves less room for what is cached.
    """
    from kvbench.analysis.hits import HitRate, hit_rates

    tables, records = [], []
    for workload in workloads_of(source, options):
        for size in dict.fromkeys(block_sizes or (_own_block_size(workload),)):
            rates = hit_rates(
                workload,
                size,
                tuple(dict.fromkeys(policies)) or _POLICIES,
                sorted(set(capacities)) or None,
                lrc_alpha=lrc_alpha,
                lrc_beta=lrc_beta,
            )
            tables.append(_table(workload, size, rates))
            name = {"workload": workload.report.source, "workload_digest": workload.digest}
            records += [{**name, "sharing": workload.sharing_label(size), **asdict(rate)} for rate in rates]
    columns = ["workload", "workload_digest", "sharing", *(field.name for field in fields(HitRate))]
    emit(form, tables=tables, columns=columns, records=records)


def _own_block_size(workload: Workload) -> int:
    return workload.report.sharing_block_tokens or DEFAULT_BLOCK_SIZE


def _table(workload: Workload, size: int, rates: list[HitRate]) -> Table:
    """One row per capacity, one column per policy."""
    bound, rest = rates[0], rates[1:]
    rows = []
    for capacity, group in groupby(rest, key=lambda rate: rate.capacity_blocks):
        found = list(group)
        tokens = format_count((capacity or 0) * size)
        rows.append([format_count(capacity or 0), tokens, *(f"{rate.hit_rate:.2%}" for rate in found)])
        rows[-1] += [f"{bound.hit_rate:.2%}", str(found[0].rejected)]
    policies = list(dict.fromkeys(rate.policy for rate in rest))
    columns = ["blocks", "tokens", *policies, "bound", "rejected"]
    title = (
        f"{workload.report.source}: {format_count(len(workload.requests))} requests, blocks of {size} tokens, sharing "
        f"{workload.sharing_label(size)}"
    )
    return Table(title, columns, rows, frozenset(range(len(columns))), _FOOTER)
