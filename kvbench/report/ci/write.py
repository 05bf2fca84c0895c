"""A verdict into files: the ending of a name chooses the form. Also the summary of a GitHub job."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kvbench.analysis.gate.types import SuiteVerdict
from kvbench.errors import UsageError
from kvbench.report.ci.annotations import annotation_lines
from kvbench.report.ci.context import GateContext
from kvbench.report.ci.data import json_document, verdict_table
from kvbench.report.ci.junit import junit_xml
from kvbench.report.ci.markdown import markdown_summary
from kvbench.store import files
from kvbench.tabulate import as_json

SUMMARY = "GITHUB_STEP_SUMMARY"
Writer = Callable[[SuiteVerdict, GateContext, Path], None]


def _text(make: Callable[[SuiteVerdict, GateContext], str]) -> Writer:
    def write(verdict: SuiteVerdict, context: GateContext, path: Path) -> None:
        path.write_text(make(verdict, context), encoding="utf-8", errors="replace")

    return write


def _parquet(verdict: SuiteVerdict, context: GateContext, path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(verdict_table(verdict, context), path, compression="zstd")


WRITERS: dict[str, Writer] = {
    ".md": _text(markdown_summary),
    ".xml": _text(junit_xml),
    ".json": _text(lambda verdict, context: as_json(json_document(verdict, context)) + "\n"),
    ".parquet": _parquet,
}


def check_paths(paths: Sequence[Path]) -> None:
    """`UsageError` for a name whose ending no writer has; before anything is measured."""
    for path in paths:
        if path.suffix not in WRITERS:
            raise UsageError(f"{path}: no form has this ending", hint=f"one of {', '.join(WRITERS)}")


def write_verdict(verdict: SuiteVerdict, context: GateContext, paths: Sequence[Path]) -> None:
    """Write the verdict into every path. `UsageError` where one cannot be written."""
    check_paths(paths)
    for path in paths:
        with files.write_errors(path):
            files.make_folder(path.parent)
            WRITERS[path.suffix](verdict, context, path)


def tell_github(verdict: SuiteVerdict, context: GateContext) -> list[str]:
    """The lines of annotations, after the Markdown went to the job's summary where GitHub names its file."""
    path = os.environ.get(SUMMARY)
    if path:
        with files.write_errors(Path(path)), Path(path).open("a", encoding="utf-8", errors="replace") as file:
            file.write(markdown_summary(verdict, context))
    return annotation_lines(verdict, context)
