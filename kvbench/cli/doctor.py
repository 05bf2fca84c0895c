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
    rows = [(f.severity, f.check, f.evidence, f.remedy) for f in findings]
    counts = {name: sum(f.severity == name for f in findings) for name in SEVERITIES}
    footer = " · ".join(f"{count} {name}" for name, count in counts.items())
    records = [asdict(f) for f in findings]
    emit(
        form,
        document={"findings": records, "counts": counts, "machine": state},
        tables=[
            Table("What would make numbers bad here", ("severity", "check", "evidence", "remedy"), rows, footer=footer)
        ],
        records=records,
    )
