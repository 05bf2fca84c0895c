"""README, CHANGELOG and docs name what is there: links, files, commands and suites."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvbench.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "benchmarks/README.md", "results/README.md", "tests/CASES.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _text(page: Path) -> str:
    """Without fenced code, whose brackets are no links."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", _text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _sources() -> set[str]:
    folders = ("kvbench", "kernels", "suites", "tests", "benchmarks", "docs")
    return {path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.*")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _text(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(there), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_ours_that_a_page_names_exist(page: Path) -> None:
    """`engine/loop.py` may leave out the folders that its page is about."""
    sources = _sources()
    for name in re.findall(r"`([\w/.-]+\.(?:py|toml))`", _text(page)):
        if name != "pyproject.toml":
            assert any(f"/{source}".endswith(f"/{name}") for source in sources), f"{page.name}: {name}"


def test_the_readme_shows_every_command_and_no_other() -> None:
    fences = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"^kvbench (\w+)", "\n".join(fences), re.MULTILINE)) == set(COMMANDS)


def test_every_script_of_the_benchmarks_is_on_their_page() -> None:
    named = re.findall(r"`(\w+\.py)`", (ROOT / "benchmarks/README.md").read_text(encoding="utf-8"))
    assert set(named) == {path.name for path in (ROOT / "benchmarks").glob("*.py")}


def test_the_readme_says_how_to_run_and_how_to_test() -> None:
    for fence in ("run", "test"):
        assert re.search(rf"^```sh {fence}\nmake \w+\n```$", README, re.MULTILINE)


@pytest.mark.parametrize("page", ["suites.md", "claims.md"])
def test_every_suite_that_ships_is_in_the_table(page: str) -> None:
    table = re.findall(r"^\| `([\w-]+)` \| [^|]+ \|$", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(table) == sorted(path.stem for path in (ROOT / "suites").glob("*.toml"))
