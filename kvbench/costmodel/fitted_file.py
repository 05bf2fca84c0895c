"""Fitted models on disk: written once, and read with every number checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kvbench.costmodel.fitted import Configuration, FittedFile, LeftOut, Term
from kvbench.costmodel.rates import WHAT, is_float
from kvbench.costmodel.terms import COPIES, term_names
from kvbench.devices.facts import Device
from kvbench.digested import digest_of, read_json_object
from kvbench.errors import DataError, UsageError
from kvbench.geometry.dtypes import DTYPES, SCALES

FORMAT = "kvbench fitted model"
VERSION = 1
_HINT = "kvbench fit writes such files; docs/fit.md describes them"
_TEXTS = ("name", "source", "model", "geometry", "weight_dtype", "attention")
_RANGES = ("block_size", "max_sequences")
"""Of every domain, whatever else is counted"""
_DEVICE = ("name", "kind", "memory_bytes", "cores")


def with_digest(file: FittedFile) -> FittedFile:
    """The same with the digest of its content."""
    return replace(file, digest=digest_of(_content(file)))


def write_fitted(path: Path, file: FittedFile) -> None:
    """A file that `read_fitted` accepts."""
    path.write_text(text_of(file), encoding="utf-8")


def text_of(file: FittedFile) -> str:
    """What `write_fitted` writes."""
    content = _content(file)
    return json.dumps({**content, "digest": digest_of(content)}, indent=1) + "\n"


def read_fitted(path: str | Path) -> FittedFile:
    """`UsageError` for what cannot be read or is no fitted model, `DataError` for a wrong digest or damage."""
    content = read_json_object(path, WHAT, _HINT)
    version = content.get("version")
    if content.get("format") == FORMAT and isinstance(version, int) and version > VERSION:
        raise UsageError(f"{path} was written by a newer kvbench (version {version})", hint="upgrade kvbench")
    if content.get("format") != FORMAT or version != VERSION:
        raise UsageError(f'{path} is not a "{FORMAT}" file of version {VERSION}', hint=_HINT)
    if content.get("digest") != digest_of(content):
        raise DataError(
            f"{path}: the digest does not match the content",
            hint="the file was changed after it was written: fit again",
        )
    problems = list(_problems(content))
    if problems:
        raise DataError(f"{path}: {'; '.join(problems[:3])}", hint=_HINT)
    return _file(content)


def _content(file: FittedFile) -> dict[str, Any]:
    found = {key: value for key, value in asdict(file).items() if key not in ("device", "digest")}
    device = {key: getattr(file.device, key) for key in _DEVICE}
    head = {"format": FORMAT, "version": VERSION, "device": device}
    plain: dict[str, Any] = json.loads(json.dumps(head | found))
    return plain


def _file(content: Mapping[str, Any]) -> FittedFile:
    return FittedFile(
        **{name: content[name] for name in (*_TEXTS, "threads", "runs", "digest")},
        device=Device(**content["device"], datasheet="the device that was measured"),
        configurations=tuple(map(_configuration, content["configurations"])),
        settings={name: tuple(values) for name, values in content["settings"].items()},
        left_out=tuple(_left_out(case) for case in content["left_out"]),
    )


def _configuration(found: Mapping[str, Any]) -> Configuration:
    return Configuration(
        **{name: found[name] for name in ("kv_dtype", "kv_scales", "kv_layout", "steps", "samples")},
        knots=tuple(found["knots"]),
        terms={
            name: Term(**{key: float(value) for key, value in term.items()}) for name, term in found["terms"].items()
        },
        covariance=tuple(tuple(map(float, row)) for row in found["covariance"]),
        domain={name: (float(low), float(high)) for name, (low, high) in found["domain"].items()},
    )


def _left_out(found: Mapping[str, Any]) -> LeftOut:
    metrics = {name: (float(m), float(p), float(s)) for name, (m, p, s) in found["metrics"].items()}
    return LeftOut(found["run_id"], found["case_id"], found["sample"], found["label"], metrics)


Check = Callable[[Any], bool]


def _problems(content: Mapping[str, Any]) -> Iterator[str]:
    checks: dict[str, Check] = {
        **dict.fromkeys(_TEXTS, _is_text),
        "threads": _is_count,
        "device": _is_device,
        "runs": lambda value: _is_map(value, _is_text),
        "settings": lambda value: _is_map(value, lambda one: isinstance(one, list) and all(map(_is_text, one))),
        "configurations": lambda value: isinstance(value, list) and bool(value) and all(map(_is_configuration, value)),
        "left_out": lambda value: isinstance(value, list) and all(map(_is_left_out, value)),
    }
    for name, holds in checks.items():
        if name not in content:
            yield f"{name} is missing"
        elif not holds(content[name]):
            yield f"{name} is not what kvbench fit writes"


def _is_device(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != set(_DEVICE) or value["kind"] not in ("cpu", "cuda"):
        return False
    cores = value["cores"]
    return _is_text(value["name"]) and _is_count(value["memory_bytes"]) and (cores is None or _is_count(cores))


def _is_configuration(value: Any) -> bool:
    parts = ("kv_dtype", "kv_scales", "kv_layout", "knots", "terms", "covariance", "domain", "steps", "samples")
    if not isinstance(value, dict) or set(value) != set(parts):
        return False
    if not all(map(_is_text, (value["kv_dtype"], value["kv_scales"], value["kv_layout"]))):
        return False
    named = value["kv_dtype"] in DTYPES and value["kv_scales"] in SCALES and value["kv_layout"] in ("hnd", "nhd")
    knots, terms, rows = value["knots"], value["terms"], value["covariance"]
    if not named or not isinstance(knots, list) or not all(map(_is_count, knots)) or sorted(set(knots)) != knots:
        return False
    names = term_names(tuple(knots))
    is_known = _is_map(terms, _is_term) and set(names) - set(COPIES) <= set(terms) <= set(names)
    square = isinstance(rows, list) and all(isinstance(row, list) and all(map(_is_number, row)) for row in rows)
    is_square = square and is_known and len(rows) == len(terms) and all(len(row) == len(terms) for row in rows)
    is_counted = _is_count(value["steps"]) and _is_count(value["samples"])
    return is_square and is_counted and _is_domain(value["domain"])


def _is_left_out(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"run_id", "case_id", "sample", "label", "metrics"}:
        return False
    texts = all(_is_text(value[name]) for name in ("run_id", "case_id", "label"))
    is_numbered = value["sample"] == 0 or _is_count(value["sample"])
    return texts and is_numbered and _is_map(value["metrics"], _is_compared)


def _is_term(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"value", "low", "high"}:
        return False
    return all(_is_number(value[name]) and value[name] >= 0 for name in value) and value["low"] <= value["high"]


def _is_domain(value: Any) -> bool:
    return _is_map(value, _is_range) and set(_RANGES) <= set(value)


def _is_range(value: Any) -> bool:
    return _are_numbers(value, 2) and value[0] <= value[1]


def _is_compared(value: Any) -> bool:
    """[measured, predicted, sensitivity]"""
    return _are_numbers(value, 3) and min(value[:2]) > 0 and value[2] >= 0


def _are_numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(_is_number, value))


def _is_map(value: Any, holds: Check) -> bool:
    return isinstance(value, dict) and all(map(holds, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and is_float(value)
