"""What `compare`, `gate` and `reproduce` share: the declared treatment, and the table of what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvbench.cli.output import Table, emit

if TYPE_CHECKING:
    from kvbench.store.comparability import FieldDifference

Command = TypeVar("Command", bound=Callable[..., Any])


def vary_option(command: Command) -> Command:
    """`--vary`: what is meant to differ."""
    option: Callable[[Command], Command] = click.option(
        "--vary",
        multiple=True,
        default=("git_commit",),
        show_default=True,
        metavar="WORD",
        help="What is meant to differ: git_commit (all code), a setting such as kv_dtype, gpu, driver …; repeatable.",
    )
    return option(command)


def differences_table(title: str, differences: Sequence[FieldDifference]) -> Table:
    """Fields with both values, for people."""
    from kvbench.tabulate import value_cell

    rows = [
        [d.item, d.field, value_cell(d.left), value_cell(d.right), str(d.cases) if d.cases else ""] for d in differences
    ]
    return Table(title, ["what", "field", "first", "second", "cases"], rows, frozenset({4}))


@contextmanager
def refusal_shown(form: str) -> Iterator[None]:
    """Where the sides are not comparable, the table of differing fields goes to stdout before the error is told."""
    from kvbench.store.comparability import NotComparableError

    try:
        yield
    except NotComparableError as error:
        refused = error.comparability.refused
        columns = ["role", "item", "field", "left", "right", "cases", "vary"]
        records = [difference._asdict() for difference in refused]
        emit(form, tables=[differences_table("", refused)], columns=columns, records=records)
        raise
