"""What a run is, and one of its cases in full: facts as (name, value), for people and for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvbench.analysis.summary import CaseSummary, stored_warnings, summarise
from kvbench.errors import DataError
from kvbench.measure.warnings import text as warning_text
from kvbench.report.cells import metric_cell, setting_cell
from kvbench.report.choose import choose_case
from kvbench.store.case_columns import METRICS
from kvbench.store.listing import entry_of
from kvbench.store.run import Run
from kvbench.tabulate import one_line
from kvbench.units import format_bytes, format_duration

Facts = list[tuple[str, Any]]
_SECTIONS = ("model", "engine", "workload", "kernel", "measure", "slo")


def run_document(run: Run) -> dict[str, Any]:
    """The run as one object: what was asked, what was varied, how it ended, its files, and commands to go on with."""
    _check(run)
    entry, plan = entry_of(run.path), run.plan
    suite = plan["suite"]
    return {
        "run_id": run.run_id,
        "path": str(run.path),
        "suite": {name: suite.get(name) for name in ("name", "title", "claim", "path", "digest")},
        "state": entry.state,
        "created_at": plan.get("created_at"),
        "duration_s": entry.duration_s,
        "models": [str(name) for name in plan.get("models", {})],
        "device": (plan.get("device") or {}).get("name"),
        "threads": plan.get("threads"),
        "clock": plan.get("clock", "wall"),
        "varied": run.axes,
        "fixed": fixed_settings(plan),
        "cases": len(plan["cases"]),
        "repetitions": plan["repetitions"],
        "statuses": _statuses(run),
        "warnings": _warnings(run),
        "problems": list(run.problems),
        "files": dict(_files(run.path)),
        "next": _commands(run, entry.state),
    }


def run_facts(document: Mapping[str, Any]) -> Facts:
    """The same for people."""
    suite = document["suite"]
    asked = (("suite", suite["name"]), ("question", suite["title"]), ("claim", suite["claim"]))
    clock = "predicted by a cost model (virtual clock)" if document["clock"] == "virtual" else "measured (wall clock)"
    count = document["threads"]
    threads = f", {count} {'thread' if count == 1 else 'threads'}" if count else ""
    took = "" if document["duration_s"] is None else f", first to last sample {format_duration(document['duration_s'])}"
    facts: Facts = [("run", document["run_id"]), *asked]
    facts += [("model", ", ".join(document["models"])), ("device", f"{document['device']}{threads}"), ("times", clock)]
    facts.append(("when", f"{str(document['created_at'])[:16].replace('T', ' ')} UTC{took}"))
    facts += [("varied", _values(name, values)) for name, values in document["varied"].items()]
    facts += [("fixed", f"{name} = {_whole(name, value)}") for name, value in document["fixed"].items()]
    facts.append(("samples", f"{document['cases']} cases × {document['repetitions']}: {_counts(document['statuses'])}"))
    facts.append(("state", document["state"]))
    facts += [("warning", f"{name} ({count} samples)") for name, count in document["warnings"].items()]
    facts += [("damaged", text) for text in document["problems"]]
    facts += [("file", f"{name}  {format_bytes(size)}") for name, size in document["files"].items()]
    facts += [("go on", command) for command in document["next"]]
    return [(name, one_line(str(value))) for name, value in facts if value not in (None, "")]


def case_document(run: Run, wanted: str) -> dict[str, Any]:
    """One case in full, `wanted` as `choose_case` takes it; `UsageError` for none and for several."""
    _check(run)
    case = choose_case(run, wanted)
    rows = [row for row in run.case_rows if row["case_id"] == case["case_id"]]
    summary = next(iter(summarise(rows, list(METRICS))), None)
    return {
        "run_id": run.run_id,
        "case_id": case["case_id"],
        "kind": case.get("kind", "engine"),
        "clock": run.plan.get("clock", "wall"),
        "axes": case.get("axes", {}),
        "settings": _settings(case),
        "workload_digest": case.get("workload_digest"),
        "memory_bytes": case.get("memory_bytes"),
        "refusal": case.get("refusal"),
        "notes": case.get("notes") or [],
        "samples": [_sample(row) for row in rows],
        "metrics": _metrics(summary),
    }


def case_facts(document: Mapping[str, Any]) -> Facts:
    """The same for people, metrics with median and range."""
    virtual = " (predicted by a cost model)" if document["clock"] == "virtual" else ""
    facts: Facts = [("run", document["run_id"]), ("case", f"{document['case_id']}, {document['kind']}{virtual}")]
    facts += [("axis", f"{name} = {_whole(name, value)}") for name, value in document["axes"].items()]
    facts += [("setting", f"{name} = {_whole(name, value)}") for name, value in document["settings"].items()]
    memory = document["memory_bytes"]
    facts += [("memory", format_bytes(memory) if memory else None), ("skipped", document["refusal"])]
    facts += [("note", note) for note in document["notes"]]
    for sample in document["samples"]:
        facts.append(("sample", f"{sample['sample']}: {sample['status']}, {sample['finished_at']}"))
        facts += [("error", sample["error"]), *(("warning", text) for text in sample["warnings"])]
    facts += [("metric", _metric_line(name, found)) for name, found in document["metrics"].items()]
    return [(name, one_line(str(value))) for name, value in facts if value not in (None, "")]


def fixed_settings(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What the suite fixed itself, by dotted key; defaults are not repeated."""
    effective = plan["suite"].get("effective")
    if not isinstance(effective, Mapping):
        return {}
    found: dict[str, Any] = {}
    for section in _SECTIONS:
        for name, value in _leaves(effective.get(section)):
            found[f"{section}.{name}"] = value
    return found


def _check(run: Run) -> None:
    """`DataError` where the plan is not what a sweep writes."""
    plan = run.plan
    mappings = [plan.get("models", {}), plan.get("device") or {}]
    for case in plan["cases"]:
        mappings += [case.get(name) or {} for name in ("model", "engine", "workload", "kernel")]
    if not isinstance(plan.get("repetitions"), int) or not all(isinstance(one, Mapping) for one in mappings):
        raise DataError(f"{run.path / 'plan.json'} is not what kvbench writes", hint="the file is damaged")


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """A length or an arrival stays one value."""
    yield from value.items() if isinstance(value, Mapping) else ()


def _values(name: str, values: Sequence[Any]) -> str:
    return f"{name}: {', '.join(_whole(name, value) for value in values)}"


def _whole(name: str, value: Any) -> str:
    """A setting as tables have it, but never shortened."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else setting_cell(name, value)


def _statuses(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in run.case_rows:
        status = row["status"] or "unknown"
        found[status] = found.get(status, 0) + 1
    missing = len(run.plan["cases"]) * run.plan["repetitions"] - len(run.case_rows)
    return {**found, **({"not run": missing} if missing > 0 else {})}


def _counts(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in statuses.items()) or "none"


def _warnings(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in run.case_rows:
        for name in {name for name, _ in stored_warnings(row)}:
            found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def _files(path: Path) -> Iterator[tuple[str, int]]:
    for found in sorted(path.iterdir()):
        if found.is_file() and found.name != ".lock":
            yield found.name, found.stat().st_size
        elif found.is_dir() and not found.name.startswith("."):
            yield f"{found.name}/", sum(file.stat().st_size for file in found.rglob("*") if file.is_file())


def _commands(run: Run, state: str) -> list[str]:
    path = run.path
    more = f"kvbench sweep --resume {path} -r {run.plan['repetitions'] + 2}  # more samples"
    go_on = [f"kvbench sweep --resume {path}  # the rest"] if state == "unfinished" else []
    ready = [more] if state == "finished" else []
    other = [f"kvbench compare {path} OTHER", f"kvbench reproduce {path}"] if state == "finished" else []
    return [*go_on, f"kvbench report {path}", *ready, *other]


def _settings(case: Mapping[str, Any]) -> dict[str, Any]:
    names = ("kernel",) if case.get("kind") == "kernel" else ("model", "engine", "workload")
    sections = ((name, case.get(name)) for name in names)
    return {f"{name}.{key}": value for name, section in sections for key, value in (section or {}).items()}


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
    warnings = [warning_text(name, numbers) for name, numbers in stored_warnings(row)]
    told = {name: row.get(name) for name in ("sample", "status", "error", "started_at", "finished_at")}
    return {**told, "warnings": warnings}


def _metrics(summary: CaseSummary | None) -> dict[str, dict[str, Any]]:
    if summary is None:
        return {}
    return {
        name: {"median": found.median, "min": found.low, "max": found.high, "count": found.count}
        for name, found in summary.metrics.items()
    }


def _metric_line(name: str, found: Mapping[str, Any]) -> str:
    column = METRICS[name]
    low, middle, high = (metric_cell(found[key], column) for key in ("min", "median", "max"))
    return f"{name} {middle}" + (f"  ({low} to {high}, {found['count']} samples)" if found["count"] > 1 else "")
