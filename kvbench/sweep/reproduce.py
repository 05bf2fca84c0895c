"""A run again, from its manifest: planned as it was, what differs here said, refused where it cannot be the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench import __version__
from kvbench.errors import CannotRunError
from kvbench.measure.environment import capture
from kvbench.store.comparability import Comparability, FieldDifference, compare_manifests
from kvbench.store.comparability_rules import fits
from kvbench.store.manifest import build_manifest
from kvbench.store.parts import clean
from kvbench.store.run import Run
from kvbench.sweep.plan import SweepPlan
from kvbench.sweep.planner import make_plan
from kvbench.sweep.recorded import Source, read_source
from kvbench.sweep.run import run_plan

_MAY_DIFFER = (
    "system.**", "device.name", "device.memory_bytes", "engine_digest", "kernel_digest", "cost_model_code_digest",
    "kvbench_version", "repetitions", "schema_version",
)  # fmt: skip
"""The machine and the code: said, and compared afterwards under their names."""


@dataclass(frozen=True, slots=True)
class Again:
    """A reproduction that is planned: the source, the plan here, and how this machine and this code differ."""

    source: Source
    plan: SweepPlan
    differences: tuple[FieldDifference, ...]

    def run(self, out: Path) -> Run:
        """Measure it into a new folder under `out`."""
        return run_plan(self.plan, out=out)


def plan_again(path: Path, *, repetitions: int | None = None) -> Again:
    """Plan the run of a manifest or run folder once more. Raises `CannotRunError` (exit 4) where a setting would not be
    what it was (another kind of device, requests that changed) or memory is missing."""
    source = read_source(path)
    plan = make_plan(
        source.loaded,
        repetitions=repetitions or source.repetitions,
        auto_kv_bytes=source.recorded.auto_kv_bytes,
        recorded=source.recorded,
    )
    found = compare_manifests(source.manifest, _manifest_here(plan), vary=())
    _refuse(found)
    here = [d for d in found.differences if d.role != "noted" and not d.cases]
    return Again(source, plan, tuple(here))


def compared(source: Source, run: Run) -> Comparability:
    """The original and its reproduction; every difference was accepted by running it."""
    return compare_manifests(source.manifest, run.manifest, vary=())


def _manifest_here(plan: SweepPlan) -> dict[str, Any]:
    facts: dict[str, Any] = clean({**plan.to_dict(), "run_id": "", "created_at": None})
    return build_manifest({**facts, "kvbench_version": __version__}, environment=clean(capture()))


def _refuse(found: Comparability) -> None:
    """A setting that the manifest gives and this plan does not have makes another run."""
    lost = [d for d in found.refused if d.left is not None and not fits(tuple(d.field.split(".")), _MAY_DIFFER)]
    missing: Sequence[str] = found.left_only
    if missing:
        raise CannotRunError(
            f"{len(missing)} cases of the run are not made by its suite any more", hint="use the kvbench that wrote it"
        )
    if lost:
        shown = "; ".join(f"{d.field} was {d.left!r} and would be {d.right!r}" for d in lost[:4])
        raise CannotRunError(
            f"this machine cannot run the same again: {shown}"
            + (f"; and {len(lost) - 4} more" if len(lost) > 4 else ""),
            hint="run it on a machine of the same kind; kvbench manifest show has every setting",
        )
