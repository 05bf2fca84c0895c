"""The door of the room: a run as one HTML file that needs nothing else, with the drawing library in it or without."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files as resources
from pathlib import Path

from kvbench import __version__
from kvbench.report.html import (
    axis_effects,
    block_sizes,
    distributions,
    front,
    heat,
    hit_rates,
    kernels,
    over_time,
    sections,
)
from kvbench.report.html.contents import Contents
from kvbench.report.html.figure import Figure, LeftOut
from kvbench.report.html.markup import Html, alignment, el, joined
from kvbench.report.html.render import Charts, check_installed, live_charts, runtime, static_charts
from kvbench.report.html.theme import DARK, LIGHT, css_variables
from kvbench.store.run import Run
from kvbench.store.targets import Target, begins_with, check_target, writing

GENERATOR = "kvbench"
TARGET = Target(
    "report of kvbench", begins_with(f'<meta name="generator" content="{GENERATOR} '.encode()), option="--html"
)
LIMITS = {False: 1_200_000, True: 200_000}
"""Bytes of a page with its drawing library, and of a static one: what mail and a pull request take without complaint"""
CASES_LEAST = 10
_FIGURES: dict[str, tuple[Callable[[Contents], Figure | LeftOut], ...]] = {
    "engine": (
        front.figure,
        lambda contents: axis_effects.figure(contents, "engine"),
        lambda contents: heat.figure(contents, "engine"),
        block_sizes.figure,
        hit_rates.figure,
        distributions.figure,
        over_time.figure,
    ),
    "kernel": (
        kernels.figure,
        lambda contents: axis_effects.figure(contents, "kernel"),
        lambda contents: heat.figure(contents, "kernel"),
    ),
}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; base-uri 'none'; form-action 'none'"
"""The page forbids itself every request: whatever tried one, the browser would refuse it."""


def write_html(
    run: Run, path: Path, *, is_static: bool = False, metrics: Sequence[str] = (), show_all: bool = False
) -> int:
    """Write the report of `run` to `path`, whole or not at all; its size in bytes.

    `is_static`: charts as SVG, without any script. `metrics` and `show_all` are those of `build_report`. Raises
    `UsageError` for a path that cannot be written or holds something else, `CannotRunError` without the drawing
    libraries and `DataError` for a run without a finished sample or with a damaged table.
    """
    check_target(path, TARGET)
    check_installed()
    data = page(Contents(run, metrics, show_all=show_all), is_static=is_static).encode()
    with writing(path, TARGET) as file:
        file.write(data)
    return len(data)


def page(contents: Contents, *, is_static: bool) -> Html:
    """The whole document. Where it would be larger than `LIMITS` the table of all cases is shortened, and says so."""
    found = list(_figures(contents))
    drawn = [one for one in found if isinstance(one, Figure)]
    charts = static_charts(drawn) if is_static else live_charts(drawn)
    whole = _document(contents, found, charts, is_static=is_static)
    most = sum(len(kind.table.lines) for kind in contents.kinds.values())
    row_bytes = len(sections.cases(contents).encode()) / max(1, most)
    while (over := len(whole.encode()) - LIMITS[is_static]) > 0 and most > CASES_LEAST:
        most = max(CASES_LEAST, most - math.ceil(over / row_bytes))
        whole = _document(contents, found, charts, is_static=is_static, most=most)
    return whole


def _document(
    contents: Contents, found: Sequence[Figure | LeftOut], charts: Charts, *, is_static: bool, most: int | None = None
) -> Html:
    drawn = [one for one in found if isinstance(one, Figure)]
    parts = [
        sections.claims(contents),
        sections.notes(contents),
        *(sections.figure(one, charts, is_static=is_static) for one in drawn),
        sections.left_out([one for one in found if isinstance(one, LeftOut)]),
        sections.cases(contents, most),
        sections.settings(contents),
        sections.manifest(contents),
    ]
    has_script = bool(drawn) and not is_static
    body = el("main", _navigation(drawn), _without_script() if has_script else None, *parts)
    return joined((
        Html('<!doctype html><html lang="en">'),
        _head(contents, alignment(body), has_script=has_script),
        Html("<body>"),
        sections.head(contents),
        body,
        el("footer", f"kvbench {__version__}. This file loads nothing: it can be kept, sent and read offline."),
        el("script", runtime()) if has_script else None,
        Html("</body></html>\n"),
    ))  # fmt: skip


def _figures(contents: Contents) -> Iterator[Figure | LeftOut]:
    for kind in contents.kinds:
        for make in _FIGURES[kind]:
            yield make(contents)


def _head(contents: Contents, rules: Html, *, has_script: bool) -> Html:
    scripts = "'unsafe-inline'" if has_script else "'none'"
    dark = f"@media (prefers-color-scheme:dark){{@media screen{{:root{{{css_variables(DARK)}}}}}}}"
    css = (resources("kvbench.report.html") / "page.css").read_text(encoding="utf-8")
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="generator", content=f"{GENERATOR} {__version__}"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY.format(scripts=scripts)),
        el("meta", name="viewport", content="width=device-width,initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{contents.report.title or contents.report.suite} · kvbench"),
        el("style", Html(f":root{{{css_variables(LIGHT)}}}{dark}\n{css}{rules}")),
    )


def _navigation(drawn: Sequence[Figure]) -> Html:
    places = [(one.name, one.title) for one in drawn]
    places += [("cases", "All cases"), ("settings", "Settings"), ("manifest", "Manifest")]
    return el("nav", *(el("a", title, href=f"#{name}") for name, title in places), aria_label="Contents")


def _without_script() -> Html:
    told = "The charts need JavaScript; the tables beside them hold the same numbers, and --static needs none."
    return el("noscript", el("p", told, class_="badge"))
