"""The `kvbench` command: finds the command's file, runs it, and turns errors into words and exit codes."""

from __future__ import annotations

import difflib
import errno
import os
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from kvbench import __version__
from kvbench.console import discard
from kvbench.errors import ExitCode, InternalError, KvbenchError

# name -> (module:command, the line that `kvbench --help` prints without importing the module)
COMMANDS: dict[str, tuple[str, str]] = {
    "sweep": (
        "kvbench.cli.sweep:sweep",
        "Run a suite: every case through the engine, on this device or by a cost model.",
    ),
    "report": ("kvbench.cli.report:report", "Tables of a run, or one offline HTML page with its charts."),
    "ls": ("kvbench.cli.ls:list_runs", "Runs under results/: what, when, where, how they ended."),
    "show": ("kvbench.cli.show:show", "What a run is, or one of its cases in full."),
    "recommend": (
        "kvbench.cli.recommend:recommend",
        "Which settings to serve your lengths with, and why.",
    ),
    "size": ("kvbench.cli.size:size", "The memory arithmetic for a model on a GPU."),
    "suites": ("kvbench.cli.suites:suites", "Suites that ship, one in full, presets of systems, the JSON Schema."),
    "workload": (
        "kvbench.cli.workload:workload",
        "Look at the requests of a trace or a suite, and at the hits that they allow.",
    ),
    "manifest": ("kvbench.cli.manifest:manifest", "Show or compare what a run controlled."),
    "quality": ("kvbench.cli.quality:quality", "What a KV dtype does to a model's text."),
    "verify": ("kvbench.cli.verify:verify", "Random load and injected faults against the invariants."),
    "tune": ("kvbench.cli.tune:tune", "Find kernel configurations for this machine, or for a GPU that is not here."),
    "gate": ("kvbench.cli.gate:gate", "Judge a candidate against a baseline, and the rule on recorded nights."),
    "fit": ("kvbench.cli.fit:fit", "Fit a cost model on the steps of measured runs, for predictions with intervals."),
    "compare": ("kvbench.cli.compare:compare", "Runs side by side on the cases that they share."),
    "reproduce": ("kvbench.cli.reproduce:reproduce", "Run again what a manifest recorded, and compare."),
    "export": ("kvbench.cli.export:export", "Metrics of a run for services that draw them over time."),
    "doctor": ("kvbench.cli.doctor:doctor", "What would make numbers bad on this machine."),
}

_FULL = (errno.ENOSPC, errno.EDQUOT)
_BAD_PATH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)
"""What the system says of a path that only the user can set right"""


class LazyCommands(click.Group):
    """Imports a command's module when the command is used, so that help is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            raise click.UsageError(f"no command {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="kvbench")
def cli() -> None:
    """Benchmark paged KV caches: which block size, KV dtype, batch policy, prefix-cache and offload
    settings should I serve with?

    Data goes to stdout, talk to stderr. Exit codes: 0 fine, 1 the answer is no, 2 bad usage or
    input, 3 finished but some cases failed, 4 this machine cannot, 5 data missing or invalid, 70 our bug,
    130 interrupted.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the console script; always ends the process with a meaningful code."""
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    _open_closed_streams()
    if hasattr(sys.stdout, "reconfigure"):
        # A stream that cannot spell "–" or "×" gets "?" instead of a traceback.
        sys.stdout.reconfigure(errors="replace")
    try:
        answer = cli.main(args=args, prog_name="kvbench", standalone_mode=False)
        sys.stdout.flush()
        return int(answer) if isinstance(answer, int) else ExitCode.OK
    except InternalError as error:
        return _our_bug(error)
    except KvbenchError as error:
        _complain(error.message, error.hint or _help_for(sys.argv[1:] if args is None else args))
        return int(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return int(ExitCode.USAGE)
    except click.ClickException as error:
        _complain_usage(error)
        return int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted", None)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has gone: nobody is left to complain to.
        discard(sys.stdout)
        return int(ExitCode.OK)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(ExitCode.OK)
    except OSError as error:
        return _refused_by_the_system(error)
    except BaseException as error:
        return _our_bug(error)


def _open_closed_streams() -> None:
    """Python has None for a stream that was closed before it started (`>&-`): what goes there goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _refused_by_the_system(error: OSError) -> int:
    if error.errno in _BAD_PATH and error.filename is not None:
        _complain(f"cannot use {error.filename}: {error.strerror}", "choose another path, or see to its permissions")
        return int(ExitCode.USAGE)
    if error.errno not in _FULL:
        return _our_bug(error)
    discard(sys.stdout)
    _complain(f"cannot write: {error.strerror}", "free some space, or send the output elsewhere")
    return int(ExitCode.CANNOT)


def _our_bug(error: BaseException) -> int:
    _complain(f"internal error: {type(error).__name__}: {error}", f"please report it with {_log(error)}")
    return int(ExitCode.BUG)


def _complain(message: str, hint: str | None) -> None:
    from kvbench.console import say

    say(f"error: {message}", style="red")
    if hint:
        say(f"\nhint: {hint}")


def _help_for(args: Sequence[str]) -> str:
    """The way out of an error that names none: the help of its command."""
    command = next((name for name in args if name in COMMANDS), None)
    return f"see kvbench {command} --help" if command else "see kvbench --help"


def _complain_usage(error: click.ClickException) -> None:
    ctx = getattr(error, "ctx", None)
    _complain(error.format_message().rstrip("."), f"see {ctx.command_path} --help" if ctx else "see kvbench --help")


def _log(error: BaseException) -> Path | str:
    """Write the traceback where it does not get in the way; the path, or where it went instead."""
    from kvbench.paths import log_dir

    text = "".join(traceback.format_exception(error))
    path = log_dir() / f"error-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        told = f"kvbench {__version__}\n{' '.join(sys.argv)}\n{text}"
        path.write_text(told, encoding="utf-8", errors="backslashreplace")
    except OSError:
        sys.stderr.write(text)
        return "the traceback above"
    return path
