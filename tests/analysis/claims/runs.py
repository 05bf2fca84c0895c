"""Small made-up runs: cases by their axes, metrics by a centre with a known scatter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvbench.analysis.claims.evidence import Evidence, collect
from kvbench.analysis.claims.registry import checker_of
from kvbench.analysis.claims.types import ClaimVerdict

_SCATTER = (-1.0, 0.6, 1.1, -0.9, 0.2)
"""Of five processes; mean 0."""


def around(centre: float, spread: float = 0.001, shift: int = 0) -> list[float]:
    """Five samples about `centre`; another `shift` scatters independently."""
    return [centre * math.exp(spread * z) for z in (*_SCATTER[shift:], *_SCATTER[:shift])]


Metrics = Mapping[str, float | Sequence[float] | None]
CaseSpec = tuple[Mapping[str, Any], Metrics]


def evidence(
    engine: Sequence[CaseSpec] = (),
    kernel: Sequence[CaseSpec] = (),
    *,
    clock: str = "wall",
    samples: int = 5,
    failed: Sequence[int] = (),
    models: Mapping[str, Any] | None = None,
    spread: float = 0.0005,
) -> Evidence:
    """A run of these cases. A bare number is scattered by about `spread`; `failed` are places of cases of which no
    sample ended ok."""
    plan: dict[str, Any] = {"clock": clock, "cases": [], "models": models or {}}
    rows: list[dict[str, Any]] = []
    specs = [*(("engine", *spec) for spec in engine), *(("kernel", *spec) for spec in kernel)]
    for number, (kind, axes, metrics) in enumerate(specs):
        case_id = f"{number:012x}"
        plan["cases"].append({"case_id": case_id, "kind": kind, "axes": dict(axes)})
        values = {name: _samples(value, spread, number + at) for at, (name, value) in enumerate(metrics.items())}
        for sample in range(samples):
            status = "crash" if number in failed else "ok"
            found = {name: value[sample] for name, value in values.items() if value is not None}
            rows.append({"case_id": case_id, "sample": sample, "kind": kind, "status": status, **found})
    return collect(plan, rows)


def words(suite: str, run: Evidence) -> dict[str, str]:
    """Claim → held, not held, unclear or not tested."""
    return {verdict.claim: verdict.held for verdict in checked(suite, run)}


def checked(suite: str, run: Evidence) -> list[ClaimVerdict]:
    check = checker_of(suite)
    assert check is not None
    return check(run)


def _samples(value: float | Sequence[float] | None, spread: float, shift: int) -> list[float] | None:
    if value is None or isinstance(value, list | tuple):
        return None if value is None else list(value)
    assert isinstance(value, int | float)
    return around(value, spread, shift % len(_SCATTER))
