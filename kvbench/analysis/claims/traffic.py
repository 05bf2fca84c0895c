"""`traffic`: does a setting matter on this traffic? For every axis, between its first value and the others."""

from __future__ import annotations

from typing import Any

from kvbench.analysis.claims.estimates import average_ratio, merged
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import DIFFERENT, Claim, differs, not_tested
from kvbench.analysis.claims.types import ClaimVerdict

METRICS = {"output_tokens_per_s": "throughput", "ttft_p95_s": "the tail of TTFT", "tpot_p95_s": "the tail of TPOT"}
TEXT = "{axis} costs or buys {words}"


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Throughput and both tails, for every axis of the engine cases."""
    axes = list(dict.fromkeys(name for case in evidence.cases if case.kind == "engine" for name in case.axes))
    varied = {axis: values for axis in axes if len(values := _values(evidence, axis)) > 1}
    found = [_verdict(evidence, axis, values, metric) for axis, values in varied.items() for metric in METRICS]
    return found or [not_tested("What each setting costs and buys", "the run varies no setting")]


def _verdict(evidence: Evidence, axis: str, values: list[Any], metric: str) -> ClaimVerdict:
    """Every value over the first one, on average over the other axes."""
    first, words = values[0], METRICS[metric]
    claim = Claim(TEXT.format(axis=axis, words=words), f"{metric}, average ratio to {axis}={first}:", DIFFERENT)
    found = [average_ratio(evidence, metric, {axis: one}, {axis: first}, f"{axis}={one}") for one in values[1:]]
    return differs(claim, merged(*found), is_modelled=evidence.is_exact)


def _values(evidence: Evidence, axis: str) -> list[Any]:
    found: list[Any] = []
    for case in evidence.cases:
        if case.kind == "engine" and axis in case.axes and case.axes[axis] not in found:
            found.append(case.axes[axis])
    return found
