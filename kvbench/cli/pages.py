"""docs/cli.md from the commands themselves: `python -m kvbench.cli.pages docs/cli.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from kvbench.cli.main import COMMANDS, cli

_HEAD = """# The command line

Generated from the commands' own help by `python -m kvbench.cli.pages docs/cli.md`; a test holds it current.

stdout is data, stderr is talk. Colour only adds to what the text says; `NO_COLOR` and `FORCE_COLOR` decide. Progress
is animated on a terminal only, and not when `CI` is set; elsewhere it is one plain line for every sample.

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | the answer is no: `verify` found something, `gate` says FAIL, `tune diff` found a difference |
| 2 | bad usage, suite, trace or checkpoint |
| 3 | finished, but some cases failed (results kept), a shape has no winner, or `gate` cannot tell |
| 4 | this machine, or its memory, cannot run it; runs are not comparable |
| 5 | stored data missing or damaged, or a case on one side only |
| 70 | our bug; the traceback is in a log file whose path is printed |
| 130 | interrupted; results kept |

`doctor` exits 0 whenever it could look: its findings are not failures.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    root = click.Context(cli, info_name="kvbench", terminal_width=100, help_option_names=["-h", "--help"])
    for name in COMMANDS:
        command = cli.get_command(root, name)
        if command is not None:
            yield from _section(command, click.Context(command, info_name=name, parent=root, terminal_width=100), 2)


def _section(command: click.Command, ctx: click.Context, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {ctx.command_path}\n\n```text\n{command.get_help(ctx)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            if child is not None:
                yield from _section(
                    child, click.Context(child, info_name=name, parent=ctx, terminal_width=100), depth + 1
                )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
