"""Suite → its checker, imported when it is used. A suite of the user's own has none."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from kvbench.analysis.claims.evidence import Evidence, evidence_of
from kvbench.analysis.claims.types import ClaimVerdict
from kvbench.paths import suites_dir

if TYPE_CHECKING:
    from kvbench.store.run import Run

Checker = Callable[[Evidence], list[ClaimVerdict]]

CHECKERS: dict[str, str] = {
    "block-size": "kvbench.analysis.claims.block_size:check",
    "contiguous-vs-paged": "kvbench.analysis.claims.contiguous_vs_paged:check",
    "batch-policy": "kvbench.analysis.claims.batch_policy:check",
    "admission": "kvbench.analysis.claims.admission:check",
    "preemption": "kvbench.analysis.claims.preemption:check",
    "prefix-cache": "kvbench.analysis.claims.prefix_cache:check",
    "beam-cow": "kvbench.analysis.claims.beam_cow:check",
    "kv-dtype": "kvbench.analysis.claims.kv_dtype:check",
    "mla": "kvbench.analysis.claims.mla:check",
    "offload": "kvbench.analysis.claims.offload:check",
    "sliding-window": "kvbench.analysis.claims.sliding_window:check",
    "speculative": "kvbench.analysis.claims.speculative:check",
    "systems": "kvbench.analysis.claims.systems:check",
    "traffic": "kvbench.analysis.claims.traffic:check",
    "smoke": "kvbench.analysis.claims.smoke:check",
    "reblocking": "kvbench.analysis.claims.reblocking:check",
}


def verdicts(run: Run) -> list[ClaimVerdict]:
    """What the run says of each part of its suite's claim; empty for a suite without a checker, and for one of the
    user's own that has the name of one and claims something else."""
    suite = run.plan["suite"]
    found = checker_of(str(suite["name"]))
    return found(evidence_of(run)) if found and suite.get("claim") == _claim_of(str(suite["name"])) else []


def _claim_of(suite: str) -> str | None:
    """The claim of the suite that ships under this name, which is what its checker judges."""
    path = suites_dir() / f"{suite}.toml"
    claim = tomllib.loads(path.read_text(encoding="utf-8")).get("claim") if path.is_file() else None
    return None if claim is None else str(claim)


def checker_of(suite: str) -> Checker | None:
    """The checker of a suite by its name."""
    if suite not in CHECKERS:
        return None
    module, _, name = CHECKERS[suite].partition(":")
    checker: Checker = getattr(import_module(module), name)
    return checker
