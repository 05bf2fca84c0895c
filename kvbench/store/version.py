"""The version of everything that the store writes."""

from __future__ import annotations

from typing import Any

from kvbench.errors import DataError, UsageError

SCHEMA_VERSION = 1


def check_version_number(version: Any, name: str) -> None:
    """Refuse what is not ours, and what a newer kvbench wrote (M67), by a JSON file's `schema_version`."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DataError(
            f"{name} carries no kvbench schema version", hint="it was not written by kvbench, or is damaged"
        )
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{name} was written by a newer kvbench (schema {version}, this one reads up to {SCHEMA_VERSION})",
            hint="upgrade kvbench to read this run",
        )
