"""Suites written in a line or two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvbench.spec.cases import Case, expand
from kvbench.spec.load import LoadedSuite, from_effective, load_suite
from kvbench.spec.problems import SuiteError


def suite_of(**sections: Any) -> LoadedSuite:
    """A suite named `t` with these sections."""
    return from_effective({"name": "t", **sections})


def cases_of(**sections: Any) -> list[Case]:
    return expand(suite_of(**sections).suite)


def only_id(**sections: Any) -> str:
    (case,) = cases_of(**sections)
    return case.case_id


def errors_in(tmp_path: Path, text: str) -> list[str]:
    """What loading this file complains about, as `line: key: text`."""
    file = tmp_path / "s.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SuiteError) as caught:
        load_suite(file)
    return [str(problem).removeprefix(f"{file}:") for problem in caught.value.problems]
