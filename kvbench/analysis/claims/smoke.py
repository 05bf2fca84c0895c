"""`smoke`: the engine runs under every setting and answers. Nothing is estimated here: one failure is a failure."""

from __future__ import annotations

from collections.abc import Callable

from kvbench.analysis.claims.evidence import CaseEvidence, Evidence, Row
from kvbench.analysis.claims.judge import not_tested
from kvbench.analysis.claims.types import MODELLED, ClaimVerdict

RUNS = "The engine runs under every setting"
ANSWERS = "It answers the same requests, all of them"
HITS = "Every prefix cache finds something"
PROMOTES = "Every tier gives blocks back"


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Every sample of every case."""
    engine = [case for case in evidence.cases if case.kind == "engine"]
    cached = [case for case in engine if case.settings.get("prefix_cache", "none") != "none"]
    tiered = [case for case in cached if case.settings.get("offload", "none") != "none"]
    found = [_runs(evidence)]
    found += [
        _all_rows(evidence, ANSWERS, engine, _finished, "finish every request"),
        _all_rows(evidence, HITS, cached, lambda row: bool(row.get("prefix_cache_hits")), "hit"),
        _all_rows(evidence, PROMOTES, tiered, _promoted, "promote"),
    ]
    return found


def _runs(evidence: Evidence) -> ClaimVerdict:
    statuses = [status for case in evidence.cases for status in case.statuses]
    waiting = sum(1 for case in evidence.cases if not case.statuses)
    bad = [status for status in statuses if status not in ("ok", "skipped")]
    skipped = statuses.count("skipped")
    told = f"{statuses.count('ok')} of {len(statuses)} samples of {len(evidence.cases)} cases are ok"
    if bad:
        return _told(evidence, RUNS, False, told)
    if waiting or skipped:
        told += f"; {skipped} were skipped, for they cannot run here" if skipped else f"; {waiting} cases have not run"
        return ClaimVerdict(RUNS, "unclear", told, is_modelled=evidence.is_exact)
    return _told(evidence, RUNS, True, told)


def _all_rows(
    evidence: Evidence, claim: str, cases: list[CaseEvidence], is_good: Callable[[Row], bool], words: str
) -> ClaimVerdict:
    rows = [row for case in cases for row in case.rows.values()]
    if not rows:
        return not_tested(claim, "the run has no such case that ended ok", is_modelled=evidence.is_exact)
    good = sum(map(is_good, rows))
    return _told(evidence, claim, good == len(rows), f"{good} of {len(rows)} samples {words}")


def _finished(row: Row) -> bool:
    total = row.get("requests_total")
    return bool(total) and row.get("requests_finished") == total


def _promoted(row: Row) -> bool:
    return bool(row.get("host_promotions") or row.get("disk_promotions"))


def _told(evidence: Evidence, claim: str, is_so: bool, why: str) -> ClaimVerdict:
    told = f"{MODELLED}: {why}" if evidence.is_exact else why
    return ClaimVerdict(claim, "held" if is_so else "not held", told, is_modelled=evidence.is_exact)
