"""`kvbench manifest`: what a run controlled, and how two runs differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

_FORMAT = click.option(
    "--format", "format_", type=click.Choice(["table", "json", "csv", "md"]), default="table", show_default=True
)


@click.group()
def manifest() -> None:
    """Show or compare what a run controlled."""


@manifest.command()
@click.argument("run", type=click.Path(path_type=Path))
@_FORMAT
def show(run: Path, format_: str) -> None:
    """Everything that RUN (a run folder or a manifest.json) controlled, what surrounded it, and its files."""
    from kvbench.report.listing import write_listing
    from kvbench.report.tables import data_console
    from kvbench.store.manifest import flat_fields

    found = _manifest(run)
    console = data_console()
    if format_ == "json":
        console.file.write(json.dumps(found, indent=2) + "\n")
    else:
        write_listing(["class", "field", "value"], flat_fields(found), format_, console)


@manifest.command()
@click.argument("left", type=click.Path(path_type=Path))
@click.argument("right", type=click.Path(path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Also times, readings and file digests, which always differ.")
@_FORMAT
def diff(left: Path, right: Path, show_all: bool, format_: str) -> None:
    """Fields in which two runs differ: controlled ones first, because results are attributed to those alone."""
    from kvbench.console import say
    from kvbench.report.listing import write_listing
    from kvbench.report.tables import data_console
    from kvbench.store.manifest import differences

    found = differences(_manifest(left), _manifest(right))
    shown = [d for d in found if show_all or d.field_class != "volatile"]
    if not any(d.field_class == "controlled" for d in found):
        say("no controlled field differs")
    if shown or format_ != "table":
        write_listing(["class", "field", "left", "right"], shown, format_, data_console())


def _manifest(path: Path) -> dict[str, Any]:
    from kvbench.store.files import read_json
    from kvbench.store.manifest import check_shape
    from kvbench.store.run import open_run
    from kvbench.store.schemas import check_version_number

    if not path.is_file():
        return open_run(path).manifest
    found = read_json(path)
    check_version_number(found.get("schema_version"), str(path))
    check_shape(found, str(path))
    return found
