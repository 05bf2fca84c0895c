"""A cache folder of a test's own, with the machine's compiled kernels in it: compiling them takes seconds each."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.paths import cache_dir


def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compiled, folder = cache_dir() / "numba", tmp_path / "cache"
    compiled.mkdir(parents=True, exist_ok=True)
    folder.mkdir()
    (folder / "numba").symlink_to(compiled, target_is_directory=True)
    monkeypatch.setenv("KVBENCH_CACHE_DIR", str(folder))
    return folder
