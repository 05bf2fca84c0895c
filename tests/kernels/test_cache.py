"""The compiled-kernel cache: found again by the next process, and never stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvbench_kernels
from kvbench_kernels.cache import source_digest, use_cache

PACKAGE = Path(kvbench_kernels.__file__).parent
CHILD = """
import sys
import numpy as np
import kvbench_kernels
folder = kvbench_kernels.use_cache(sys.argv[1])
from kvbench_kernels.gather_numba import gather
pool = np.arange(32, dtype=np.float32)
out = np.zeros((1, 4, 2), np.float32)
before = kvbench_kernels.compiled_variants()
gather(pool, None, np.array([1], np.int32), 0, out, out.copy(), 4, 16, 8, 16, 0, 0, 4, 1, 1)
hits = sum(gather.stats.cache_hits.values())
print(out[0, 0, 0], hits, kvbench_kernels.compiled_variants() - before, folder.name)
"""


def run_child(packages: Path, root: Path) -> list[str]:
    """What the child prints: first value gathered, cache hits, new variants, folder."""
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-c", CHILD, str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.split()


def test_an_edited_helper_in_another_file_is_noticed(tmp_path: Path) -> None:
    """The kernel is in one file, the helper that decodes elements in another; numba's own cache would not notice."""
    shutil.copytree(PACKAGE, tmp_path / "kvbench_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    root = tmp_path / "cache"
    first = run_child(tmp_path, root)
    again = run_child(tmp_path, root)
    assert first == ["16.0", "0", "1", again[3]]
    assert again[:3] == ["16.0", "1", "1"], "the second process loads what the first one compiled"
    helper = tmp_path / "kvbench_kernels" / "elements.py"
    old = "    if dtype == types.float32:\n        return stored\n"
    text = helper.read_text(encoding="utf-8")
    assert text.count(old) == 1
    helper.write_text(text.replace(old, old.replace("stored", "builder.fadd(stored, stored)")), encoding="utf-8")
    edited = run_child(tmp_path, root)
    assert edited[:2] == ["32.0", "0"]
    assert edited[3] != first[3]


def test_the_digest_covers_every_source_file(tmp_path: Path) -> None:
    program = "from kvbench_kernels import source_digest; print(source_digest())"

    def digest() -> str:
        command = [sys.executable, "-c", program]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    copy = tmp_path / "kvbench_kernels"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    seen = {digest()}
    assert seen == {source_digest() + "\n"}
    for path in sorted(copy.rglob("*.py")):
        path.write_text(path.read_text(encoding="utf-8") + "\n# edited\n", encoding="utf-8")
        seen.add(digest())
    assert len(seen) == 1 + len(list(PACKAGE.rglob("*.py")))


def test_the_cache_cannot_move_once_kernels_are_loaded(tmp_path: Path) -> None:
    from kvbench_kernels import runtime

    assert runtime.cache_folder is not None
    assert use_cache(runtime.cache_folder.parent) == runtime.cache_folder
    with pytest.raises(RuntimeError, match="call use_cache first"):
        use_cache(tmp_path)


def test_importing_the_package_does_not_import_numba() -> None:
    program = "import sys, kvbench_kernels; kvbench_kernels.source_digest(); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
