"""A verdict into files: the ending of a name chooses the form. Also the summary of a GitHub job."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kvbench.analysis.gate.types import SuiteVerdict
from kvbench.errors import UsageError
from kvbench.report.ci.annotations import annotation_lines
from kvbench.report.ci.context import GateContext
from kvbench.report.ci.data import FORMAT, is_verdict_table, json_document, verdict_table
from kvbench.report.ci.junit import junit_xml
from kvbench.report.ci.markdown import markdown_summary
from kvbench.store import files
from kvbench.store.targets import Target, begins_with, check_target, json_target, writing
from kvbench.tabulate import as_json

SUMMARY = "GITHUB_STEP_SUMMARY"
_OPTION = "--write"


class Form(NamedTuple):
    """How a verdict is written, and how an earlier one in the same form is known."""

    write: Callable[[SuiteVerdict, GateContext, BinaryIO], None]
    target: Target


def _text(make: Callable[[SuiteVerdict, GateContext], str], target: Target) -> Form:
    return Form(lambda verdict, context, file: _put(file, make(verdict, context)), target)


def _put(file: BinaryIO, text: str) -> None:
    file.write(text.encode("utf-8", "replace"))


def _target(is_ours: Callable[[Path], bool]) -> Target:
    return Target("verdict of a gate in this form", is_ours, _OPTION, makes_folder=True)


def _parquet(verdict: SuiteVerdict, context: GateContext, file: BinaryIO) -> None:
    import pyarrow.parquet as pq

    pq.write_table(verdict_table(verdict, context), file, compression="zstd")


FORMS: dict[str, Form] = {
    ".md": _text(markdown_summary, _target(begins_with(b"## kvbench gate ", within=16))),
    ".xml": _text(
        junit_xml, _target(begins_with(b'<testsuite name="kvbench gate ', b"<testsuite name='kvbench gate "))
    ),
    ".json": _text(
        lambda verdict, context: as_json(json_document(verdict, context)) + "\n",
        json_target(FORMAT, _OPTION, makes_folder=True),
    ),
    ".parquet": Form(_parquet, _target(is_verdict_table)),
}


def check_paths(paths: Sequence[Path]) -> None:
    """Before anything is measured: `UsageError` for a name whose ending no form has, and for
    one that cannot be written or holds something else than an earlier verdict."""
    for path in paths:
        if path.suffix not in FORMS:
            raise UsageError(f"{path}: no form has this ending", hint=f"one of {', '.join(FORMS)}")
        check_target(path, FORMS[path.suffix].target)


def write_verdict(verdict: SuiteVerdict, context: GateContext, paths: Sequence[Path]) -> None:
    """Write the verdict into every path, each whole or not at all. `UsageError` where one cannot be written."""
    check_paths(paths)
    for path in paths:
        form = FORMS[path.suffix]
        with writing(path, form.target) as file:
            form.write(verdict, context, file)


def tell_github(verdict: SuiteVerdict, context: GateContext) -> list[str]:
    """The lines of annotations, after the Markdown went to the job's summary where GitHub names its file."""
    path = os.environ.get(SUMMARY)
    if path:
        with files.write_errors(Path(path)), Path(path).open("a", encoding="utf-8", errors="replace") as file:
            file.write(markdown_summary(verdict, context))
    return annotation_lines(verdict, context)
