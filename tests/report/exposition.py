"""A strict reader of Prometheus text 0.0.4, by the format's description; it knows nothing of kvbench."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LINE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Metric(NamedTuple):
    kind: str
    help: str
    values: dict[tuple[tuple[str, str], ...], float]


def read_exposition(text: str) -> dict[str, Metric]:
    """Metrics by name. Every one has HELP and TYPE once, before its lines, which stand together; no timestamps."""
    assert text.endswith("\n")
    assert "\r" not in text
    found: dict[str, Metric] = {}
    helps: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, words = line.split(" ", 3)
            assert name not in helps
            helps[name] = re.sub(r"\\[\\n]", lambda m: _ESCAPES[m[0]], words)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("gauge", "counter")
            assert name in helps
            assert name not in found
            assert (kind == "counter") <= name.endswith("_total")
            found[name], current = Metric(kind, helps[name], {}), name
        else:
            match = _LINE.fullmatch(line)
            assert match is not None, line
            assert match[1] == current, f"{line}: not under its TYPE"
            key = _labels(match[2] or "")
            assert key not in found[current].values, f"{line}: twice"
            found[current].values[key] = float(match[3])
            assert found[current].kind == "gauge" or found[current].values[key] >= 0
    assert set(helps) == set(found)
    assert all(metric.values for metric in found.values())
    return found


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    found, at = [], 0
    while at < len(text):
        match = _LABEL.match(text, at)
        assert match is not None, text[at:]
        found.append((match[1], re.sub(r'\\[\\"n]', lambda m: _ESCAPES[m[0]], match[2])))
        at = match.end()
    assert len(dict(found)) == len(found)
    return tuple(found)


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    """The value of the one series that has these labels."""
    (only,) = [v for key, v in found[name].values.items() if labels.items() <= dict(key).items()]
    return only
