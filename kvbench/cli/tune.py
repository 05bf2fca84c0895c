"""`kvbench tune`: search for good kernel configurations."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kvbench.cli.output import emit_records, format_option
from kvbench.cli.tune_static import print_static_report, shape_of, shape_options, static_options


class KernelGroup(click.Group):
    """`kvbench tune KERNEL …` stands for `kvbench tune run KERNEL …`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=KernelGroup)
def tune() -> None:
    """Configurations of kernels: compiled for a GPU that need not be there, and search strategies on recorded spaces.

    kvbench tune KERNEL … is short for kvbench tune run KERNEL …
    """


@tune.command()
@click.argument("kernel")
@static_options
@shape_options
@format_option
def run(kernel: str, form: str, **options: Any) -> None:
    """Compile every configuration of KERNEL (decode, prefill, write, copy) for a GPU and say which are worth timing.

    No GPU is needed. Dropped are those that do not compile, do not fit, spill registers, or are another one's machine
    code; the rest is ranked by a model of bytes and occupancy. The table leaves out those that the shape rules out.
    """
    shape = shape_of(kernel, options)
    wanted = {name: options[name] for name in ("target", "gpu", "jobs", "timeout_s")}
    out = options["out"]
    print_static_report(kernel, shape, **wanted, out=Path(out) if out else None, form=form)


@tune.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--strategy", "strategies", multiple=True, help="guided, random or exhaustive; may be repeated.  [guided]"
)
@click.option("--seeds", type=click.IntRange(1, 10_000), default=25, show_default=True, help="Searches per space.")
@click.option("--first-seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seeds count from here.")
@click.option("--evaluations", type=click.IntRange(min=1), help="Evaluations that the score is taken over.")
@format_option
def replay(
    files: tuple[str, ...], strategies: tuple[str, ...], seeds: int, first_seed: int, evaluations: int | None, form: str
) -> None:
    """Play a search on recorded spaces: FILES are Kernel Tuner cache files, or results in its T4 format.

    The score is 0 for random search and 1 for finding the optimum at once, averaged until random search has come 95 %
    of the way from the median to the optimum (or over --evaluations); share_N is the median over seeds of optimum /
    best after N evaluations.
    """
    from kvbench.tune.recorded import read_recording
    from kvbench.tune.replay import SHOWN
    from kvbench.tune.replay import replay as play

    recordings = [read_recording(file) for file in files]
    records: list[dict[str, Any]] = []
    for recording in recordings:
        for strategy in strategies or ("guided",):
            found = asdict(play(recording, strategy, range(first_seed, first_seed + seeds), evaluations))
            reached = found.pop("shares")
            found |= {f"share_{n}": reached.get(n) for n in SHOWN}
            records.append({name: _short(value) for name, value in found.items()})
    emit_records(form, list(records[0]), records)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4) if value == value else None
    return value
