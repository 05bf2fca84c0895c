"""An answer of `kvbench recommend` as tables for people and as records for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbench.analysis.advice.rule_of_thumb import USUAL_DEFAULT
from kvbench.cli.output import Table
from kvbench.sweep.advice.reasons import because, headline, kind_of, rate_words, share_cell, wrong_choice
from kvbench.tabulate import MISSING
from kvbench.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from kvbench.analysis.advice.candidates import Range
    from kvbench.sweep.advise import Advice, Row

FRONT = "◆"
_HITS_LOST = "hits lost"


def tables_of(advice: Advice) -> list[Table]:
    """The answer in words, and the candidates."""
    return [_answer(advice), _candidates(advice)]


def _answer(advice: Advice) -> Table:
    decision = advice.decision
    runner_up = None if decision.runner_up is None else advice.rows[decision.runner_up].candidate.label
    lines = [
        ("use", headline(advice)),
        ("because", because(advice)),
        ("runner-up", runner_up or ""),
        ("a wrong choice", wrong_choice(advice)),
        ("by", f"{advice.evidence.words}; {served(advice)}"),
        *(("note", note) for note in advice.notes),
    ]
    sample, row = advice.sample, advice.rows[0]
    title = (
        f"{sample.label}: {sample.requests_total:,} requests, median {sample.median_tokens:,} tokens; "
        f"{advice.evidence.geometry.name} on {advice.evidence.device.name}, KV {format_bytes(row.exact.pool_bytes)}, "
        f"at most {row.settings.max_sequences} sequences at once"
    )
    return Table(title, ("", "answer"), [line for line in lines if line[1]])


def served(advice: Advice) -> str:
    """What each number of the candidates rests on, in words."""
    arrival = advice.rows[0].case.workload
    assert arrival is not None
    kind = arrival.arrival.kind
    how = f"closed loop of {arrival.arrival.clients} clients" if kind == "closed-loop" else kind.replace("-", " ")
    rounds = [len(row.measured) for row in advice.rows if row.is_measured]
    if len(rounds) == len(advice.rows):
        return f"every candidate was measured on these very requests, {min(rounds)} rounds, {how}"
    told = f"every candidate served {advice.plan.told} on the virtual clock, {how}"
    return f"{told}; {len(rounds)} of {len(advice.rows)} were measured on them as well" if rounds else told


def _candidates(advice: Advice) -> Table:
    has_error = any(row.kv_error is not None for row in advice.rows) and "kv_dtype" in advice.axes
    has_hits = any(row.exact.hits is not None for row in advice.rows)
    heads = [*advice.axes, "", "front", "tail waste", "tables", "fit at once", "tokens of KV"]
    heads += [_HITS_LOST] * has_hits + ["decode step", "output tokens/s", "against it", "ttft p50", "tpot p50"]
    has_quality = any(row.quality is not None for row in advice.rows)
    heads += (
        ["KV error"] * has_error + ["KL, nats", "perplexity change", "same top-1"] * has_quality + ["kind", "why not"]
    )
    rows = []
    for at, row in enumerate(advice.rows):
        exact, candidate = row.exact, row.candidate
        cells = [str(candidate.settings[name]) for name in advice.axes]
        cells += [", ".join(marks(advice, at)), FRONT if advice.decision.front[at] else ""]
        cells += [f"{exact.life_waste_share:.1%}", format_bytes(exact.table_bytes)]
        cells += [format_count(exact.life_sequences), format_count(exact.num_blocks * exact.block_size)]
        cells += [_hits_lost(advice, row)] * has_hits
        cells += [format_seconds(row.prediction.step_s), _rate(candidate.tokens_per_s)]
        cells += [share_cell(advice.decision.losses[at])]
        cells += [_time(candidate.ttft_s), _time(candidate.tpot_s)]
        cells += [MISSING if row.kv_error is None else f"{row.kv_error:.2g}"] * has_error
        cells += _quality(row) * has_quality
        cells += [kind_of(advice, row) if candidate.tokens_per_s else MISSING, _why_not(advice, at)]
        rows.append(cells)
    kept = [at for at in range(len(heads)) if heads[at] != "why not" or any(cells[at] for cells in rows)]
    footer = _footer(advice, has_hits)
    numbers = frozenset(range(len(advice.axes) + 2, len(heads) - 2))
    shown = [[cells[at] for at in kept] for cells in rows]
    return Table("", [heads[at] for at in kept], shown, numbers & frozenset(kept), footer)


def _hits_lost(advice: Advice, row: Row) -> str:
    """Of a candidate that has a cache; of all where none has one, for then it speaks of the block size."""
    caches = [one.settings.prefix_cache != "none" for one in advice.rows]
    if row.exact.hits is None or (any(caches) and row.settings.prefix_cache == "none"):
        return MISSING
    share = row.exact.hits.lost_share
    return "< 0.1%" if 0 < share < 0.001 else f"{share:.1%}"


def _footer(advice: Advice, has_hits: bool) -> str:
    parts = [f"{FRONT} no other has more output tokens/s at no worse latency"]
    parts += ["tail waste, tables, what fits and hits lost are exact"]
    if has_hits and any(row.exact.hits is not None and row.exact.hits.sharing == "synthetic" for row in advice.rows):
        parts += ["hits lost inside the trace's own, larger blocks are synthetic"]
    if any(row.is_measured for row in advice.rows) or not advice.evidence.is_modelled:
        parts += ["in brackets: 95 % over the rounds of what was measured, else 90 % by the model's errors"]
        parts += ["against it: throughput on the same requests, with the 95 % interval of the difference"]
    else:
        parts += ["against it: throughput on the same requests; the bracket is an assumption, for nothing was measured"]
    return " · ".join(parts)


def _quality(row: Row) -> list[str]:
    """The numbers of the text; missing where the setting was not among them or has none."""
    if row.quality is None or row.quality.metrics is None:
        return [MISSING] * 3
    found = row.quality.metrics
    kl, change, top1 = (value.value for value in (found.kl_nats, found.perplexity_change, found.top1_agreement))
    return ["0" if kl == 0 else f"{kl:.1e}", "0" if change == 0 else f"{change:+.3%}", f"{top1:.2%}"]


def marks(advice: Advice, at: int) -> list[str]:
    """What a candidate is known as."""
    decision, row = advice.decision, advice.rows[at]
    found = ["recommended"] * (at == decision.chosen) + ["runner-up"] * (at == decision.runner_up)
    found += ["tied"] * (at in decision.tied and at != decision.chosen and at != decision.runner_up)
    found += ["usual default"] * (row.settings.block_size == USUAL_DEFAULT)
    found += ["rule of thumb"] * (row.settings.block_size == advice.thumb)
    return found


def _why_not(advice: Advice, at: int) -> str:
    found = advice.rows[at].candidate.refusal or advice.decision.missed[at] or ""
    return found or ("an objective lies within its interval" if advice.decision.doubtful[at] else "")


def _rate(value: Range | None) -> str:
    if value is None:
        return MISSING
    ends = f" ({rate_words(value.low)} … {rate_words(value.high)})" if value.high > value.low else ""
    return f"{rate_words(value.value)}{ends}"


def _time(value: Range | None) -> str:
    return MISSING if value is None else format_seconds(value.value)


def records_of(advice: Advice) -> list[dict[str, Any]]:
    """A record for every candidate, base units."""
    return [_record(advice, at, row) for at, row in enumerate(advice.rows)]


def _record(advice: Advice, at: int, row: Row) -> dict[str, Any]:
    exact, candidate, decision = row.exact, row.candidate, advice.decision
    hits = exact.hits
    return {
        **{name: candidate.settings[name] for name in advice.axes},
        "recommended": at == decision.chosen,
        "runner_up": at == decision.runner_up,
        "tied": at in decision.tied and len(decision.tied) > 1,
        "front": decision.front[at],
        "usual_default": row.settings.block_size == USUAL_DEFAULT,
        "rule_of_thumb": row.settings.block_size == advice.thumb,
        "kind": kind_of(advice, row) if candidate.tokens_per_s else None,
        "life_waste_share": exact.life_waste_share,
        "end_waste_share": exact.end_waste_share,
        "table_bytes": exact.table_bytes,
        "pool_bytes": exact.pool_bytes,
        "capacity_sequences": exact.life_sequences,
        "capacity_tokens": exact.num_blocks * exact.block_size,
        "hits_most_share": hits.hit_rate if hits else None,
        "hits_lost_share": hits.lost_share if hits else None,
        "hits_sharing": hits.sharing if hits else None,
        "decode_step_s": row.prediction.step_s,
        "decode_step_kind": _step_kind(advice, row),
        **_ends("output_tokens_per_s", candidate.tokens_per_s),
        **_ends("loss_share", decision.losses[at]),
        **_ends("ttft_p50_s", candidate.ttft_s),
        **_ends("tpot_p50_s", candidate.tpot_s),
        "kv_error_rel_rms": row.kv_error,
        **_quality_record(row),
        "refusal": candidate.refusal,
        "missed": decision.missed[at],
        "notes": list(candidate.notes),
    }


def _step_kind(advice: Advice, row: Row) -> str | None:
    """The model's in any case, also where a candidate was measured."""
    if row.prediction.step_s is None:
        return None
    return "modelled" if advice.evidence.is_modelled else "predicted"


def _quality_record(row: Row) -> dict[str, float | None]:
    from kvbench.analysis.quality import METRICS, flat_metrics

    if row.quality is None or row.quality.metrics is None:
        return {f"{name}{end}": None for name in METRICS for end in ("", "_low", "_high")}
    return flat_metrics(row.quality.metrics)


def _ends(name: str, value: Range | None) -> dict[str, float | None]:
    """Value and interval; an end that is not known is missing."""
    if value is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: _finite(value.value), f"{name}_low": _finite(value.low), f"{name}_high": _finite(value.high)}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _arrival(advice: Advice) -> dict[str, Any]:
    workload = advice.rows[0].case.workload
    assert workload is not None
    arrival = workload.arrival
    return {"kind": arrival.kind, **arrival.model_dump(mode="json", exclude_defaults=True)}


def document_of(advice: Advice) -> dict[str, Any]:
    """Everything, JSON-able."""
    chosen = advice.chosen
    return {
        "recommendation": None if chosen is None else {n: chosen.candidate.settings[n] for n in advice.axes},
        "verdict": advice.decision.verdict,
        "answer": headline(advice),
        "because": because(advice),
        "wrong_choice": wrong_choice(advice),
        "evidence": {
            "kind": advice.evidence.kind,
            "words": advice.evidence.words,
            "served": advice.plan.told,
            "requests_served": advice.plan.requests,
            "arrival": _arrival(advice),
        },
        "objectives": {"ttft_p50_s": advice.question.slo.ttft_s, "tpot_p50_s": advice.question.slo.tpot_s},
        "lengths": {"label": advice.sample.label, **advice.sample.summary()},
        "model": advice.evidence.geometry.name,
        "weight_dtype": advice.rows[0].settings.weight_dtype,
        "tp": advice.question.tp,
        "max_sequences": advice.rows[0].settings.max_sequences,
        "device": advice.evidence.device.name,
        "rule_of_thumb": advice.thumb,
        "notes": list(advice.notes),
        "candidates": records_of(advice),
    }
