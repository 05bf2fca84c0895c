"""Versions, environment variables and the checkout: what software a number came from. Imports none of it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from kvbench import __version__

PACKAGES = {
    "torch": ("torch",),
    "triton": ("triton", "pytorch-triton", "triton-windows"),
    "numba": ("numba",),
    "llvmlite": ("llvmlite",),
    "numpy": ("numpy",),
    "cuda_runtime": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
    "cudnn": ("nvidia-cudnn", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}
"""Name in the manifest → distributions that provide it, the first one installed counts."""

PREFIXES = (
    "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "CUDA_", "CUBLAS_", "TRITON_", "NCCL_", "NUMBA_", "OMP_", "GOMP_", "MKL_",
    "KMP_", "OPENBLAS_", "NUMEXPR_", "VECLIB_", "CUDNN_", "MALLOC_", "TCMALLOC_", "MIMALLOC_", "JEMALLOC_",
)  # fmt: skip
NAMES = frozenset({"GLIBC_TUNABLES", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHASHSEED", "PYTHONMALLOC"})
WHERE_ONLY = ("_DIR", "_HOME", "_PATH")
"""Variables with these endings say where files lie: noted, and no reason to refuse a comparison."""


def versions() -> dict[str, str | None]:
    """Python, kvbench and the packages that decide speed; None for what is not installed."""
    python = {"python": platform.python_version(), "python_implementation": platform.python_implementation()}
    return {**python, "kvbench": __version__, **{name: _version(names) for name, names in PACKAGES.items()}}


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables that change speed or memory, sorted by name."""
    found = os.environ if environ is None else environ
    return {k: v for k, v in sorted(found.items()) if _matters(k) and not k.endswith(WHERE_ONLY)}


def location_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of the same families that only say where files lie."""
    found = os.environ if environ is None else environ
    return {k: v for k, v in sorted(found.items()) if _matters(k) and k.endswith(WHERE_ONLY)}


def checkout(root: Path | None = None) -> dict[str, Any]:
    """Git commit and dirtiness of the checkout that kvbench runs from; None for an installed wheel.

    Untracked files do not count as dirt. Takes no lock, so that it disturbs no other git command.
    """
    folder = root or Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return {"git_commit": None, "git_dirty": None}
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"git_commit": commit or None, "git_dirty": None if status is None else bool(status)}


def _matters(name: str) -> bool:
    return name in NAMES or name.startswith(PREFIXES)


def _version(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return metadata.version(name)
        except (metadata.PackageNotFoundError, OSError, ValueError):
            continue
    return None


def _git(folder: Path, *arguments: str) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, timeout=10, check=False, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
