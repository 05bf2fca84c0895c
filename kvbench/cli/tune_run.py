"""`kvbench tune KERNEL`: search on this machine, and what is printed of it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvbench.cli.tune_cells import emit_tuned
from kvbench.errors import CannotRunError, ExitCode, UsageError

if TYPE_CHECKING:
    from kvbench.tune.narrowing import Narrow
    from kvbench.tune.run import Outcome
    from kvbench.tune.session import Session
    from kvbench.tune.tunable import Tunable
    from kvbench_kernels.specs import KernelShape

_Command = TypeVar("_Command", bound=Callable[..., Any])
DEFAULT_TRIALS = 40
COLUMNS = (
    "kernel", "shape", "verdict", "configuration", "time_s", "default_time_s", "gain", "gain_low", "gain_high",
    "tied_with", "trials", "failed_trials", "reason",
)  # fmt: skip


def search_options(command: _Command) -> _Command:
    """The options of a search on this machine."""
    options = (
        click.option("--strategy", default="guided", show_default=True, help="guided, random or exhaustive."),
        click.option("--trials", type=click.IntRange(1), help=f"Most trials per shape.  [{DEFAULT_TRIALS}]"),
        click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Longest search, all shapes."),
        click.option(
            "--rounds", type=click.IntRange(2, 1000), default=8, show_default=True,
            help="Fresh processes that the best are measured again in.",
        ),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True),
        click.option("--threads", type=click.IntRange(1), help="CPU threads.  [all cores, or what --suite has]"),
        click.option("--suite", metavar="SUITE", help="Tune the shapes of this suite's cases."),
        click.option("--trace", type=click.Path(path_type=Path), help="Tune the contexts of this recorded trace."),
        click.option("-a", "--axis", "overrides", multiple=True, metavar="KEY=V[,V…]", help="With --suite or --trace."),
        click.option("--resume", type=click.Path(path_type=Path), metavar="FOLDER", help="Go on with a tuning."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


Wanted = Callable[[str], "tuple[list[KernelShape], int | None]"]
"""Kernel → its shapes, and the CPU threads of their suite where they have one"""


def tune_here(kernel: str | None, wanted: Wanted, form: str, options: dict[str, Any]) -> int:
    """Search, choose, keep, print; 3 when some shape ended without a winner."""
    from kvbench.console import say
    from kvbench.sweep.termination import termination_is_an_interrupt
    from kvbench.tune.progress import TuneProgress
    from kvbench.tune.run import Tuning
    from kvbench.tune.session import Session

    resume = options["resume"]
    session = Session.open(resume, repair=True) if resume else None
    name = _kernel_name(kernel, session)
    tunable = timed_here(name)
    if session is not None:
        threads, device = _device(tunable, session.plan.get("threads"))
        session.refuse_other(_facts(tunable, device))
        shapes = _recorded_shapes(session)
    else:
        shapes, threads_of_suite = wanted(name)
        threads, device = _device(tunable, options["threads"] or threads_of_suite)
        _check(tunable, shapes, threads)
        plan = _plan(tunable, device, threads, shapes, options)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        session = Session.create(Path(options["out"] or "results"), plan, f"tune-{name}-{stamp}")
    with TuneProgress() as progress:
        narrow = _narrow(tunable, session)
        with termination_is_an_interrupt():
            outcomes = Tuning(tunable, name, shapes, device, threads, session, narrow=narrow).run(progress)
    emit_outcomes(form, outcomes)
    say(f"tuning: {session.path}")
    return ExitCode.PARTIAL if any(outcome.winner is None for outcome in outcomes) else ExitCode.OK


def timed_here(name: str) -> Tunable:
    """The kernel, if this machine can time it."""
    from kvbench.devices.detect import detect
    from kvbench.tune.pages import PAGES
    from kvbench.tune.tunable import TUNABLES, make_tunable, refuse_unknown

    is_triton = name in PAGES
    if is_triton or (name in TUNABLES and make_tunable(name).device == "cuda"):
        try:
            detect("cuda")
        except CannotRunError:
            raise CannotRunError(
                f"kernel {name} is timed on a CUDA device, and there is none here",
                hint=f"kvbench tune {name} --compile-only --target sm_90 compiles and ranks its configurations",
            ) from None
    refuse_unknown(name)
    return make_tunable(name)


def emit_outcomes(form: str, outcomes: list[Outcome]) -> None:
    """One row per shape."""
    emit_tuned(form, COLUMNS, [_record(outcome) for outcome in outcomes])


def _record(outcome: Outcome) -> dict[str, Any]:
    winner = outcome.winner
    failed = sum(count for status, count in outcome.statuses.items() if status != "correct")
    head = {"kernel": outcome.key.kernel, "shape": outcome.key.label, "trials": sum(outcome.statuses.values())}
    if winner is None:
        return {**dict.fromkeys(COLUMNS), **head, "verdict": "none", "failed_trials": failed, "reason": outcome.failure}
    evidence = {name: getattr(winner, name) for name in COLUMNS if hasattr(winner, name)}
    return {**dict.fromkeys(COLUMNS), **evidence, **head, "failed_trials": failed}


def _narrow(tunable: Tunable, session: Session) -> Narrow | None:
    """Static pruning, for what a compiler of its own compiles."""
    from kvbench.console import say
    from kvbench.devices.detect import detect
    from kvbench.tune.narrowing import narrower

    return narrower(detect("cuda"), session.plan["timeout_s"], say) if tunable.compiler == "triton" else None


def _kernel_name(kernel: str | None, session: Session | None) -> str:
    if session is None:
        if kernel is None:
            from kvbench.tune.tunable import TUNABLES

            raise UsageError("which kernel?", hint=f"kvbench tune KERNEL, with one of {', '.join(TUNABLES)}")
        return kernel
    recorded = str(session.plan["kernel"])
    if kernel not in (None, recorded):
        raise UsageError(f"{session.path} is a tuning of {recorded}, not of {kernel}", hint="leave the kernel out")
    return recorded


def _device(tunable: Tunable, wanted: int | None) -> tuple[int, str]:
    """CPU threads, and the device as keys have it."""
    from kvbench.devices.detect import detect
    from kvbench.devices.host import Host
    from kvbench.tuned.key import device_label

    device, cores = detect("cuda" if tunable.device == "cuda" else "cpu"), Host().logical_cores()
    threads = wanted or Host().usable_cores()
    if threads > cores:
        raise UsageError(f"{threads} threads asked for, and there are {cores} CPUs", hint=f"--threads {cores}")
    return threads, device_label(device.kind, device.name, threads)


def _facts(tunable: Tunable, device: str) -> dict[str, str]:
    from kvbench.tuned.source import compiler_version, source_digest

    return {
        "source": source_digest(tunable.page),
        "compiler": compiler_version(tunable.compiler),
        "device": device,
    }


def _recorded_shapes(session: Session) -> list[KernelShape]:
    from kvbench.errors import DataError
    from kvbench_kernels.specs import KernelShape

    try:
        return [KernelShape(**shape) for shape in session.plan["shapes"]]
    except TypeError as error:
        raise DataError(f"{session.path} names no shapes: {error}", hint="it is damaged") from None


def _check(tunable: Tunable, shapes: list[KernelShape], threads: int) -> None:
    """Every shape is possible and fits into memory, before anything runs."""
    from kvbench.measure.memory import free_memory_bytes
    from kvbench.tune.one_layer import pool_bytes
    from kvbench.units import format_bytes

    for shape in shapes:
        tunable.space(shape, threads)
        need, free = pool_bytes(shape), free_memory_bytes(tunable.device)
        if need > free:
            raise CannotRunError(
                f"batch {shape.batch} × {shape.context} tokens takes {format_bytes(need)} of KV, "
                f"and {format_bytes(free)} is free",
                hint="a smaller --batch or --context",
            )


def _plan(
    tunable: Tunable, device: str, threads: int, shapes: list[KernelShape], options: dict[str, Any]
) -> dict[str, Any]:
    from kvbench.store.parts import now
    from kvbench.tune.strategy import STRATEGIES

    if options["strategy"] not in STRATEGIES:
        raise UsageError(f"unknown search strategy {options['strategy']!r}", hint=f"one of {', '.join(STRATEGIES)}")
    for name in ("seconds", "timeout_s"):
        if options[name] is not None and not math.isfinite(options[name]):
            raise UsageError(f"--{name.removesuffix('_s')} is not a number", hint="give seconds, as in 60")
    is_open = options["trials"] is None and options["seconds"] is None and options["strategy"] != "exhaustive"
    return {
        "kernel": tunable.name,
        **_facts(tunable, device),
        "shapes": [asdict(shape) for shape in shapes],
        "strategy": options["strategy"],
        "trials": DEFAULT_TRIALS if is_open else options["trials"],
        "seconds": options["seconds"],
        "seed": options["seed"],
        "rounds": options["rounds"],
        "timeout_s": options["timeout_s"],
        "threads": threads,
        "created_at": now(),
        "argv": sys.argv[1:],
    }
