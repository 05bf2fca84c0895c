"""The two sides of a gate: which code measures, and how it is started.

A side is a folder with kvbench's source: a path as it stands, or a revision checked out into a git worktree. It runs in
a process of its own with its source first on the path and a cache of compiled kernels of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kvbench.console import plain, say
from kvbench.errors import CannotRunError, UsageError

SideName = Literal["base", "candidate"]
_TAIL_LINES = 3


@dataclass(frozen=True, slots=True)
class Side:
    """`asked` is what the user wrote; `commit` is None for a folder that is no git checkout."""

    name: SideName
    asked: str
    folder: Path
    commit: str | None
    python: Path
    is_installed: bool
    """Its interpreter has this very source installed; else the source goes on the path"""
    cache: Path
    is_worktree: bool = False
    """A revision that was checked out for this gate"""

    def command(self, *arguments: str) -> list[str]:
        return [str(self.python), "-m", "kvbench", *arguments]

    def environment(self) -> dict[str, str]:
        """Of this process, with the side's source and its own caches. `PYTHONSAFEPATH` keeps the current folder, which
        may be the other side's checkout, off the path."""
        found = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "NUMBA_CACHE_DIR")}
        found |= {
            "PYTHONSAFEPATH": "1",
            "KVBENCH_CACHE_DIR": str(self.cache),
            "TRITON_CACHE_DIR": str(self.cache / "triton"),
        }
        if not self.is_installed:
            found["PYTHONPATH"] = os.pathsep.join((str(self.folder), str(self.folder / "kernels")))
        return found

    def describe(self) -> str:
        """For people: what was asked for, and the commit."""
        short = self.commit[:12] if self.commit else "no git checkout"
        return self.asked if self.asked == short else f"{self.asked} ({short})"


@contextmanager
def checked_out(
    asked: dict[SideName, str],
    work: Path,
    *,
    pythons: dict[SideName, Path | None] | None = None,
    commits: Mapping[str, str] | None = None,
    own_environments: bool = False,
) -> Iterator[dict[SideName, Side]]:
    """Both sides, ready to run; worktrees made here are removed on the way out.

    `pythons` are interpreters with a side's dependencies, this one where none is given; `commits` are those that
    revisions stood for when the gate began, for a branch may have moved; `own_environments` makes an environment per
    side with `pip install`. Raises `UsageError` for what is neither a source folder nor a revision,
    `CannotRunError` for a side that cannot be set up.
    """
    trees: list[tuple[Path, Path]] = []
    try:
        sides = {}
        for name, text in asked.items():
            side, repository = _find(name, text, work, (commits or {}).get(name))
            if repository is not None:
                _add_worktree(repository, side)
                trees.append((repository, side.folder))
            chosen = (pythons or {}).get(name)
            side = replace(side, python=chosen) if chosen else side
            sides[name] = _with_environment(side, work) if own_environments else side
        yield sides
    finally:
        for repository, folder in trees:
            _git(repository, "worktree", "remove", "--force", str(folder))
            _git(repository, "worktree", "prune")


def top_of_repository() -> str | None:
    """The root of the checkout that the current folder is in."""
    return _git(Path.cwd(), "rev-parse", "--show-toplevel")


def _find(name: SideName, text: str, work: Path, known: str | None) -> tuple[Side, Path | None]:
    """The side, and the repository whose worktree it is to become, if any."""
    cache = (work / "caches" / name).resolve()
    folder = Path(text).expanduser()
    python = Path(sys.executable)
    if folder.is_dir() and known is None:
        if not (folder / "kvbench" / "__init__.py").is_file():
            raise UsageError(
                f"--{name}: {plain(text)} is a folder without kvbench's source",
                hint="give the root of a checkout, or a git revision",
            )
        folder = folder.resolve()
        commit = _git(folder, "rev-parse", "HEAD") if (folder / ".git").exists() else None
        return Side(name, text, folder, commit, python, False, cache), None
    top = top_of_repository()
    if top is None:
        raise UsageError(
            f"--{name}: {plain(text)} is no folder, and the current folder is in no git repository",
            hint="run this inside a clone of kvbench, or give the path of a checkout",
        )
    commit = _git(Path(top), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{known or text}^{{commit}}")
    if not commit:
        raise UsageError(
            f"--{name}: {plain(text)} is neither a folder nor a revision of {top}",
            hint="a branch, tag or commit (a shallow clone may lack it: git fetch --unshallow), or a checkout's path",
        )
    return Side(name, text, (work / "checkouts" / name).resolve(), commit, python, False, cache, True), Path(top)


def _add_worktree(repository: Path, side: Side) -> None:
    """The side's commit in its folder, also where an earlier gate was killed before it could tidy up."""
    if side.folder.exists():
        _git(repository, "worktree", "remove", "--force", str(side.folder))
    _git(repository, "worktree", "prune")
    side.folder.parent.mkdir(parents=True, exist_ok=True)
    assert side.commit is not None
    arguments = ("worktree", "add", "--detach", str(side.folder), side.commit)
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise CannotRunError(
            f"{side.name} cannot be checked out: {_tail(done.stderr)}", hint="free space, or give a path"
        )
    if not (side.folder / "kvbench" / "__init__.py").is_file():
        raise CannotRunError(f"{side.name}: revision {side.asked} holds no kvbench", hint="choose a later revision")


def _with_environment(side: Side, work: Path) -> Side:
    """A virtual environment with the side's source and its dependencies; `PIP_…` variables steer pip."""
    home = (work / "environments" / side.name).resolve()
    python = home / "bin" / "python"
    if not python.exists():
        say(f"{side.name}: installing {side.describe()} into an environment of its own")
        _run([str(side.python), "-m", "venv", str(home)], side)
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(side.folder)], side)
    return replace(side, python=python, is_installed=True)


def _run(command: Sequence[str], side: Side) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise CannotRunError(
            f"{side.name} ({side.asked}) does not build: {_tail(done.stderr)}",
            hint=f"try it by hand: {' '.join(command)}",
        )


def _tail(text: str) -> str:
    return plain(" / ".join(line.strip() for line in text.strip().splitlines()[-_TAIL_LINES:])) or "it said nothing"


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None where it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
