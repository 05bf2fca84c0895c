"""`kvbench show`: what a run is, or one of its cases in full."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import CASE_NAMES, Table, emit, format_option


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--case", "case_id", metavar="CASE", help=f"One case in full, {CASE_NAMES}.")
@format_option
def show(run: Path, case_id: str | None, form: str) -> None:
    """What the run in folder RUN is: its question, model, device, settings, how it ended, its files, how to go on.

    With --case, everything that is known of one case: settings, every sample with its warnings, every metric.
    """
    from kvbench.report.show import case_document, case_facts, run_document, run_facts
    from kvbench.store.run import open_run

    opened = open_run(run)
    document = run_document(opened) if case_id is None else case_document(opened, case_id)
    facts = run_facts(document) if case_id is None else case_facts(document)
    columns = ("about", "value")
    records = [dict(zip(columns, fact, strict=True)) for fact in facts]
    shown = [("" if at and facts[at - 1][0] == name else name, value) for at, (name, value) in enumerate(facts)]
    rows = facts if form == "md" else shown
    emit(form, tables=[Table("", columns, rows)], columns=columns, records=records, document=document)
