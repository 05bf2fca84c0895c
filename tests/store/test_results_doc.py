from __future__ import annotations

from pathlib import Path

from kvbench.store.results_doc import results_markdown


def test_docs_results_is_what_the_schemas_say() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "results.md"
    assert page.read_text(encoding="utf-8") == results_markdown(), "run python -m kvbench.store.results_doc"
