"""The page: whole, offline, escaped, small, with the drawing library in it or without."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kvbench.cli.main import run as cli
from kvbench.errors import DataError
from kvbench.report.html import axis_effects
from kvbench.report.html.contents import Contents
from kvbench.report.html.figure import Figure
from kvbench.report.html.markup import Html, el, script_json, text
from kvbench.store.parts import Sample
from kvbench.store.run import Run, open_run
from kvbench.store.run_folder import RunFolder
from tests.report.html_runs import axes_run
from tests.report.test_html_data import engine
from tests.report.test_tables import EVIL, evil_run
from tests.store.samples import case_id, plan, run_folder, sample

pytest.importorskip("altair", reason="HTML reports are drawn by altair (pip install 'kvbench[report]')")
pytest.importorskip("vl_convert", reason="HTML reports are drawn by vl-convert (pip install 'kvbench[report]')")

from kvbench.report.html.page import CASES_LEAST, LIMITS, page, write_html
from kvbench.report.html.render import live_charts, small_svg, static_charts

VOID = {"meta", "br", "hr", "path", "line", "rect", "circle"}
OPTIONAL = {"tr", "td", "th"}
LOADING = {"src", "href", "action", "srcset", "xlink:href", "data", "poster", "background", "ping"}
AXES = {"block_size": [8, 16, 32], "kv_dtype": ["fp32", "int8"]}


class Page(HTMLParser):
    """Elements in order, attributes that could load something, text outside of scripts and styles."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[tuple[str, str, str]] = []
        self.scripts: list[str] = []
        self.words = ""
        self.open: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [(tag, name, value or "") for name, value in attrs if name in LOADING or name.startswith("on")]
        if tag not in VOID | OPTIONAL:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID | OPTIONAL:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.scripts.append(data)
        else:
            self.words += data


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """The same run as a page with the library and as a static one."""
    run = axes_run(tmp_path_factory.mktemp("run"), AXES, engine, samples=3)
    return {is_static: page(Contents(run), is_static=is_static) for is_static in (False, True)}


@pytest.mark.parametrize("is_static", [False, True])
def test_the_page_is_well_formed_and_loads_nothing(both: dict[bool, str], is_static: bool) -> None:
    found = Page(both[is_static])
    assert found.open == []
    assert all(value.startswith("#") for _, _, value in found.loads)
    assert "link" not in found.tags
    assert "img" not in found.tags
    assert not re.search(r"url\(|@import|<(?:iframe|object|embed|base)\b", both[is_static].split("<body>")[0])
    assert "default-src 'none'" in html.unescape(both[is_static])
    anchors = {value[1:] for tag, _, value in found.loads if tag == "a"}
    assert anchors <= set(re.findall(r'<section id="([^"]+)"', both[is_static]))


def test_a_static_page_has_no_script_and_no_address(both: dict[bool, str]) -> None:
    assert "script" not in Page(both[True]).tags
    assert "script-src 'none'" in html.unescape(both[True])
    assert not re.search(r"https?:|[\"'(]//", both[True])


def test_the_library_in_a_page_has_no_address_that_it_would_ask_unasked(both: dict[bool, str]) -> None:
    """Names of XML and of schemas, and the editor behind a menu that is off; requests are refused by the policy too."""
    library = Page(both[False]).scripts[-1]
    addresses = set(re.findall(r"https?://[\w./-]+", library))
    known = ("http://www.w3.org/", "https://vega.github.io/", "https://github.com/vega/vega-lite/issues/")
    assert all(address.startswith(known) for address in addresses), addresses
    assert not re.search(r"importScripts|sendBeacon|new WebSocket|EventSource|<script|\bimport\(", library)
    assert "connect-src" not in both[False]
    assert "unsafe-eval" not in both[False]


def test_a_page_that_would_be_too_large_lists_the_best_cases_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(axes: dict[str, Any], number: int) -> dict[str, Any]:
        return {"output_tokens_per_s": 100.0 + axes["block_size"] + number, "ttft_p50_s": 0.1, "tpot_p50_s": 0.01}

    run = axes_run(tmp_path, {"block_size": list(range(1, 61))}, row)
    whole = page(Contents(run), is_static=True)
    monkeypatch.setitem(LIMITS, True, len(whole.encode()) - 300)
    short = page(Contents(run), is_static=True)
    assert len(short.encode()) <= LIMITS[True]
    told = re.search(r"(\d+) of 60 cases", short)
    assert told is not None
    assert CASES_LEAST <= int(told[1]) < 60
    best = {line.case_id for line in Contents(run).kinds["engine"].by_primary()[: int(told[1])]}
    table = short.split("<caption>engine cases</caption>")[1].split("</table>")[0]
    assert table.count("<tr>") == 1 + len(best)


def test_sizes(both: dict[bool, str]) -> None:
    assert len(both[False].encode()) < 1_200_000
    assert len(both[True].encode()) < 200_000


@pytest.mark.parametrize("is_static", [False, True])
def test_every_chart_has_words_for_it_and_a_table_of_the_same_numbers(both: dict[bool, str], is_static: bool) -> None:
    source = both[is_static]
    figures = re.findall(r"<figure [^>]*>", source)
    assert len(figures) >= 10
    assert len(re.findall(r'<div role="img" aria-label="[^"]{20,}"', source)) == len(figures)
    for part in re.findall(r"<section id=.*?</section>", source, re.DOTALL):
        assert "<figure" not in part or "The same numbers as a table" in part
    assert Page(source).words.count("The same numbers as a table") >= 5
    assert "+100.0 %" in Page(source).words


@pytest.mark.parametrize("is_static", [False, True])
def test_m68_text_from_outside_is_never_markup(tmp_path: Path, is_static: bool) -> None:
    """Title, axis values, device, error, warning and suite text with elements, quotes and control characters."""
    run = evil_run(tmp_path)
    attack = "</script></title></style><script>alert(1)</script>\"'><svg onload=alert(2)> ${x} \u2028 <!--"
    run.plan["suite"]["text"] = attack
    for case in run.plan["cases"]:
        case["axes"]["trace"] += attack
    source = page(Contents(run), is_static=is_static)
    found = Page(source)
    assert found.open == []
    assert not any(name.startswith("on") for _, name, _ in found.loads)
    assert found.tags.count("script") == (0 if is_static else found.tags.count("figure") + 1)
    assert "alert(1)" in found.words
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", found.words)


def test_a_chart_with_hostile_names_is_text_in_the_drawing(tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "a.b[0]", "datum.x", "'); alert(3); ('"]
    run = axes_run(tmp_path, {"eviction": names, "block_size": [8, 16]}, engine)
    effects = axis_effects.figure(Contents(run), "engine")
    assert isinstance(effects, Figure)
    for drawn in (static_charts([effects]), live_charts([effects])):
        for chart in drawn.values():
            found = Page(chart)
            assert not {"img", "a", "image"} & set(found.tags)
            assert (found.tags.count("script"), found.open) == (chart.count("application/json"), [])
    assert "eviction &quot;&gt;&lt;img" in static_charts([effects])["effects-engine", 0].replace('"&gt;', "&quot;&gt;")


def test_markup_escapes_text_and_attributes_and_leaves_its_own_alone() -> None:
    assert el("p", "<&\"'>", title='"<') == '<p title="&quot;&lt;">&lt;&amp;&quot;&#x27;&gt;</p>'
    assert el("p", el("b", "x"), None, hidden=True, id=None) == "<p hidden><b>x</b></p>"
    assert isinstance(text("x"), Html)
    assert script_json({"a": "</script><!--"}) == '{"a":"\\u003c/script\\u003e\\u003c!--"}'


def test_an_svg_keeps_shapes_and_text_only() -> None:
    given = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9" '
        'viewBox="0 0 9 9">'
        '<script>x</script><image xlink:href="http://e"/><a xlink:href="javascript:x"><text>t</text></a>'
        '<g onclick="x" class="c"><path d="M0.123,1.26L5,1.26L5,7L6,8" stroke="red"/><path d=""/></g></svg>'
    )
    assert small_svg(given) == ('<svg viewBox="0 0 9 9" width="9"><path d="M0.1,1.3H5V7L6,8" stroke="red"/></svg>')


def kernel_run(tmp_path: Path) -> Run:
    def row(axes: dict[str, Any], _: int) -> dict[str, Any]:
        return {"decode_s": axes["block_size"] * 1e-6}

    return axes_run(tmp_path, {"block_size": [8, 16]}, row, kind="kernel")


def one_case(tmp_path: Path) -> Run:
    return axes_run(tmp_path, {"block_size": [8]}, engine)


def unfinished(tmp_path: Path) -> Run:
    with RunFolder.create(tmp_path, plan(3, 2)) as folder:
        folder.add(sample(0, 0))
        folder.add(sample(1, 0))
        return open_run(folder.path)


def nothing_ok(tmp_path: Path) -> Run:
    with RunFolder.create(tmp_path, plan(2, 1)) as folder:
        for n in range(2):
            folder.add(Sample(case_id(n), 0, "f", {"status": "oom", "error": "out of memory"}))
        return open_run(folder.path)


@pytest.mark.parametrize(
    ("make", "has", "lacks"),
    [
        (kernel_run, "Kernel time", "KV occupancy"),
        (one_case, "KV occupancy and batch size over time", '<section id="front"'),
        (unfinished, "Unfinished: 2 of 6 samples are here", "No sample ended ok"),
        (nothing_ok, "No sample ended ok", "<figure"),
    ],
)
def test_a_run_shows_what_it_has(tmp_path: Path, make: Any, has: str, lacks: str) -> None:
    source = page(Contents(make(tmp_path)), is_static=True)
    assert has in source
    assert lacks not in source
    assert "Not drawn" in source


def test_a_page_without_charts_has_no_script(tmp_path: Path) -> None:
    source = page(Contents(nothing_ok(tmp_path)), is_static=False)
    assert "<script" not in source
    assert "out of memory" in source


def test_the_command_writes_the_file_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, target = run_folder(tmp_path / "run"), tmp_path / "r.html"
    for _ in range(2):
        assert cli(["report", str(folder), "--html", str(target), "--static"]) == 0
        out, err = capsys.readouterr()
        assert out == ""
        assert str(target) in err.replace("\n", "")
    assert target.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "run"]


def test_metrics_that_were_asked_for_are_in_the_table_of_cases(tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    run = axes_run(tmp_path / "run", {"block_size": [8]}, engine)
    write_html(run, target, is_static=True, metrics=["tpot_p50_s"])
    found = re.search(r'<section id="cases">.*?</section>', target.read_text(), re.DOTALL)
    assert found is not None
    assert "tpot p50" in found[0]
    assert "output tokens/s" not in found[0]


@pytest.mark.parametrize("target", ["folder", "not/there/r.html", "notes.txt", "readonly/r.html"])
def test_a_target_that_a_report_must_not_replace_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "readonly").write_text("a file where a folder should be")
    assert cli(["report", str(run_folder(tmp_path / "run")), "--html", str(tmp_path / target)]) == 2
    err = capsys.readouterr().err
    assert "hint:" in err
    assert "Traceback" not in err
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "word"), [(["--static"], "--html"), (["--html", "r.html", "--format", "table"], "ask for one")]
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], word: str
) -> None:
    assert cli(["report", str(run_folder(tmp_path)), *options]) == 2
    assert word in capsys.readouterr().err


def test_without_the_extra_one_error_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli(["report", str(run_folder(tmp_path / "run")), "--html", str(tmp_path / "r.html")]) == 4
    err = capsys.readouterr().err
    assert "altair and vl-convert-python" in err
    assert "kvbench[report]" in err
    assert not (tmp_path / "r.html").exists()


def test_a_damaged_table_is_bad_data_and_damaged_parts_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed, target = run_folder(tmp_path / "a", is_sealed=True), tmp_path / "r.html"
    (sealed / "steps.parquet").write_bytes((sealed / "steps.parquet").read_bytes()[:80])
    assert cli(["report", str(sealed), "--html", str(target)]) == 5
    assert "steps.parquet" in capsys.readouterr().err.replace("\n", "")
    assert not target.exists()
    parts = run_folder(tmp_path / "b")
    next((parts / "parts").glob("*/steps.parquet")).write_bytes(b"PAR1")
    assert cli(["report", str(parts), "--html", str(target), "--static"]) == 0
    assert "1 stored samples are damaged" in target.read_text()


def test_a_run_without_any_sample_is_bad_data(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, plan()) as folder, pytest.raises(DataError, match="no finished sample"):
        write_html(open_run(folder.path), tmp_path / "r.html", is_static=True)


def test_evil_is_in_the_fixture() -> None:
    assert "<script>" in EVIL
