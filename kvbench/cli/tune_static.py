"""`kvbench tune KERNEL --target sm_90 --compile-only`: what can be known of a kernel's configurations without a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvbench.cli.output import Table, emit
from kvbench.errors import UsageError
from kvbench.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from kvbench.tune.compile_pool import Outcome
    from kvbench.tune.static_report import StaticReport
    from kvbench_kernels.specs import KernelShape

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SHOWN = {
    "rank": "rank", "number": "#", "status": "status", "registers": "registers", "spill_bytes": "spills",
    "stack_bytes": "stack", "shared_bytes": "shared", "occupancy": "occupancy", "limited_by": "limited by",
    "wide_loads": "16-byte loads", "narrow_loads": "narrower", "tensor_core": "tensor core", 
    "same_code_as": "same as #", "splits": "splits", "model_s": "model", "reason": "why",
}  # fmt: skip


def shape_options(command: _Command) -> _Command:
    """The options that say which work a kernel is tuned for; `shapes_of` reads them."""
    options = (
        click.option("--kv-dtype", metavar="DTYPE", help="K and V as stored.  [bf16; decode_numba fp32]"),
        click.option("--query-dtype", metavar="DTYPE", help="fp16, bf16 or fp32.  [bf16; decode_numba fp32]"),
        click.option("--kv-scales", metavar="KIND", default="token-head", show_default=True, help="As in a suite."),
        click.option("--block-size", type=int, default=16, show_default=True, help="Tokens of one block."),
        click.option("--layout", metavar="LAYOUT", default="hnd", show_default=True, help="hnd or nhd, in a block."),
        click.option("--heads", metavar="Q/KV", help="Query and KV heads, as in 32/8.  [the kernel's typical]"),
        click.option("--head-dim", metavar="K/V", help="Elements of K and V: 128, or 192/128.  [the kernel's typical]"),
        click.option("--batch", metavar="N[,N…]", help="Sequences.  [64; decode_numba 8]"),
        click.option("--context", metavar="N[,N…]", help="Tokens of each sequence.  [4096; decode_numba 1024]"),
        click.option("--query-tokens", type=int, help="Query tokens of each sequence.  [the kernel's typical]"),
        click.option("--window", "has_window", is_flag=True, help="A layer with a sliding window."),
        click.option("--sinks", "has_sinks", is_flag=True, help="A layer with attention sinks."),
        click.option("--cap", "has_cap", is_flag=True, help="A layer that caps its logits."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def static_options(command: _Command) -> _Command:
    """The options of compiling for a GPU that need not be there."""
    options = (
        click.option("--compile-only", is_flag=True, help="Launch nothing; needs --target."),
        click.option("--target", metavar="ARCH", help="sm_80, sm_86, sm_89, sm_90, sm_100 or sm_120."),
        click.option("--gpu", metavar="NAME", help="Whose SMs and bandwidth rank.  [the first known of --target]"),
        click.option("--jobs", type=click.IntRange(1, 256), help="Compiles at once.  [one for each core]"),
        click.option(
            "--timeout", "timeout_s", type=click.FloatRange(0.1, 86_400), default=60.0, show_default=True,
            help="Seconds that one step (a compile, a check, some calls) may take.",
        ),
        click.option("--out", metavar="FOLDER", help="Where files go.  [results; --compile-only: nowhere]"),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


SHAPE_NAMES = (
    "kv_dtype", "query_dtype", "kv_scales", "block_size", "layout", "heads", "head_dim", "batch", "context",
    "query_tokens", "has_window", "has_sinks", "has_cap",
)  # fmt: skip


def shapes_of(kernel: str, options: dict[str, Any]) -> list[KernelShape]:
    """The shapes that `shape_options` give, every batch with every context; `UsageError` for an impossible one."""
    from kvbench.tune.shapes import counts, kernel_shape

    fixed = {name: options[name] for name in SHAPE_NAMES if name not in ("batch", "context")}
    pairs = product(counts(options["batch"], "--batch"), counts(options["context"], "--context"))
    return [kernel_shape(kernel, **fixed, batch=batch, context=context) for batch, context in pairs]


def print_static_report(
    kernel: str,
    shape: KernelShape,
    target: str,
    *,
    gpu: str | None,
    jobs: int | None,
    timeout_s: float,
    out: Path | None,
    form: str,
) -> int:
    """Compile, judge, print; with `out` also write the report and what the compiler said of those that failed. How many
    configurations are worth timing."""
    from kvbench.console import say
    from kvbench.store.files import make_folder, write_errors
    from kvbench.tune.static_report import static_report, write_report
    from kvbench.tune.targets import known_target

    wanted = known_target(target)
    if math.isnan(timeout_s):
        raise UsageError("--timeout is not a number", hint="give seconds, as in 60")
    if out is None:
        report = static_report(kernel, shape, wanted, gpu=gpu, jobs=jobs, timeout_s=timeout_s, on_done=_progress)
    else:
        with write_errors(out), (make_folder(out) / "compile.log").open("wb") as log:
            report = static_report(
                kernel, shape, wanted, gpu=gpu, jobs=jobs, timeout_s=timeout_s, log=log, on_done=_progress
            )
    emit_static(form, report)
    if out is not None:
        for path in write_report(report, out):
            say(f"written: {path}")
    return report.counts.get("kept", 0)


def emit_static(form: str, report: StaticReport) -> None:
    """The table of what was compiled, with what it was judged for above and the counts below; csv and json have the
    refused configurations too."""
    rows = report.rows
    configuration = [name for name in rows[0] if name in report.judged[0].candidate.configuration]
    columns = ["rank", "number", *configuration, *(name for name in _SHOWN if name not in ("rank", "number"))]
    shown = [row for row in rows if row["status"] != "refused"]
    cells = [[_cell(name, row) for name in columns] for row in shown]
    numbers = frozenset(at for at, name in enumerate(columns) if name not in ("status", "reason", "limited_by"))
    table = Table(_title(report), [_SHOWN.get(name, name) for name in columns], cells, numbers, _footer(report))
    document = {**report.facts, "counts": report.counts, "rows": rows}
    emit(form, tables=[table], columns=list(rows[0]), records=rows, document=document)


def _title(report: StaticReport) -> str:
    facts = report.facts
    assembler = f"ptxas {facts['ptxas']}" if facts["ptxas"] else "no ptxas answered"
    return (
        f"{facts['kernel']} compiled for {facts['target']} by Triton {facts['triton']} ({assembler}); "
        f"nothing was launched, the ranking assumes {facts['ranked_for']}"
    )


def _footer(report: StaticReport) -> str:
    return ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in report.counts.items())


def _cell(name: str, row: dict[str, Any]) -> str:
    value = row[name]
    if value is None or value == "":
        return "–"
    if name == "occupancy":
        return f"{value:.0%}"
    if name == "model_s":
        return format_seconds(value)
    if name == "shared_bytes":
        return format_bytes(value)
    if name == "status":
        return f"{value.replace('_', ' ')}{' (default)' if row['is_default'] else ''}"
    return str(value)


def _progress(done: int, total: int, outcome: Outcome) -> None:
    """A line now and then; the table says the rest."""
    from kvbench.console import say

    if done == total or done % 25 == 0:
        say(f"compiled {done} of {total}")
