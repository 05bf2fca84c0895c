"""From what people type to a geometry: a preset, a folder with a `config.json`, or `auto`."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.errors import UsageError
from kvbench.geometry.huggingface import geometry_from_folder
from kvbench.geometry.presets import preset, preset_names

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry

LARGE_GPU_BYTES = 40 << 30


def resolve_model(name_or_folder: str) -> ModelGeometry:
    """The geometry of a preset (any case) or of a checkpoint folder.

    A preset wins over a folder of the same name; write `./name` for the folder. `UsageError` names what is close.
    """
    known = {name.lower(): name for name in preset_names()}
    if name_or_folder.lower() in known:
        return preset(known[name_or_folder.lower()])
    if _is_there(name_or_folder):
        return geometry_from_folder(name_or_folder)
    raise UsageError(f"no model preset and no folder called {name_or_folder!r}", hint=_nearest(name_or_folder))


def auto_model(device_kind: str, memory_bytes: int | None) -> str:
    """Name of the largest preset that suits a device: `cpu` → tiny-llama; a GPU by its memory."""
    if device_kind == "cpu":
        return "tiny-llama"
    return "llama-3.2-1b" if memory_bytes is None or memory_bytes < LARGE_GPU_BYTES else "llama-3.1-8b"


def _is_there(path: str) -> bool:
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):
        return False


def _nearest(name: str) -> str:
    """A Hugging Face id is matched by its last part: `meta-llama/Llama-3.1-8B` → llama-3.1-8b."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    close = get_close_matches(last, preset_names(), n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if os.sep in name:
        return f"give a local folder that holds a config.json, or one of {', '.join(preset_names())}"
    return f"one of {', '.join(preset_names())}, or a folder that holds a config.json"
