"""`kvbench suites`: what ships, what a suite would run, and which keys there are."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import comment_table, emit_records, format_option

if TYPE_CHECKING:
    from kvbench.spec.cases import Case
    from kvbench.spec.load import LoadedSuite


@click.group()
def suites() -> None:
    """Suites that ship, one in full, presets of systems, the JSON Schema."""


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
@format_option
def presets(form: str) -> None:
    """Values of engine.preset: what each sets, where that is described, and what it cannot reproduce."""
    from kvbench.spec.presets import PRESETS

    records = [
        {
            "preset": name,
            "settings": ", ".join(f"{key} = {_toml(value)}" for key, value in preset.settings.items()),
            "source": preset.source,
            "cannot": preset.cannot,
        }
        for name, preset in PRESETS.items()
    ]
    document = [{"preset": name, **asdict(preset)} for name, preset in PRESETS.items()]
    if form == "table":
        click.echo("\n\n".join(_preset_text(record) for record in records))
        return
    emit_records(form, ["preset", "settings", "source", "cannot"], records, document)


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


def _toml(value: Any) -> str:
    from kvbench.spec.toml_write import toml_value

    return toml_value(value)


def _preset_text(record: dict[str, str]) -> str:
    names = {"settings": "sets", "source": "source", "cannot": "cannot"}
    lines = (
        textwrap.fill(record[key], 110, initial_indent=f"  {name:<8}", subsequent_indent=" " * 10)
        for key, name in names.items()
    )
    return "\n".join([record["preset"], *lines])
