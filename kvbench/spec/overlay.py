"""A section at one point of the matrix: its fixed settings with the point's own laid over them."""

from __future__ import annotations

from typing import Any

from kvbench.spec.fields import Settings
from kvbench.spec.keys import SECTIONS, value_at
from kvbench.spec.matrix import Setting, canonical
from kvbench.spec.presets import filled_from_preset
from kvbench.spec.suite import Suite


class Texts(dict[str, str]):
    """Dotted key → canonical text of a section's value, made when a rule first asks for it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    def __missing__(self, key: str) -> str:
        self[key] = canonical(value_at(self.settings, key.split(".")[1:]))
        return self[key]


def base_of(suite: Suite, name: str) -> dict[str, Any]:
    """The fixed settings; of the engine only those that the suite names, for a preset may decide the others."""
    fixed = getattr(suite, name)
    if name == "engine":
        return {} if fixed is None else fixed.model_dump(exclude_unset=True)
    return (SECTIONS[name]() if fixed is None else fixed).model_dump()


def overlaid(base: dict[str, Any], own: list[Setting]) -> dict[str, Any]:
    """`base` with the point's own settings laid over it; a preset fills in what is then still open."""
    data = dict(base)
    for setting in own:
        _, *tables, last = setting.key.split(".")
        inner = data
        for table in tables:
            inner[table] = dict(inner[table])
            inner = inner[table]
        inner[last] = setting.value.model_dump() if isinstance(setting.value, Settings) else setting.value
    return filled_from_preset(data)
