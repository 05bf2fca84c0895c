"""`kvbench suites`: what ships, what a suite would run, and which keys there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import comment_table, emit_records, format_option

if TYPE_CHECKING:
    from kvbench.spec.cases import Case
    from kvbench.spec.load import LoadedSuite


@click.group()
def suites() -> None:
    """List, show and describe suites."""


@suites.command("list")
@format_option
def list_suites(form: str) -> None:
    """The suites that ship: name, number of cases, kinds of case, title."""
    from kvbench.spec.load import load_suite, suite_names

    rows = [_summary(load_suite(name)) for name in suite_names()]
    emit_records(form, ["name", "cases", "kinds", "title"], rows)


@suites.command()
@click.argument("name", metavar="NAME|FILE")
@format_option
def show(name: str, form: str) -> None:
    """A suite with all defaults filled in, as TOML that can be saved and run.

    Its cases follow as comments; csv and md print the cases alone.
    """
    from kvbench.spec.cases import expand
    from kvbench.spec.effective import filled_in
    from kvbench.spec.load import load_suite
    from kvbench.spec.toml_write import to_toml

    loaded = load_suite(name)
    cases = expand(loaded.suite)
    columns = ["case_id", "kind", *dict.fromkeys(column for case in cases for column in case.axes)]
    records = [{"case_id": c.case_id, "kind": c.kind, **c.axes} for c in cases]
    if form == "table":
        counted = f"{len(cases)} {'case' if len(cases) == 1 else 'cases'}"
        click.echo(f"{to_toml(filled_in(loaded.suite))}\n{comment_table(counted, columns, records)}")
        return
    document = {"suite": filled_in(loaded.suite), "digest": loaded.digest, "cases": _as_data(cases)}
    emit_records(form, columns, records, document)


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
