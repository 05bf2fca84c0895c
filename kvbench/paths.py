"""Where things live: shipped suites, results, the user's cache, data and logs."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from platformdirs import user_cache_path, user_data_path, user_log_path


def suites_dir() -> Path:
    """The suites that ship: inside an installed wheel, else the checkout's `suites/`."""
    packaged = Path(str(files("kvbench"))) / "_suites"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parent.parent / "suites"


def cache_dir() -> Path:
    """The user's cache for kvbench; `KVBENCH_CACHE_DIR` moves it."""
    override = os.environ.get("KVBENCH_CACHE_DIR")
    return Path(override) if override else user_cache_path("kvbench")


def data_dir() -> Path:
    """What the user keeps, fitted models for one; `KVBENCH_DATA_DIR` moves it."""
    override = os.environ.get("KVBENCH_DATA_DIR")
    return Path(override) if override else user_data_path("kvbench")


def log_dir() -> Path:
    """Where the traceback of an internal error goes; `KVBENCH_CACHE_DIR` moves it as well."""
    override = os.environ.get("KVBENCH_CACHE_DIR")
    return Path(override) / "log" if override else user_log_path("kvbench")


def default_results_dir() -> Path:
    """`results/` under the current folder, where runs land unless `--out` says otherwise."""
    return Path("results")
