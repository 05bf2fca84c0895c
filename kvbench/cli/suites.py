"""`kvbench suites`: what ships, what a suite would run, and which keys there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvbench.spec.cases import Case
    from kvbench.spec.load import LoadedSuite

_FORMAT = click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv", "md"]), default="table", show_default=True
)


@click.group()
def suites() -> None:
    """List, show and describe suites."""


@suites.command("list")
@_FORMAT
def list_suites(form: str) -> None:
    """The suites that ship: name, number of cases, kinds of case, title."""
    from kvbench.spec.load import load_suite, suite_names

    rows = [_summary(load_suite(name)) for name in suite_names()]
    click.echo(_render(rows, ["name", "cases", "kinds", "title"], form))


@suites.command()
@click.argument("name", metavar="NAME|FILE")
@_FORMAT
def show(name: str, form: str) -> None:
    """A suite with all defaults filled in, as TOML that can be saved and run, and its cases.

    csv and md print the cases alone.
    """
    from kvbench.spec.cases import expand
    from kvbench.spec.effective import filled_in
    from kvbench.spec.load import load_suite
    from kvbench.spec.toml_write import to_toml
    from kvbench.tabulate import as_json

    loaded = load_suite(name)
    cases = expand(loaded.suite)
    if form == "json":
        click.echo(as_json({"suite": filled_in(loaded.suite), "digest": loaded.digest, "cases": _as_data(cases)}))
        return
    if form == "table":
        click.echo(f"{to_toml(filled_in(loaded.suite))}\n{len(cases)} {'case' if len(cases) == 1 else 'cases'}\n")
    columns = ["case_id", "kind", *dict.fromkeys(column for case in cases for column in case.axes)]
    click.echo(_render([{"case_id": c.case_id, "kind": c.kind, **c.axes} for c in cases], columns, form))


@suites.command()
def schema() -> None:
    """The JSON Schema of a suite (draft 2020-12), every key documented."""
    from kvbench.spec.schema import json_schema
    from kvbench.tabulate import as_json

    click.echo(as_json(json_schema()))


def _summary(loaded: LoadedSuite) -> dict[str, Any]:
    from kvbench.spec.cases import expand

    cases = expand(loaded.suite)
    kinds = ", ".join(dict.fromkeys(case.kind for case in cases))
    return {"name": loaded.suite.name, "cases": len(cases), "kinds": kinds, "title": loaded.suite.title}


def _as_data(cases: list[Case]) -> list[dict[str, Any]]:
    return [{"case_id": c.case_id, "kind": c.kind, "label": c.label, "axes": c.axes} for c in cases]


def _render(rows: list[dict[str, Any]], columns: list[str], form: str) -> str:
    from kvbench.tabulate import aligned, as_json, comma_separated, markdown

    if form == "json":
        return as_json(rows)
    if form == "csv":
        return comma_separated(columns, [[row.get(column) for column in columns] for row in rows])
    cells = [["" if row.get(column) is None else str(row[column]) for column in columns] for row in rows]
    return aligned(columns, cells) if form == "table" else markdown(columns, cells)
