"""`kvbench doctor`: what would make numbers bad on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from kvbench.cli.output import Table, emit, format_option


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Results folder to check.  [results]")
@format_option
def doctor(form: str, out: Path | None) -> None:
    """Look at load, clocks, memory, quotas, folders and GPUs, and say what would spoil a measurement.

    Exit 0 whenever it could look: warnings are not failures. JSON also holds everything that was read.
    """
    from kvbench.measure.checks import SEVERITIES, examine
    from kvbench.measure.environment import capture
    from kvbench.paths import default_results_dir

    state = capture()
    findings = examine(state, out or default_results_dir())
    columns = ("severity", "check", "evidence", "remedy")
    records = [asdict(f) for f in findings]
    rows = [[record[name] for name in columns] for record in records]
    counts = {name: sum(f.severity == name for f in findings) for name in SEVERITIES}
    footer = " · ".join(f"{count} {name}" for name, count in counts.items())
    emit(
        form,
        tables=[Table("What would make numbers bad here", columns, rows, footer=footer)],
        columns=columns,
        records=records,
        document={"findings": records, "counts": counts, "machine": state},
    )
