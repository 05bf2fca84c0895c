"""A tuning of a planted kernel, small enough for a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvbench.tune.progress import TuneProgress
from kvbench.tune.run import Outcome, Tuning
from kvbench.tune.session import Session
from kvbench.tune.tunable import make_tunable
from kvbench.tuned.source import compiler_version, source_digest
from kvbench_kernels.specs import KernelShape
from tests.tune.planted import SHAPE

DEVICE = "test CPU, 1 thread"


def tuning(
    tmp_path: Path,
    kernel: str = "Planted",
    *,
    module: str = "planted",
    shapes: Sequence[KernelShape] = (SHAPE,),
    session: Session | None = None,
    **plan: Any,
) -> Tuning:
    reference = f"tests.tune.{module}:{kernel}"
    tunable = make_tunable(reference)
    settings: dict[str, Any] = {
        "kernel": tunable.name,
        "source": source_digest(tunable.page),
        "compiler": compiler_version(tunable.compiler),
        "device": DEVICE,
        "shapes": [asdict(shape) for shape in shapes],
        "strategy": "exhaustive",
        "trials": None,
        "seconds": None,
        "seed": 0,
        "rounds": 3,
        "timeout_s": 5.0,
        "threads": 1,
    }
    session = session or Session.create(tmp_path, {**settings, **plan}, "tune")
    return Tuning(tunable, reference, list(shapes), DEVICE, 1, session, store=tmp_path / "store")


def run(found: Tuning) -> list[Outcome]:
    with TuneProgress() as progress:
        return found.run(progress)
