"""Every setting by its dotted key: what it takes, which cases it belongs to, how people may abbreviate it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic.fields import FieldInfo

from kvbench.spec.engine import EngineSettings
from kvbench.spec.fields import PARTIAL, Settings
from kvbench.spec.problems import did_you_mean
from kvbench.spec.suite import KernelSettings, MeasureSettings, ModelSettings, SloSettings
from kvbench.spec.workload import WorkloadSettings

Kind = Literal["engine", "kernel"]

SECTIONS: dict[str, type[Settings]] = {
    "model": ModelSettings,
    "engine": EngineSettings,
    "workload": WorkloadSettings,
    "kernel": KernelSettings,
    "measure": MeasureSettings,
    "slo": SloSettings,
}
SECTIONS_OF: dict[Kind, tuple[str, ...]] = {"engine": ("model", "engine", "workload"), "kernel": ("kernel",)}
"""Which sections an axis of each kind of case may vary; the others hold for the whole run."""

MEASURE_AXES = frozenset({"measure.cache_state"})
"""Settings of `[measure]` that an axis of engine cases may vary all the same."""


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `schema` is its JSON Schema; `doc` and `default` are for the docs."""

    path: str
    schema: dict[str, Any]
    doc: str
    default: Any

    @property
    def section(self) -> str:
        return self.path.partition(".")[0]

    @property
    def kind(self) -> Kind | None:
        """The kind of case it belongs to; None for what holds for the whole run."""
        if self.path in MEASURE_AXES:
            return "engine"
        return next((kind for kind, sections in SECTIONS_OF.items() if self.section in sections), None)


@cache
def all_keys() -> dict[str, Key]:
    """Dotted key → setting, in the order of the models. Tables are no settings, except a length distribution, which
    may also be given whole."""
    return {key.path: key for name, model in SECTIONS.items() for key in _keys_in(model, name)}


@cache
def tables() -> frozenset[str]:
    """Dotted names of whole tables, which cannot be an axis."""
    parents = {path.rpartition(".")[0] for path in all_keys()}
    parents |= {parent.rpartition(".")[0] for parent in parents}
    return frozenset(parents - {""} - set(all_keys()))


@cache
def model_schema(model: type[Settings]) -> dict[str, Any]:
    """Its JSON Schema, made once."""
    return model.model_json_schema()


def sub_settings(field: FieldInfo) -> type[Settings] | None:
    """The model of a field that is a table."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _keys_in(model: type[Settings], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        inner = sub_settings(field)
        if inner is None or field.metadata:
            schema = model_schema(model)["properties"][name]
            yield Key(f"{prefix}.{name}", schema, field.description or "", field.default)
        if inner is not None:
            yield from _keys_in(inner, f"{prefix}.{name}")


def normalise(path: str, value: Any) -> Any:
    """The value as its own field reads it (`"bfloat16"` → `"bf16"`, `"2 KiB"` → 2048).

    Raises pydantic's ValidationError with locations inside the section.
    """
    section, *parts = path.split(".")
    nested = value
    for part in reversed(parts):
        nested = {part: nested}
    return value_at(SECTIONS[section].model_validate(nested, context=PARTIAL), parts)


def value_at(settings: Any, parts: list[str]) -> Any:
    """The value at `parts`, from settings through settings within them."""
    for part in parts:
        settings = getattr(settings, part)
    return settings


def candidates(name: str) -> list[Key]:
    """Settings whose dotted key is `name` or ends in it."""
    exact = all_keys().get(name)
    return [exact] if exact else [key for path, key in all_keys().items() if path.endswith(f".{name}")]


@cache
def column(path: str) -> str:
    """The column of an axis: the last part of its key where only one setting ends in it (the same name in `engine` and
    `kernel` is one column), else the whole key with underscores."""
    last = path.rpartition(".")[2]
    ending = {key.path for key in candidates(last)}
    shared = len(ending) == 1 or ending == {f"engine.{last}", f"kernel.{last}"}
    return last if shared else path.replace(".", "_")


def unknown_key(name: str) -> str:
    """Why `name` is not a setting, with the setting that was probably meant."""
    if name in tables():
        inside = [path for path in all_keys() if path.startswith(f"{name}.")]
        return f"is a whole table; name one of its settings, as in {inside[0]}"
    ending = [key.path for key in candidates(name)]
    if ending:
        return f"write the whole key: {' or '.join(ending)}"
    last = name.rpartition(".")[2]
    misplaced = [key.path for key in candidates(last)] if last != name else []
    if misplaced:
        return f'unknown setting; did you mean "{misplaced[0]}"?'
    return f"unknown setting{_did_you_mean_key(name, last)}"


def _did_you_mean_key(name: str, last: str) -> str:
    """The closest last part, in the same table when that exists."""
    table = name.rpartition(".")[0]
    paths = [path for path in all_keys() if table and path.startswith(f"{table}.")] or list(all_keys())
    by_last = {path.rpartition(".")[2]: path for path in reversed(paths)}
    close = did_you_mean(last, by_last).partition('"')[2].rpartition('"')[0]
    return f'; did you mean "{by_last[close]}"?' if close else ""
