"""Self-tests of the last day, remembered by the digest of the conditions that they were taken under."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

from kvbench.analysis.gate.self_test import SelfTest
from kvbench.console import say
from kvbench.paths import cache_dir
from kvbench.sweep.typed_json import from_json

LONGEST_S = 24 * 3600.0
"""A shared machine is another one tomorrow."""


def remembered(fingerprint: str) -> SelfTest | None:
    """The valid self-test under these conditions, if there is a young one; a damaged file is no self-test."""
    path = _path(fingerprint)
    try:
        if time.time() - path.stat().st_mtime > LONGEST_S:
            return None
        test = from_json(SelfTest, json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        say(f"{path} is damaged and is not used", style="yellow")
        return None
    return test if test.valid and test.fingerprint == fingerprint else None


def remember(test: SelfTest) -> None:
    """Keep it for gates under the same conditions; a cache that cannot be written is said and does no harm."""
    path = _path(test.fingerprint)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(test)))
    except OSError as error:
        say(f"the self-test cannot be kept in {path.parent}: {error.strerror}", style="yellow")


def _path(fingerprint: str) -> Path:
    return cache_dir() / "self-tests" / f"{fingerprint}.json"
