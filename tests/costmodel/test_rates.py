"""Cost-model files: what is written is read, and nothing else is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.costmodel.profiles import virtual_device
from kvbench.costmodel.rates import read_rates, write_rates
from kvbench.costmodel.roofline import roofline
from kvbench.digested import digest_of
from kvbench.errors import DataError, UsageError

RATES = roofline(virtual_device("a100")).rates


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rates.json"
    write_rates(path, RATES, name="a100 as measured", source="a test")
    return path


def test_what_is_written_is_read(path: Path) -> None:
    found = read_rates(path)
    assert found.rates == RATES
    assert found.label.startswith("a100 as measured (")


def test_other_numbers_have_another_digest(path: Path) -> None:
    before = read_rates(path)
    write_rates(path, replace(RATES, step_s=1.0), name="a100 as measured", source="a test")
    assert read_rates(path).digest != before.digest
    assert read_rates(path).label != before.label


def change(path: Path, by: Callable[[dict[str, Any]], object], *, resealed: bool = True) -> None:
    content = json.loads(path.read_text())
    by(content)
    if resealed:
        content["digest"] = digest_of(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("by", "says"),
    [
        (lambda c: c["rates"].pop("step_s"), "step_s is missing"),
        (lambda c: c["rates"].update(speed=1), "speed is unknown"),
        (lambda c: c["rates"].update(kv_bytes=0), "not above 0"),
        (lambda c: c["rates"].update(step_s=-1), "not from 0 up"),
        (lambda c: c["rates"].update(step_s=True), "not a finite number"),
        (lambda c: c["rates"].update(step_s=float("nan")), "not a finite number"),
        (lambda c: c["rates"].update(step_s=10**400), "not a finite number"),
        (lambda c: c["rates"].update(step_s="fast"), "not a finite number"),
        (lambda c: c.update(rates=[1]), "not an object"),
        (lambda c: c.update(name=7), "name is not a text"),
        (lambda c: c.update(version=2), "version 1"),
        (lambda c: c.update(format="another"), "kvbench cost model"),
    ],
)
def test_a_file_that_is_no_cost_model_is_refused_by_name(
    path: Path, by: Callable[[dict[str, Any]], object], says: str
) -> None:
    change(path, by)
    with pytest.raises(UsageError, match=says):
        read_rates(path)


def test_a_file_changed_by_hand_is_noticed(path: Path) -> None:
    change(path, lambda c: c["rates"].update(step_s=0.1), resealed=False)
    with pytest.raises(DataError, match="digest"):
        read_rates(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "\x00", "[" * 100_000])
def test_what_is_not_a_json_object_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(UsageError):
        read_rates(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError):
            read_rates(place)
