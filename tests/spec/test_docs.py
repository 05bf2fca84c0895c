"""docs/suites.md has every key, as the models have it."""

from __future__ import annotations

from pathlib import Path

from kvbench.spec.keys import all_keys
from kvbench.spec.load import suite_names
from kvbench.spec.reference import BEGIN, END, key_tables, renewed

DOC = Path(__file__).resolve().parents[2] / "docs" / "suites.md"


def test_the_key_tables_are_those_of_the_models() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert BEGIN in text
    assert END in text
    assert renewed(text) == text, "run: python -m kvbench.spec.reference docs/suites.md"


def test_every_key_has_a_row() -> None:
    rows = key_tables()
    for path in all_keys():
        assert f"| `{path.partition('.')[2]}` |" in rows


def test_every_suite_that_ships_is_described() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert [name for name in suite_names() if f"`{name}`" not in text] == []
