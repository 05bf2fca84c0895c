"""Fits of runs, kept in the user's cache: fitting takes seconds, and a question about the same runs is often asked
again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.costmodel.fitted import FittedFile
from kvbench.costmodel.fitted_file import read_fitted, write_fitted
from kvbench.errors import KvbenchError
from kvbench.paths import cache_dir
from kvbench.store.files import digest_of
from kvbench.store.parts import PARTS
from kvbench.sweep.code_digest import fit_digest

if TYPE_CHECKING:
    from kvbench.store.run import Run


@dataclass(frozen=True, slots=True)
class KeptFit:
    """A fit with the error of each case that went into it: (run, case) → ln(measured / predicted) of its throughput."""

    file: FittedFile
    errors: Mapping[tuple[str, str], float]
    notes: tuple[str, ...]


def fit_of(runs: Sequence[Run]) -> KeptFit:
    """The fit of these runs: the kept one where the same code fitted the same runs, else a new one. Raises as
    `fit_runs` does."""
    folder = _place(runs)
    if folder is not None and (kept := _read(folder)) is not None:
        return kept
    found = _fitted(runs)
    if folder is not None:
        with suppress(OSError):  # a cache that cannot be written only costs time
            _write(folder, found)
    return found


def _fitted(runs: Sequence[Run]) -> KeptFit:
    from kvbench.analysis.fit import fit_runs
    from kvbench.sweep.advice.fit_errors import errors_of

    found = fit_runs(runs, name="recommend", draws=0)
    return KeptFit(found.file, errors_of(found), tuple(found.notes))


def _place(runs: Sequence[Run]) -> Path | None:
    """Where the fit of these runs is kept, by the digests of their manifests, which name those of all files; None while
    one of them is not sealed."""
    total = hashlib.sha256(fit_digest().encode())
    for run in runs:
        manifest, parts = run.path / "manifest.json", run.path / PARTS
        if not manifest.exists() or (parts.is_dir() and any(parts.iterdir())):
            return None
        total.update(f"{run.run_id} {digest_of(manifest)}\n".encode())
    return cache_dir() / "fits" / total.hexdigest()[:32]


def _read(folder: Path) -> KeptFit | None:
    """None where nothing whole is there."""
    if not folder.is_dir():
        return None
    try:
        more = json.loads((folder / "errors.json").read_text(encoding="utf-8"))
        errors = {(str(run), str(case)): float(error) for run, case, error in more["errors"]}
        return KeptFit(read_fitted(folder / "fitted.json"), errors, tuple(map(str, more["notes"])))
    except (KvbenchError, OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, found: KeptFit) -> None:
    """It appears whole: another process may look at the same time."""
    hidden = folder.parent / f".{folder.name}.{os.getpid()}"
    hidden.mkdir(parents=True, exist_ok=True)
    write_fitted(hidden / "fitted.json", found.file)
    errors = [[run, case, error] for (run, case), error in found.errors.items()]
    text = json.dumps({"errors": errors, "notes": list(found.notes)})
    (hidden / "errors.json").write_text(text, encoding="utf-8")
    try:
        hidden.rename(folder)
    except OSError:  # a damaged one lies there, or another process was first
        for name in ("fitted.json", "errors.json"):
            (hidden / name).replace(folder / name)
        hidden.rmdir()
