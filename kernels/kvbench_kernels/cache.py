"""Where numba keeps compiled kernels.

numba's own disk cache looks at the file of the compiled function only: an edited helper in another file goes
unnoticed. So the folder's name carries a digest of all kernel sources, numba's version and the CPU.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_PREFIX = "kvbench-"


def source_digest() -> str:
    """sha256 over names and contents of every Python file of the package."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()


def use_cache(root: str | Path | None = None) -> Path:
    """Point numba at `root/kvbench-<digest>` and return that folder.

    `root` None: `NUMBA_CACHE_DIR` where it is set, else the user's own cache folder. Call it before any kernel file is
    imported; raises `RuntimeError` when kernels already use another folder.
    """
    folder = Path(root if root is not None else _default_root()) / f"{_PREFIX}{_cache_key()}"
    loaded = sys.modules.get("kvbench_kernels.runtime")
    used = getattr(loaded, "cache_folder", None)
    if used is not None and used != folder:
        raise RuntimeError(f"kernels were already loaded with the cache {used}; call use_cache first")
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = str(folder)
    return folder


def _default_root() -> Path:
    """A folder that `use_cache` made, here or in the parent process, counts as its root."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return Path(given).parent if Path(given).name.startswith(_PREFIX) else Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "kvbench" / "numba"


def _cache_key() -> str:
    facts = "\n".join((source_digest(), version("numba"), version("llvmlite"), platform.python_version(), _cpu()))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _cpu() -> str:
    """Model and feature flags of the CPU, as far as the operating system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
