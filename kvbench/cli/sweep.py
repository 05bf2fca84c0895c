"""`kvbench sweep`: run a suite, or say what running it would take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.given import refuse_out_beside_resume
from kvbench.cli.output import format_option
from kvbench.errors import ExitCode

if TYPE_CHECKING:
    from kvbench.spec.load import LoadedSuite
    from kvbench.sweep.live_output import LiveOutput
    from kvbench.sweep.plan import SweepPlan


@click.command()
@click.argument("suite", required=False)
@click.option(
    "-a",
    "--axis",
    "overrides",
    multiple=True,
    metavar="KEY=V[,V…]",
    help="Replace a setting or an axis, as in block_size=8,16; repeatable.",
)
@click.option("--trace", type=click.Path(path_type=Path), help="Serve the requests of this recorded trace.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N requests of the trace.")
@click.option("--scale-time", type=float, help="Multiply arrival times; 0.5 is twice the load.")
@click.option("--scale-tokens", metavar="RATIO", help="Multiply lengths and hash blocks together, as in 1/16.")
@click.option(
    "--clock",
    type=click.Choice(["wall", "virtual"]),
    help="virtual: predict times by a cost model instead of measuring; no device, no tensors.",
)
@click.option("--virtual-device", metavar="NAME", help="With --clock virtual: H100-SXM, L4, cpu …")
@click.option("-r", "--repetitions", type=click.IntRange(min=1), help="Samples per case, each in a fresh process.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True, help="Where runs go."
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Go on with an earlier run's folder; a larger -r adds samples.",
)
@click.option("--no-tuned", is_flag=True, help="Run every kernel by its default, whatever kvbench tune has found.")
@click.option("--dry-run", is_flag=True, help="Print cases with expected time and memory; measure nothing.")
@click.option(
    "--metrics",
    metavar="[HOST]:PORT",
    help="Serve live Prometheus metrics there while it runs; without HOST for this machine only, port 0: a free one.",
)
@click.option(
    "--metrics-textfile",
    type=click.Path(path_type=Path),
    metavar="FILE.prom",
    help="Write the last metrics there at the end, for node_exporter's textfile collector.",
)
@click.option("--run-implied", is_flag=True, help="Also try cases that need no less memory than one that ran out.")
@format_option
def sweep(
    suite: str | None,
    overrides: tuple[str, ...],
    out: Path,
    resume: Path | None,
    repetitions: int | None,
    no_tuned: bool,
    dry_run: bool,
    run_implied: bool,
    form: str,
    clock: str | None,
    virtual_device: str | None,
    metrics: str | None,
    metrics_textfile: Path | None,
    **trace_options: Any,
) -> int:
    """Run SUITE (a name from `kvbench suites list`, or a TOML file) on this device.

    With --clock virtual nothing is measured: a cost model stands for the device, and numbers are labelled so.

    The table goes to stdout, progress and warnings to stderr, everything else into the run folder under --out.
    Exits 3 when some case failed; what was measured is kept.

    \b
    Examples:
      kvbench sweep smoke
      kvbench sweep block-size -a kv_dtype=fp32,int8 --dry-run
      kvbench sweep traffic --trace requests.csv --limit 200 -a kv_dtype=fp32 -a prefix_cache=hash
      kvbench sweep --resume results/<run>
      kvbench sweep smoke --metrics :9464
      kvbench sweep traffic --trace requests.csv --clock virtual --virtual-device L4 -a model.name=llama-3.1-8b
    """
    refuse_out_beside_resume()
    virtual = {"clock": clock, "virtual_device": virtual_device}
    overrides += tuple(f"measure.{name}={value}" for name, value in virtual.items() if value is not None)
    overrides += ("measure.tuned=false",) if no_tuned else ()
    if dry_run and (metrics is not None or metrics_textfile is not None):
        raise click.UsageError("--dry-run measures nothing that --metrics or --metrics-textfile could show")
    address = _address(metrics)
    loaded = _loaded(suite, resume, overrides, trace_options)
    plan = _planned(loaded, resume, repetitions, is_named_by_run=suite is None)
    if dry_run:
        from kvbench.sweep.dry_run import show

        show(plan, out, form)
        return ExitCode.OK
    from kvbench.sweep.live_output import LiveOutput

    return _run(plan, out, resume, run_implied, form, LiveOutput(address, metrics_textfile))


def _address(metrics: str | None) -> tuple[str, int] | None:
    if metrics is None:
        return None
    from kvbench.sweep.metrics_server import parse_address

    return parse_address(metrics)


def _run(plan: SweepPlan, out: Path, resume: Path | None, run_implied: bool, form: str, live: LiveOutput) -> int:
    from kvbench.console import say
    from kvbench.report.tables import render_run
    from kvbench.sweep.run import run_plan

    run = run_plan(plan, out=out, resume=resume, run_implied=run_implied, live=live)
    render_run(run, form)
    failed = run.cases[run.cases["status"] != "ok"]
    if len(failed):
        say(f"{len(failed)} of {len(run.cases)} samples are not ok; the reasons are in the table", style="yellow")
    say(f"run: {run.path}")
    return ExitCode.PARTIAL if len(failed) else ExitCode.OK


def _loaded(
    suite: str | None, resume: Path | None, overrides: tuple[str, ...], trace_options: dict[str, Any]
) -> LoadedSuite:
    """The suite with all that the command line changes; of the resumed run when none is named."""
    from kvbench.spec.load import load_suite
    from kvbench.spec.overrides import apply_overrides
    from kvbench.spec.trace_options import with_trace
    from kvbench.sweep.resume import suite_of

    if suite is not None:
        loaded = load_suite(suite)
    elif resume is not None:
        loaded = suite_of(resume)
    else:
        raise click.UsageError("name a suite, as in `kvbench sweep smoke`, or a run with --resume")
    if any(value is not None for value in trace_options.values()):
        loaded = with_trace(loaded, trace_options.pop("trace"), **trace_options)
    return apply_overrides(loaded, list(overrides)) if overrides else loaded


def _planned(loaded: LoadedSuite, resume: Path | None, repetitions: int | None, *, is_named_by_run: bool) -> SweepPlan:
    """The plan; what an earlier run decided, and the command line leaves open, stays."""
    from kvbench.sweep.planner import make_plan
    from kvbench.sweep.resume import auto_kv_bytes_of, repetitions_of

    if resume is None:
        return make_plan(loaded, repetitions=repetitions)
    if repetitions is None and is_named_by_run:
        repetitions = repetitions_of(resume)
    return make_plan(loaded, repetitions=repetitions, auto_kv_bytes=auto_kv_bytes_of(resume))
