"""What an earlier run folder says about itself: enough to go on with it by name alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvbench.errors import UsageError
from kvbench.spec.load import LoadedSuite, from_effective
from kvbench.store.run import open_run


def suite_of(run: Path) -> LoadedSuite:
    """The suite of a run with every override that it was started with."""
    suite = _plan(run)["suite"]
    return from_effective(suite["effective"], path=Path(suite["path"]), text=suite["text"])


def repetitions_of(run: Path) -> int:
    """Samples per case that the run was planned with."""
    return int(_plan(run)["repetitions"])


def auto_kv_bytes_of(run: Path) -> int | None:
    """What the run resolved `kv_memory = "auto"` to: the same for its later samples, however much is free by then."""
    found = _plan(run).get("auto_kv_memory_bytes")
    return found if isinstance(found, int) else None


def refuse_other_clock(run: Path, clock: str) -> None:
    """Predicted and measured times never share a run."""
    earlier = _plan(run).get("clock", "wall")
    if earlier != clock:
        raise UsageError(
            f"{run} was measured by the {earlier} clock and cannot go on by the {clock} clock",
            hint=f"start a new run, or go on with --clock {earlier}",
        )


def _plan(run: Path) -> dict[str, Any]:
    return open_run(run).plan
