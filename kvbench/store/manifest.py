"""The manifest: everything that a run controlled, what surrounded it, and the digest of every file.

`controlled` is what decides a result: a difference between two runs is attributed to what differs there. `environment`
is noted (host name, kernel release …) and `volatile` differs between any two runs (times, readings, file digests).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kvbench.errors import DataError
from kvbench.store.case_columns import warning_names
from kvbench.store.parts import now
from kvbench.store.version import SCHEMA_VERSION

FieldClass = Literal["controlled", "environment", "volatile"]
CLASSES: tuple[FieldClass, ...] = ("controlled", "environment", "volatile")

_PLAN_VOLATILE = frozenset({"run_id", "created_at", "schema_version", "environment", "order", "argv", "out"})
_SUITE_VOLATILE = frozenset({"path"})


class Difference(NamedTuple):
    """One field in which two manifests differ; None stands for a field that one side lacks."""

    field_class: FieldClass
    field: str
    left: Any
    right: Any


def build_manifest(
    plan: Mapping[str, Any],
    *,
    rows: Iterable[Mapping[str, Any]] = (),
    files: Mapping[str, str] | None = None,
    workloads: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`plan` as in plan.json, `rows` the case rows that count, `files` name → sha256, `workloads` digest → its
    lengths. `environment` (by default the plan's) is {"controlled", "environment", "volatile"} of the machine."""
    rows = list(rows)
    found = environment if environment is not None else plan.get("environment", {})
    controlled = {key: value for key, value in plan.items() if key not in _PLAN_VOLATILE}
    suite = plan.get("suite")
    if isinstance(suite, Mapping):
        controlled["suite"] = {key: value for key, value in suite.items() if key not in _SUITE_VOLATILE}
    controlled["workloads"] = _merged(plan.get("workloads", {}), workloads or {})
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": plan["run_id"],
        "controlled": {**controlled, "system": found.get("controlled", {})},
        "environment": dict(found.get("environment", {})),
        "volatile": {
            "created_at": plan.get("created_at"),
            "sealed_at": now(),
            "order": _order(rows),
            "planned_order": plan.get("order"),
            "statuses": _statuses(rows),
            "warnings": _warnings(rows),
            "readings": found.get("volatile", {}),
            **({"suite_path": suite["path"]} if isinstance(suite, Mapping) and "path" in suite else {}),
            **({"argv": plan["argv"]} if "argv" in plan else {}),
        },
        "files": dict(files or {}),
    }


def check_shape(manifest: Mapping[str, Any], name: str) -> None:
    """`DataError` unless the classes and the file digests are where they belong."""
    for section in (*CLASSES, "files"):
        if not isinstance(manifest.get(section), Mapping):
            raise DataError(f"{name} has no section {section!r}", hint="it is not a manifest, or is damaged")
    controlled = manifest["controlled"]
    groups = ("suite", "system", "workloads", "models", "measure")
    sound = all(isinstance(controlled.get(group, {}), Mapping) for group in groups)
    lists = [controlled.get(group, []) for group in ("cases", "earlier_systems")]
    if not sound or not all(isinstance(entries, list) for entries in lists) or not _are_whole(*lists):
        raise DataError(f"{name}: what it says of the suite, the cases or the machine is damaged", hint="it was edited")


def _are_whole(cases: list[Any], systems: list[Any]) -> bool:
    return all(map(_is_case, cases)) and all(isinstance(system, Mapping) for system in systems)


def _is_case(case: Any) -> bool:
    whole = isinstance(case, Mapping) and isinstance(case.get("case_id"), str)
    return whole and isinstance(case.get("axes", {}), Mapping)


def workload_summary(table: pa.Table) -> dict[str, Any]:
    """Digest → the realised lengths and arrivals of each distinct workload."""
    found = {}
    for digest in pc.unique(table["workload_digest"]).to_pylist():
        rows = table.filter(pc.equal(table["workload_digest"], digest))
        span = pc.max(rows["arrival_s"]).as_py() or 0.0
        found[digest] = {
            "requests": rows.num_rows,
            "input_tokens": _distribution(rows["input_tokens"]),
            "output_tokens": _distribution(rows["output_tokens"]),
            "arrival_span_s": span,
            "requests_per_s": (rows.num_rows - 1) / span if span else None,
        }
    return found


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    """Every field in which two manifests differ, the controlled ones first."""
    found = []
    for name in CLASSES:
        sections = [_comparable(manifest, name) for manifest in (left, right)]
        sides = [_flat(_with_lone_entries_named(*pair)) for pair in (sections, sections[::-1])]
        for field in sorted(sides[0].keys() | sides[1].keys()):
            values = [side.get(field) for side in sides]
            if values[0] != values[1]:
                found.append(Difference(name, field, *values))
    return found


def flat_fields(manifest: Mapping[str, Any]) -> list[tuple[FieldClass, str, Any]]:
    """(class, dotted field, value) of everything in a manifest, file digests last."""
    found: list[tuple[FieldClass, str, Any]] = [
        (name, field, value) for name in CLASSES for field, value in _flat(_listed(manifest.get(name, {}))).items()
    ]
    return found + [("volatile", f"files.{name}", digest) for name, digest in manifest.get("files", {}).items()]


def _with_lone_entries_named(section: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The section in which a case or workload that `other` lacks is one line instead of all its fields."""
    named = dict(section)
    for group in ("cases", "workloads"):
        entries, others = section.get(group), other.get(group)
        if isinstance(entries, Mapping) and isinstance(others, Mapping):
            named[group] = {key: value if key in others else _named(value) for key, value in entries.items()}
    return named


def _named(entry: Any) -> str:
    facts = entry if isinstance(entry, Mapping) else {}
    requests = facts.get("requests")
    return str(facts.get("label") or ("there" if requests is None else f"{requests} requests"))


def _comparable(manifest: Mapping[str, Any], name: FieldClass) -> Any:
    """The class without what only repeats a digest (the suite's text), and with cases by their id."""
    section = dict(manifest.get(name, {}))
    if name == "volatile":
        return {**section, "run_id": manifest.get("run_id"), "files": manifest.get("files", {})}
    suite = section.get("suite")
    if isinstance(suite, Mapping) and "digest" in suite:
        section["suite"] = {key: value for key, value in suite.items() if key != "text"}
    cases = section.get("cases")
    if isinstance(cases, list) and all(isinstance(case, Mapping) and "case_id" in case for case in cases):
        section["cases"] = {case["case_id"]: case for case in cases}
    return section


def flat_paths(value: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of every leaf; the entries of a list of objects (GPUs, layer groups) are numbered."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        value = {str(number): item for number, item in enumerate(value)}
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat_paths(item, (*prefix, str(key)))
    elif prefix:
        yield prefix, value


def _flat(value: Any) -> dict[str, Any]:
    return {".".join(path): leaf for path, leaf in flat_paths(value)}


def _listed(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section with one line per case: its settings are in the suite."""
    cases = section.get("cases")
    named = isinstance(cases, list) and all(isinstance(case, Mapping) and "case_id" in case for case in cases)
    return {**section, "cases": {c["case_id"]: _named(c) for c in cases or ()}} if named else dict(section)


def _merged(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {**left.get(key, {}), **right.get(key, {})} for key in [*left, *(k for k in right if k not in left)]}


def _order(rows: list[Mapping[str, Any]]) -> list[list[Any]]:
    done = sorted(rows, key=lambda row: str(row.get("finished_at")))
    return [[row["case_id"], row["sample"], row.get("finished_at")] for row in done]


def _statuses(rows: list[Mapping[str, Any]]) -> dict[str, int]:
    names = [str(row.get("status")) for row in rows]
    return {name: names.count(name) for name in sorted(set(names))}


def _warnings(rows: list[Mapping[str, Any]]) -> dict[str, int]:
    """Name → samples that carry the warning; the rows have its numbers."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update(warning_names(row.get("warnings")))
    return dict(sorted(found.items()))


def _distribution(values: pa.ChunkedArray) -> dict[str, float]:
    low, middle, high, top = pc.quantile(values, q=[0.0, 0.5, 0.9, 1.0]).to_pylist()
    return {"min": low, "p50": middle, "mean": pc.mean(values).as_py(), "p90": high, "max": top}
