"""`preemption`: recompute or swap, and three ways to choose a victim: do they differ, and in what?"""

from __future__ import annotations

from kvbench.analysis.claims.estimates import Finding, ratios
from kvbench.analysis.claims.evidence import Evidence
from kvbench.analysis.claims.judge import DIFFERENT, Claim, differs, not_tested
from kvbench.analysis.claims.types import ClaimVerdict

SWAP, RECOMPUTE = {"preemption": "swap"}, {"preemption": "recompute"}
FIFO = "first-arrived"
VICTIMS = ("lrc", "lrc-age")
METRICS = {
    "output_tokens_per_s": ("throughput", "output tokens/s"),
    "kv_utilisation_mean": ("memory", "share of the pool held, mean over time"),
    "e2e_p95_s": ("tail latency", "E2E p95"),
}


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Each of three numbers, for swapping against recomputing and for the victims by references against FIFO."""
    found = []
    for metric, (words, quantity) in METRICS.items():
        claim = Claim(f"Recompute and swap differ in {words}", f"{quantity}, swap over recompute:", DIFFERENT)
        found.append(_verdict(evidence, claim, ratios(evidence, metric, SWAP, RECOMPUTE)))
    for metric, (words, quantity) in METRICS.items():
        text = f"Victims by LRC, LRC+age and FIFO differ in {words}"
        claim = Claim(text, f"{quantity}, over first-arrived:", DIFFERENT)
        found.append(_verdict(evidence, claim, ratios(evidence, metric, {"victim": VICTIMS}, {"victim": FIFO})))
    return found


def _verdict(evidence: Evidence, claim: Claim, finding: Finding) -> ClaimVerdict:
    """Where nobody lost blocks, nothing is said of who loses them and how."""
    counts = [count for case in evidence.where({}) for count in case.values("preemptions").values()]
    if finding.estimates and counts and not any(counts):
        return not_tested(claim, "nobody was preempted in this run", is_modelled=evidence.is_exact)
    return differs(claim, finding, is_modelled=evidence.is_exact)
