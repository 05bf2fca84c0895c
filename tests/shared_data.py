"""Real traces that lie beside the project on some machines; tests that want them skip elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


def shared_data(relative: str) -> Path:
    """The file's path, or a skip that says what is missing."""
    path = _ROOT / relative
    if not path.exists():
        pytest.skip(f"needs shared/data/{relative} beside the checkout")
    return path
