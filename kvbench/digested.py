"""JSON files that people hand on, each with the sha256 of its content in it, so that a change by hand is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvbench.errors import UsageError


def digest_of(content: Mapping[str, Any]) -> str:
    """sha256 over the content as JSON with sorted keys, without its own `digest`."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_json_object(path: str | Path, what: str, hint: str) -> dict[str, Any]:
    """What a file holds; `UsageError` when it cannot be read or is no JSON object. `what` the file should be."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no {what} {path}", hint=hint) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}", hint=hint) from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no JSON object", hint=hint)
    return content
