"""Sealed runs made of given numbers, written at once: for tests that read runs by the hundred samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kvbench.store import files
from kvbench.store.manifest import build_manifest, workload_summary
from kvbench.store.run_folder import RunFolder
from kvbench.store.schemas import schema, table_of
from tests.store.samples import case_id, plan

SYSTEM = {
    "controlled": {
        "versions": {"python": "3.11", "torch": "2.13", "kvbench": "0.1"},
        "driver": {"version": "570"},
        "gpus": [{"name": "H200", "uuid": "GPU-1", "power_limit_w": 700.0}],
        "kvbench": {"git_commit": "a" * 40, "git_dirty": False},
    },
    "environment": {"host": {"host_name": "one"}},
    "volatile": {},
}
Value = Callable[[int, int], float | None]


def stored_run(
    out: Path,
    values: Mapping[str, Value],
    *,
    cases: int = 3,
    samples: int = 10,
    kind: str = "engine",
    change: Callable[[dict[str, Any]], None] | None = None,
    row: Callable[[int, int], dict[str, Any]] | None = None,
) -> Path:
    """A sealed run; `values` maps a metric to (case, sample) → value, `row` adds to a row, `change` edits the plan."""
    facts = plan(cases, samples, clock="wall", environment=copy.deepcopy(SYSTEM))
    for n, case in enumerate(facts["cases"]):
        case |= {"kind": kind, "label": f"block_size={8 * (n + 1)}", kind: {"block_size": 8 * (n + 1)}}
    if change is not None:
        change(facts)
    with RunFolder.create(out, facts) as folder:
        rows = [
            _row(folder.run_id, case, n, number, values, row)
            for number in range(samples)
            for n, case in enumerate(facts["cases"])
        ]
        _seal(folder, rows)
        return folder.path


def _row(
    run_id: str, case: dict[str, Any], n: int, number: int, values: Mapping[str, Value], extra: Any
) -> dict[str, Any]:
    keys = {"run_id": run_id, "case_id": case["case_id"], "sample": number, "fingerprint": case["fingerprint"]}
    known = {"kind": case["kind"], "status": "ok", "clock": "wall", "warnings": "[]", **case["axes"]}
    metrics = {name: value(n, number) for name, value in values.items()}
    return {**keys, **known, **metrics, **(extra(n, number) if extra else {})}


def _seal(folder: RunFolder, rows: list[dict[str, Any]]) -> None:
    path, digests = folder.path, {"plan.json": files.digest_of(folder.path / "plan.json")}
    axes = {"block_size": [case["axes"]["block_size"] for case in folder.plan["cases"] if case["axes"]]}
    tables = {"cases": table_of(rows, schema("cases", folder.run_id, axes))}
    tables |= {name: schema(name, folder.run_id).empty_table() for name in ("requests", "steps", "workload")}
    for name, table in tables.items():
        pq.write_table(table, path / f"{name}.parquet")
        digests[f"{name}.parquet"] = files.digest_of(path / f"{name}.parquet")
    found = build_manifest(folder.plan, rows=rows, files=digests, workloads=workload_summary(tables["workload"]))
    (path / "manifest.json").write_bytes(files.to_json(found))


__all__ = ["SYSTEM", "case_id", "stored_run"]
