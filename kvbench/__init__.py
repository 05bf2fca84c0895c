"""kvbench: which paged KV cache settings should I serve with, and has this commit made it slower?

`import kvbench` is light: the names below load their module, and with it torch or pandas, when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kvbench.engine.engine import Engine as Engine
    from kvbench.engine.model import Model as Model
    from kvbench.spec.engine import EngineSettings as EngineSettings
    from kvbench.spec.load import load_suite as load_suite
    from kvbench.store.run import open_run as open_run
    from kvbench.sweep.run import run_suite as run_suite

_DOORS = {
    "Engine": "kvbench.engine.engine",
    "EngineSettings": "kvbench.spec.engine",
    "Model": "kvbench.engine.model",
    "load_suite": "kvbench.spec.load",
    "open_run": "kvbench.store.run",
    "run_suite": "kvbench.sweep.run",
}
__all__ = ["Engine", "EngineSettings", "Model", "load_suite", "open_run", "run_suite"]


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'kvbench' has no attribute {name!r}")
    return getattr(import_module(_DOORS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_DOORS])
