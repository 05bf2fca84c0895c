"""Fits that are kept: the same answer without fitting again, and never an answer of other runs or of a damaged file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.store.run import Run
from kvbench.sweep.advice import kept_fits
from tests.sweep.synthetic_run import SUITE, planted_run

SMALL = (
    SUITE.replace("[4, 16, 64]", "[4, 16]")
    .replace('["continuous", "chunked"]', '["chunked"]')
    .replace('["all-at-once", "poisson"]', '["all-at-once"]')
    .replace("arrival = { rate = 60 }\n", "")
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return planted_run(tmp_path_factory.mktemp("kept"), SMALL)


@pytest.fixture
def fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVBENCH_CACHE_DIR", str(tmp_path))
    return tmp_path / "fits"


def refuse(*_: object) -> kept_fits.KeptFit:
    raise AssertionError("fitted again")


def test_the_same_runs_are_fitted_once(run: Run, fits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept_fits.fit_of([run])
    assert len(list(fits.iterdir())) == 1
    monkeypatch.setattr(kept_fits, "_fitted", refuse)
    again = kept_fits.fit_of([run])
    assert again.file == first.file
    assert dict(again.errors) == dict(first.errors)
    assert len(again.errors) == 2


def test_other_code_or_another_manifest_is_fitted_anew(run: Run, fits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_fits.fit_of([run])
    monkeypatch.setattr(kept_fits, "fit_digest", lambda: "other code")
    kept_fits.fit_of([run])
    assert len(list(fits.iterdir())) == 2


def test_a_damaged_file_is_fitted_anew_and_replaced(run: Run, fits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept_fits.fit_of([run])
    (folder,) = fits.iterdir()
    for name in ("fitted.json", "errors.json"):
        whole = (folder / name).read_text()
        (folder / name).write_text(whole[: len(whole) // 2])
        assert kept_fits.fit_of([run]).file == first.file
        assert (folder / name).read_text() == whole
    assert [path.name for path in fits.iterdir()] == [folder.name]


def test_a_run_that_is_not_sealed_is_not_kept(run: Run, fits: Path) -> None:
    (run.path / "parts" / "open").mkdir(parents=True)
    try:
        kept_fits.fit_of([run])
    finally:
        (run.path / "parts" / "open").rmdir()
        (run.path / "parts").rmdir()
    assert not fits.exists()
