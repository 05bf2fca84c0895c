"""A digest of the code that decides a case's numbers: a sample taken by other code is not the same sample (M04)."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOMS = ("cache", "engine", "geometry", "measure", "workload")


@cache
def engine_digest() -> str:
    """sha256 over the sources of the rooms that run a case, the kernels apart."""
    root = Path(__file__).resolve().parent.parent
    return _digest(root, [path for room in ROOMS for path in sorted((root / room).rglob("*.py"))])


@cache
def cost_model_digest() -> str:
    """sha256 over the sources of the cost model."""
    root = Path(__file__).resolve().parent.parent
    return _digest(root, sorted((root / "costmodel").rglob("*.py")))


@cache
def fit_digest() -> str:
    """sha256 over the sources that fit a cost model."""
    root = Path(__file__).resolve().parent.parent
    fitting = [root / "analysis" / name for name in ("fit.py", "fit_data.py", "nonnegative.py", "slowed.py")]
    return _digest(root, [*sorted((root / "costmodel").rglob("*.py")), *fitting, root / "sweep/advice/fit_errors.py"])


@cache
def kernel_digest() -> str:
    """sha256 over the sources of `kvbench_kernels`, found without importing it (and with it numba)."""
    spec = find_spec("kvbench_kernels")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("kvbench_kernels is not installed beside kvbench")
    root = Path(spec.submodule_search_locations[0])
    return _digest(root, sorted(root.rglob("*.py")))


def _digest(root: Path, paths: list[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
