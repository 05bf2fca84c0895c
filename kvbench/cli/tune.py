"""`kvbench tune`: search for good kernel configurations."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import emit_records, format_option
from kvbench.cli.tune_run import search_options, tune_here
from kvbench.cli.tune_static import SHAPE_NAMES, print_static_report, shape_options, shapes_of, static_options
from kvbench.cli.tune_store import diff, export, import_, show
from kvbench.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from kvbench_kernels.specs import KernelShape


SEARCH_NAMES = {
    "strategy", "trials", "seconds", "rounds", "seed", "suite", "trace", "threads", "overrides", "resume",
}  # fmt: skip


class KernelGroup(click.Group):
    """`kvbench tune KERNEL …` stands for `kvbench tune run KERNEL …`, and so does `kvbench tune --resume …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_option = bool(args) and args[0].startswith("-") and args[0] not in ("-h", "--help")
        return super().parse_args(ctx, ["run", *args] if is_option else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=KernelGroup)
def tune() -> None:
    """Find good kernel configurations: tried on this machine, or compiled for a GPU that need not be there.

    kvbench tune KERNEL … is short for kvbench tune run KERNEL …
    """


for _command in (show, diff, export, import_):
    tune.add_command(_command)


@tune.command()
@click.argument("kernel", required=False)
@search_options
@static_options
@shape_options
@format_option
@click.pass_context
def run(ctx: click.Context, /, kernel: str | None, form: str, **options: Any) -> int:
    """Search KERNEL's configurations on this machine: decode_numba on a CPU; decode, prefill or mla on a CUDA device.

    Every configuration is checked against the reference in a process of its own before it is timed. The best are
    measured again in fresh processes, and a winner that beats the default beyond noise is kept for later sweeps.
    Exits 3 when some shape ended without a winner.

    With --compile-only nothing is launched and no GPU is needed: every configuration of KERNEL (decode, prefill, mla,
    write, copy) is compiled for --target. Dropped are those that do not compile, do not fit, spill registers, or are
    another one's machine code; the rest is ranked by a model of bytes and occupancy. The table leaves out those that
    the shape rules out. Exits 1 when none is worth timing.

    \b
    Examples:
      kvbench tune decode_numba --batch 1,8 --context 1024 --kv-dtype int8
      kvbench tune decode_numba --suite block-size --seconds 120
      kvbench tune --resume results/tune-decode_numba-<time>
      kvbench tune decode --compile-only --target sm_90
    """
    given = {name for name in options if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    if options["compile_only"] or options["target"] is not None:
        return _compile(kernel, form, options, given)
    _refuse_shapes_twice(options, given)
    return tune_here(kernel, lambda name: _shapes(name, options), form, options)


def _compile(kernel: str | None, form: str, options: dict[str, Any], given: set[str]) -> int:
    if kernel is None or options["target"] is None or not options["compile_only"]:
        raise UsageError(
            "compiling for a GPU that need not be there takes KERNEL, --compile-only and --target",
            hint="kvbench tune decode --compile-only --target sm_90",
        )
    from kvbench.tune.pages import refuse_unknown_page

    if moot := given & SEARCH_NAMES:
        raise UsageError(f"{_option(min(moot))} has no effect with --compile-only", hint="leave it out")
    refuse_unknown_page(kernel)
    shapes = shapes_of(kernel, options)
    if len(shapes) > 1:
        raise UsageError("--compile-only takes one shape at a time", hint="one --batch and one --context")
    wanted = {name: options[name] for name in ("target", "gpu", "jobs", "timeout_s")}
    out = options["out"]
    kept = print_static_report(kernel, shapes[0], **wanted, out=Path(out) if out else None, form=form)
    return ExitCode.OK if kept else ExitCode.NO


def _refuse_shapes_twice(options: dict[str, Any], given: set[str]) -> None:
    """What a suite, a trace or an earlier tuning decides cannot be said otherwise as well."""
    if moot := given & {"gpu", "jobs"}:
        raise UsageError(f"--{min(moot)} goes with --compile-only", hint="leave it out")
    spelled = sorted(given & set(SHAPE_NAMES))
    fixed = {"strategy", "trials", "seconds", "rounds", "seed", "threads", "timeout_s", "out"}
    sources = [name for name in ("suite", "trace") if options[name] is not None]
    if options["resume"] is not None and (both := [*sources, *spelled, *sorted(given & fixed)]):
        raise UsageError(f"{_option(both[0])} has no effect with --resume: the tuning has it", hint="leave it out")
    if sources and spelled:
        raise UsageError(f"{_option(spelled[0])} and --{sources[0]} both give shapes", hint="leave one out")
    if options["overrides"] and not sources:
        raise UsageError("-a changes a suite, and there is none", hint="add --suite or --trace")


def _option(name: str) -> str:
    return "-a" if name == "overrides" else "--" + name.removeprefix("has_").removesuffix("_s").replace("_", "-")


def _shapes(kernel: str, options: dict[str, Any]) -> tuple[list[KernelShape], int | None]:
    """From the suite or trace where one is given, with its CPU threads, else from the command line."""
    suite, trace = options["suite"], options["trace"]
    if suite is None and trace is None:
        return shapes_of(kernel, options), None
    from kvbench.spec.load import load_suite
    from kvbench.spec.overrides import apply_overrides
    from kvbench.spec.trace_options import with_trace
    from kvbench.sweep.planner import make_plan
    from kvbench.sweep.tune_shapes import shapes_of_plan

    loaded = load_suite(suite or "traffic")
    loaded = with_trace(loaded, trace) if trace is not None else loaded
    overrides = list(options["overrides"])
    plan = make_plan(apply_overrides(loaded, overrides) if overrides else loaded)
    return shapes_of_plan(plan, kernel), plan.threads


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
