"""A model's geometry from its Hugging Face `config.json`, by the rules of each family.

A field that is absent or null takes the default of that family's configuration class, because published configs
leave such fields out. Both spellings of rotary settings are read: `rope_theta` + `rope_scaling`, and
`rope_parameters` (one object, or one per layer type).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvbench.errors import UsageError
from kvbench.geometry.families import FAMILIES
from kvbench.geometry.fields import Fields
from kvbench.geometry.model import ModelGeometry
from kvbench.geometry.weights import with_parameters

LARGEST_CONFIG_BYTES = 16 << 20
_REFETCH = "the file is damaged: fetch it again"


def geometry_from_folder(path: str | Path) -> ModelGeometry:
    """Geometry of the checkpoint in `path`, a folder with `config.json` or that file itself.

    Raises `UsageError` for a missing, unreadable or malformed file and for an architecture that is not supported.
    """
    file = Path(path) if Path(path).is_file() else Path(path) / "config.json"
    return geometry_from_config(_read(file), file.resolve().parent.name or "model", str(file))


def geometry_from_config(config: dict[str, Any], name: str, source: str) -> ModelGeometry:
    """Geometry from the object of a `config.json`; `source` is what error messages call it."""
    whole = Fields(config, source)
    family = whole.text("model_type", "")
    reader = FAMILIES.get(family)
    if reader is None:
        raise UsageError(
            f"{source}: architecture {family!r} is not supported" if family else f"{source}: no model_type",
            hint=f"supported model_type: {', '.join(FAMILIES)}",
        )
    return with_parameters(replace(reader(whole), name=name, source=source, family=family))


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > LARGEST_CONFIG_BYTES:
            raise UsageError(f"{file} is too large to be a config.json", hint=_REFETCH)
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist", hint="give a folder that holds a config.json") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="check the file's permissions") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not valid JSON: {error}", hint=_REFETCH) from None
    if not isinstance(config, dict):
        raise UsageError(f"{file} holds {type(config).__name__}, not an object", hint="a config.json is one object")
    return config
