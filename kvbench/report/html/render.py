"""Charts into a page: as SVG, or as data for the drawing library that goes into the page with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from xml.etree import ElementTree

from kvbench.errors import CannotRunError
from kvbench.report.html.figure import Figure, Plot
from kvbench.report.html.markup import Html, el, script_json
from kvbench.report.html.theme import chart_config

_WIDTH = 400
_SVG = "{http://www.w3.org/2000/svg}"
_ELEMENTS = frozenset({"svg", "g", "path", "line", "rect", "text", "tspan", "defs", "clipPath"})
_DROPPED = frozenset(
    {"aria-hidden", "aria-roledescription", "class", "font-family", "pointer-events", "role", "version"}
)
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_PLACE = re.compile(r"([ML])(-?[\d.]+),(-?[\d.]+)")
_USUAL = {("font-size", "12px"), ("fill", "var(--fg)"), ("opacity", "1"), ("stroke-width", "1")}
"""What the page's style sheet says of every chart"""
_INHERITED = ("fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "text-anchor")
_CIRCLE = re.compile(r"M([\d.]+),0A[\d.]+,[\d.]+,0,1,1,-[\d.]+,0A[\d.]+,[\d.]+,0,1,1,[\d.]+,0")
_TRANSLATED = re.compile(r"translate\((-?[\d.]+),(-?[\d.]+)\)")
_ORIGIN = {("x", "0"), ("y", "0")}
Charts = Mapping[tuple[str, int], Html]
"""(figure, place among its plots) → markup"""


def check_installed() -> None:
    """`CannotRunError` that says what to install where the drawing libraries are missing."""
    from importlib.util import find_spec

    wanted = {"altair": "altair", "vl_convert": "vl-convert-python"}
    missing = [name for module, name in wanted.items() if find_spec(module) is None]
    if missing:
        are = "are" if len(missing) > 1 else "is"
        raise CannotRunError(
            f"{' and '.join(missing)}, which draw{'s'[: len(missing) < 2]} an HTML report, {are} not installed",
            hint="pip install 'kvbench[report]'; kvbench report --format md needs nothing more",
        )


def static_charts(found: Sequence[Figure]) -> Charts:
    """Every plot as SVG."""
    import vl_convert

    from kvbench.report.html.draw import chart

    def svg(plot: Plot) -> Html:
        whole = chart(plot, _WIDTH) | {"config": chart_config()}
        return small_svg(vl_convert.vegalite_to_svg(whole, vl_version=_version()))

    return _each(found, svg)


def live_charts(found: Sequence[Figure]) -> Charts:
    """Every plot as data for `runtime`."""
    from kvbench.report.html.draw import chart

    def box(plot: Plot) -> Html:
        data = el("script", script_json(chart(plot, "container")), type="application/json")
        return el("div", data, class_="chart", data_chart=True)

    return _each(found, box)


def _each(found: Sequence[Figure], drawn: Callable[[Plot], Html]) -> Charts:
    return {(figure.name, at): drawn(plot) for figure in found for at, plot in enumerate(figure.plots)}


@cache
def runtime() -> Html:
    """The drawing library, with what all charts share and the script that draws every chart of the page."""
    import vl_convert

    snippet = (files("kvbench.report.html") / "page.js").read_text(encoding="utf-8")
    config = f"window.chartConfig = {script_json(chart_config())};"
    bundle: str = vl_convert.javascript_bundle(f"{config}\n{snippet}", vl_version=_version())
    return Html(bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def small_svg(svg: str) -> Html:
    """The SVG without what a report does not need, and with nothing in it but shapes and text."""
    root = ElementTree.fromstring(svg)
    for node in list(root.iter()):
        for child in list(node):
            if child.tag.removeprefix(_SVG) not in _ELEMENTS or _is_empty(child):
                node.remove(child)
        node.tag = node.tag.removeprefix(_SVG)
        node.attrib = {name: _short(name, value) for name, value in node.attrib.items() if _is_kept(name, value)}
    _tidy(root)
    root.attrib = {"viewBox": root.attrib["viewBox"], "width": root.attrib["width"]}
    return Html(ElementTree.tostring(root, encoding="unicode").replace(" />", "/>"))


def _tidy(node: ElementTree.Element) -> None:
    """What all children of a group say alike is said once by the group; groups that say nothing go; circles are
    circles, and places of text are coordinates."""
    for child in node:
        _tidy(child)
        _placed(child)
    node[:] = [inner for child in node for inner in (child if child.tag == "g" and not child.attrib else [child])]
    if node.tag != "g" or len(node) < 2:
        return
    for name in _INHERITED:
        values = {child.attrib.get(name) for child in node}
        if len(values) == 1 and None not in values and not node.attrib.get(name):
            node.attrib[name] = values.pop() or ""
            for child in node:
                del child.attrib[name]


def _placed(node: ElementTree.Element) -> None:
    place = _TRANSLATED.fullmatch(node.attrib.get("transform", ""))
    shape = _CIRCLE.fullmatch(node.attrib.get("d", ""))
    if node.tag == "line":
        node.attrib = {name: value for name, value in node.attrib.items() if (name[0], value) not in _ORIGIN}
    if place is None:
        return
    if node.tag == "text":
        del node.attrib["transform"]
        node.attrib |= {"x": place[1], "y": place[2]}
    elif shape:
        node.tag = "circle"
        del node.attrib["transform"], node.attrib["d"]
        node.attrib |= {"cx": place[1], "cy": place[2], "r": shape[1]}
    elif node.tag == "g" and place.groups() == ("0", "0"):
        del node.attrib["transform"]


def _is_kept(name: str, value: str) -> bool:
    if name in _DROPPED or "href" in name or name.startswith("on"):
        return False
    return (name, value) not in _USUAL


def _is_empty(node: ElementTree.Element) -> bool:
    """Vega's bookkeeping: a path without a shape, or one that is not displayed."""
    shape = node.attrib.get("d")
    return node.attrib.get("display") == "none" or (node.tag == f"{_SVG}path" and shape in (None, "", "M0,0h0v0h0Z"))


def _short(name: str, value: str) -> str:
    """Numbers to a tenth of a pixel; where a path goes straight, one coordinate instead of two."""
    if name not in ("d", "transform", "x", "y", "x1", "x2", "y1", "y2", "width", "height"):
        return value
    rounded = _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), value)
    return _straight(rounded) if name == "d" else rounded


def _straight(path: str) -> str:
    last = ["", ""]

    def step(found: re.Match[str]) -> str:
        kind, x, y = found.groups()
        same_x, same_y = x == last[0], y == last[1]
        last[:] = x, y
        if kind == "M" or not (same_x or same_y):
            return found[0]
        return "" if same_x and same_y else f"V{y}" if same_x else f"H{x}"

    return _PLACE.sub(step, path)


def _version() -> str:
    """The Vega-Lite that altair writes, as vl-convert names it."""
    import altair

    return ".".join(str(altair.SCHEMA_VERSION).removeprefix("v").split(".")[:2])
