"""A suite with every default filled in and everything that decides nothing left out: what will really run."""

from __future__ import annotations

from typing import Any

from kvbench.spec.cases import expand_all, kinds_of
from kvbench.spec.edit import drop_fixed
from kvbench.spec.keys import SECTIONS, SECTIONS_OF
from kvbench.spec.matrix import Matrix, read_matrix
from kvbench.spec.suite import Suite

_SIZES = ("kv_memory", "host_memory", "disk_memory", "swap_memory")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def filled_in(suite: Suite) -> dict[str, Any]:
    """Plain data that loads as a suite of the same cases. Fixed values that an axis replaces are left out."""
    matrix = read_matrix({"axes": suite.axes, "zip": suite.zip})
    sections = [name for kind in kinds_of(suite, matrix) for name in SECTIONS_OF[kind]]
    whole = suite.model_dump(mode="json", exclude_none=True)
    data = {key: whole[key] for key in ("name", "title", "claim") if whole[key]}
    data |= {name: whole.get(name) or _defaults(name) for name in sections}
    data |= {name: whole[name] for name in ("measure", "slo", "axes", "zip", "exclude", "only") if whole[name]}
    if "engine" in sections and _has_preset(suite, matrix):
        data["engine"] = {} if suite.engine is None else suite.engine.model_dump(mode="json", exclude_unset=True)
    varied = [key for dimension in matrix.dimensions for key in dimension.keys]
    for key in (*varied, *expand_all(suite).moot_everywhere):
        drop_fixed(data, key)
    _write_sizes(data.get("engine", {}))
    return data


def _has_preset(suite: Suite, matrix: Matrix) -> bool:
    """Then what the suite leaves out must stay out: a default that is written down wins over the preset."""
    is_varied = any("engine.preset" in dimension.keys for dimension in matrix.dimensions)
    return is_varied or (suite.engine is not None and suite.engine.preset != "none")


def _defaults(section: str) -> dict[str, Any]:
    return SECTIONS[section]().model_dump(mode="json", exclude_none=True)


def _write_sizes(engine: dict[str, Any]) -> None:
    for name in _SIZES:
        if isinstance(engine.get(name), int):
            engine[name] = size_text(engine[name])


def size_text(count: int) -> str:
    """8388608 → `8MiB`: the largest binary unit that keeps it whole."""
    power = 0
    while count and count % 1024 == 0 and power < len(_UNITS) - 1:
        count, power = count // 1024, power + 1
    return f"{count}{_UNITS[power]}"
