"""What a manifest settled: enough to plan the same run again, on this machine or another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvbench.errors import CannotRunError, DataError
from kvbench.spec.cases import Case
from kvbench.spec.load import LoadedSuite, from_effective
from kvbench.store.run import Run, open_run, read_manifest
from kvbench.store.stored_workload import stored_workload
from kvbench.workload.build import Workload

Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The answers that a plan would otherwise look for on the machine: threads, models, requests."""

    threads: int
    auto_kv_bytes: int | None
    models: dict[Place, str] = field(default_factory=dict)
    """Place of a case in the suite → the model that it had"""
    workloads: dict[Place, Workload] = field(default_factory=dict)
    folder: str | None = None
    """The run that holds the requests"""

    def model_of(self, case: Case) -> str | None:
        return self.models.get(place_of(case.kind, case.axes))

    def workload_of(self, case: Case) -> Workload | None:
        return self.workloads.get(place_of(case.kind, case.axes))


@dataclass(frozen=True, slots=True)
class Source:
    """A manifest, the run that it belongs to where there is one, and what to run again."""

    manifest: dict[str, Any]
    run: Run | None
    loaded: LoadedSuite
    recorded: Recorded
    repetitions: int


def place_of(kind: str, axes: Mapping[str, Any]) -> Place:
    """Where a case stands in its suite: ids may change from one version of kvbench to the next."""
    return kind, repr(sorted(axes.items(), key=str))


def read_source(path: Path) -> Source:
    """A run folder, or a manifest, in its folder or apart. Raises `UsageError` for one of a newer kvbench, `DataError`
    for one that is damaged, `CannotRunError` where requests came from a trace that is not there."""
    run, manifest = _opened(path)
    try:
        controlled = manifest["controlled"]
        suite = controlled["suite"]
        where = manifest["volatile"].get("suite_path") or path
        loaded = from_effective(suite["effective"], path=Path(where), text=suite["text"])
        threads, repetitions = int(controlled["threads"]), int(controlled["repetitions"])
        cases = [_facts(case) for case in controlled["cases"]]
        auto = controlled.get("auto_kv_memory_bytes")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is not a whole manifest: {error!r}", hint="it was edited, or is damaged") from None
    if loaded.digest != suite.get("digest"):
        raise DataError(f"{path}: the suite is not the one of its digest", hint="the manifest was edited")
    models = {place: name for place, name, _, _ in cases if name}
    known = {p: stored_workload(run, d, settings["arrival"]) for p, _, d, settings in cases if d and run}
    if run is None:
        _check_traces(cases)
    return Source(
        manifest,
        run,
        loaded,
        Recorded(threads, auto, models, known, str(run.path.resolve()) if run else None),
        repetitions,
    )


def _opened(path: Path) -> tuple[Run | None, dict[str, Any]]:
    if not path.is_file():
        run = open_run(path)
        return run, run.manifest
    manifest = read_manifest(path)
    if (path.parent / "plan.json").exists():
        run = open_run(path.parent)
        if run.run_id == manifest.get("run_id"):
            return run, manifest
    return None, manifest


def _facts(case: Mapping[str, Any]) -> tuple[Place, str | None, str | None, dict[str, Any]]:
    model, workload = case.get("model") or {}, case.get("workload") or {}
    return place_of(case["kind"], case["axes"]), model.get("name"), case.get("workload_digest"), dict(workload)


def _check_traces(cases: list[tuple[Place, str | None, str | None, dict[str, Any]]]) -> None:
    for _, _, _, settings in cases:
        trace = settings.get("trace")
        if settings.get("source") == "trace" and trace and not Path(trace).expanduser().exists():
            raise CannotRunError(
                f"the requests came from {trace}, which is not here, and a manifest alone does not hold them",
                hint="give the run folder: its workload.parquet does, or put the trace back",
            )
