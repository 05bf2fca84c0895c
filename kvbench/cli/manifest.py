"""`kvbench manifest`: what a run controlled, and how two runs differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvbench.cli.output import emit_records, format_option


@click.group()
def manifest() -> None:
    """Show or compare what a run controlled."""


@manifest.command()
@click.argument("run", type=click.Path(path_type=Path))
@format_option
def show(run: Path, form: str) -> None:
    """Everything that RUN (a run folder or a manifest.json) controlled, what surrounded it, and its files."""
    from kvbench.store.manifest import flat_fields

    found = _manifest(run)
    columns = ["class", "field", "value"]
    emit_records(form, columns, [dict(zip(columns, row, strict=True)) for row in flat_fields(found)], document=found)


@manifest.command()
@click.argument("left", type=click.Path(path_type=Path))
@click.argument("right", type=click.Path(path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Also times, readings and file digests, which always differ.")
@format_option
def diff(left: Path, right: Path, show_all: bool, form: str) -> None:
    """Fields in which two runs differ: controlled ones first, because results are attributed to those alone."""
    from kvbench.console import say
    from kvbench.store.manifest import differences

    found = differences(_manifest(left), _manifest(right))
    shown = [d for d in found if show_all or d.field_class != "volatile"]
    if not any(d.field_class == "controlled" for d in found):
        say("no controlled field differs")
    columns = ["class", "field", "left", "right"]
    if shown or form != "table":
        emit_records(form, columns, [dict(zip(columns, difference, strict=True)) for difference in shown])


@manifest.command()
def schema() -> None:
    """The JSON Schema of manifest.json: every field with its meaning."""
    from kvbench.store.manifest_schema import manifest_schema
    from kvbench.tabulate import as_json

    click.echo(as_json(manifest_schema()))


def _manifest(path: Path) -> dict[str, Any]:
    from kvbench.store.run import read_manifest

    return read_manifest(path)
