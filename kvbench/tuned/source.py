"""A digest of the source that a tuned configuration belongs to: a kernel's page and what it imports of its package.

Read as text, so that neither numba nor triton is imported for it.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "kvbench_kernels"
_COMPILERS = {"numba": ("numba", "llvmlite"), "triton": ("triton",)}


@cache
def source_digest(page: str) -> str:
    """16 hexadecimal digits over a module (`kvbench_kernels.…`) and all modules of the package that it reaches."""
    digest = hashlib.sha256()
    for path in _reached(page):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def compiler_version(compiler: str) -> str:
    """`numba 0.68.1, llvmlite 0.50.0`, or `triton 3.9.0`; `none` behind what is not installed."""
    found = []
    for name in _COMPILERS[compiler]:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} none")
    return ", ".join(found)


def _reached(page: str) -> list[Path]:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{PACKAGE} is not installed beside kvbench")
    root = Path(next(iter(spec.submodule_search_locations)))
    found: dict[str, Path] = {}
    coming = [page.removeprefix(f"{PACKAGE}.")]
    while coming:
        name = coming.pop()
        path = root / f"{name.replace('.', '/')}.py"
        if name not in found and path.is_file():
            found[name] = path
            coming += _imports(path)
    return [found[name] for name in sorted(found)]


def _imports(path: Path) -> list[str]:
    """Modules of the package that a file imports anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE):
            inner = node.module.removeprefix(PACKAGE).lstrip(".")
            names += [inner] if inner else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [a.name.removeprefix(f"{PACKAGE}.") for a in node.names if a.name.startswith(f"{PACKAGE}.")]
    return names
