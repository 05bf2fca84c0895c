"""A byte-level checkpoint that has learned from the project's pages, trained once in a session."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = 96


@pytest.fixture(scope="session")
def trainer() -> ModuleType:
    """`benchmarks/train_byte_model.py` as a module."""
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("train_byte_model", ROOT / "benchmarks" / "train_byte_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def trained(trainer: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    folder = tmp_path_factory.mktemp("bytes")
    recipe = trainer.Recipe(steps=250, context=CONTEXT, hidden=64, layers=2, batch=2)
    return folder, trainer.train(folder, recipe)


@pytest.fixture(scope="session")
def checkpoint(trained: tuple[Path, dict[str, float]]) -> Path:
    return trained[0]


@pytest.fixture(scope="session")
def page(trainer: ModuleType) -> Path:
    """The page that the checkpoint has not seen."""
    return ROOT / "docs" / trainer.HELD_OUT


@pytest.fixture(scope="session")
def windows(page: Path) -> Any:
    """The page's first bytes, `[6, 96]`."""
    return np.frombuffer(page.read_bytes()[: 6 * CONTEXT], np.uint8).astype(np.int64).reshape(6, CONTEXT)
