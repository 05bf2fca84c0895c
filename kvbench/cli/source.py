"""A trace FILE or a SUITE on the command line: the options that shape its requests, and the workloads themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kvbench.spec.workload import WorkloadSettings
    from kvbench.workload.types import Workload

Command = TypeVar("Command", bound=Callable[..., Any])
_OPTIONS = (
    click.argument("source", metavar="FILE|SUITE"),
    click.option(
        "--trace-format",
        "format",
        help="Format of the trace: auto, azure, mooncake, bailian, burstgpt, vidur or jsonl.",
    ),
    click.option("--limit", type=int, help="Only the first so many requests of the trace."),
    click.option("--scale-time", type=float, help="Multiply recorded arrivals; 0.5 is twice the load."),
    click.option("--scale-tokens", metavar="RATIO", help="Multiply lengths and hash blocks together, as in 1/16."),
    click.option("--max-input-tokens", type=int, help="Clip longer prompts, and count them."),
    click.option("--max-output-tokens", type=int, help="Clip longer outputs, and count them."),
    click.option("--seed", type=int, help="Seed of whatever is drawn."),
)
OPTION_NAMES = (
    "format", "limit", "scale_time", "scale_tokens", "max_input_tokens", "max_output_tokens", "seed",
)  # fmt: skip


def source_options(command: Command) -> Command:
    """The argument `source` and the options of `workloads_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def workloads_of(source: str, options: dict[str, Any]) -> list[Workload]:
    """The workload of a trace, or every different one of a suite's cases, with the given options applied."""
    if not source.strip():
        raise click.BadParameter("give the path of a trace or the name of a suite", param_hint="FILE|SUITE")
    changes = {name: options[name] for name in OPTION_NAMES if options[name] is not None}
    return _of_trace(source, changes) if _is_trace(source) else _of_suite(source, changes)


def _is_trace(source: str) -> bool:
    """A path that exists and is no suite; a name with a folder or the ending of a trace is meant as one."""
    path = Path(source).expanduser()
    if path.suffix == ".toml":
        return False
    return path.exists() or "/" in source or path.suffix in (".csv", ".jsonl", ".gz")


def _of_trace(source: str, changes: dict[str, Any]) -> list[Workload]:
    """Recorded arrivals where the trace has them."""
    from kvbench.errors import UsageError
    from kvbench.workload.build import trace_of, workload_from_trace

    settings = _settings({"source": "trace", "trace": source, "arrival": {"kind": "recorded"}}, changes)
    trace = trace_of(settings)
    if not trace.has_arrivals:
        if "scale_time" in changes:
            raise UsageError(f"--scale-time: {source} records no arrivals", hint="leave --scale-time out")
        settings = _settings(settings.model_dump() | {"arrival": {"kind": "all-at-once"}}, {})
    return [workload_from_trace(trace, settings)]


def _of_suite(source: str, changes: dict[str, Any]) -> list[Workload]:
    """Every different workload of the suite's cases, in their order."""
    from kvbench.errors import UsageError
    from kvbench.spec.cases import expand
    from kvbench.spec.load import load_suite
    from kvbench.workload.build import build_workload

    found = [case.workload for case in expand(load_suite(source).suite) if case.workload is not None]
    if not found:
        raise UsageError(f"suite {source} has no workload", hint="it times kernels only")
    different = {settings.model_dump_json(): settings for settings in found}
    return [build_workload(_changed(settings, changes)) for settings in different.values()]


def _changed(settings: WorkloadSettings, changes: dict[str, Any]) -> WorkloadSettings:
    from kvbench.errors import UsageError

    for_traces = sorted({"format", "limit", "scale_time", "scale_tokens"} & changes.keys())
    if settings.source == "synthetic" and for_traces:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in for_traces).replace("--format", "--trace-format")
        raise UsageError(f"{names}: only for traces, and this workload is synthetic", hint="leave it out")
    if settings.arrival.kind != "recorded" and "scale_time" in changes:
        raise UsageError("--scale-time: only for recorded arrivals", hint="leave it out")
    return _settings(settings.model_dump(), changes)


def _settings(base: dict[str, Any], changes: dict[str, Any]) -> WorkloadSettings:
    from pydantic import ValidationError

    from kvbench.spec.problems import SuiteError
    from kvbench.spec.translate import problems_of
    from kvbench.spec.workload import WorkloadSettings

    try:
        return WorkloadSettings.model_validate(base | changes)
    except ValidationError as error:
        raise SuiteError(problems_of(error, WorkloadSettings, "workload"), what="the workload") from None
