"""An answer in sentences with its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvbench.analysis.advice.rule_of_thumb import USUAL_DEFAULT
from kvbench.units import format_count, format_seconds

if TYPE_CHECKING:
    from kvbench.analysis.advice.candidates import Range
    from kvbench.sweep.advise import Advice, Row


def headline(advice: Advice) -> str:
    """What to use, or that nothing meets the objectives."""
    chosen = advice.chosen
    if chosen is None:
        return _nothing(advice)
    words = ", ".join(f"{name} {chosen.candidate.settings[name]}" for name in advice.axes)
    others = [advice.rows[at].candidate for at in advice.decision.tied if at != advice.decision.chosen]
    if not others:
        return f"{kind_of(advice, chosen)}: {words}"
    names = _listed([_name(advice, other.settings) for other in others])
    return f"{kind_of(advice, chosen)}: {words}; the data cannot tell it apart from {names}"


def because(advice: Advice) -> str:
    """The reason in one sentence, with numbers."""
    chosen = advice.chosen
    if chosen is None or chosen.candidate.tokens_per_s is None:
        return ""
    rate = f"{rate_words(chosen.candidate.tokens_per_s.value)} output tokens/s {kind_of(advice, chosen)}"
    parts = [rate]
    if advice.decision.runner_up is not None:
        parts[0] += f", {_against(advice, advice.decision.runner_up)}"
    parts += _contrasts(advice, chosen)
    told = "; ".join(parts)
    return f"{told}. {advice.decision.rule.capitalize()}" if advice.decision.rule else told


def wrong_choice(advice: Advice) -> str:
    """What the worst candidate and the usual ones lose."""
    worst = advice.decision.worst
    if worst is None:
        return ""
    told = [_loses(_name_at(advice, worst), advice.decision.losses[worst])]
    for label, size in (("the usual default", USUAL_DEFAULT), ("the rule of thumb", advice.thumb)):
        at = _with_block(advice, size)
        if at is not None and at not in (worst, advice.decision.chosen):
            told.append(_loses(f"{label}, {_name_at(advice, at)},", advice.decision.losses[at]))
    return "; ".join(told)


def rate_words(tokens_per_s: float) -> str:
    """12,345, or 0.123 where there is less than one a second."""
    return format_count(tokens_per_s) if tokens_per_s >= 10 else f"{tokens_per_s:.3g}"


def kind_of(advice: Advice, row: Row) -> str:
    """`measured` on these very requests, `predicted` from others' steps, `modelled` without any."""
    if row.is_measured:
        return "measured"
    return "modelled" if advice.evidence.is_modelled else "predicted"


def share_cell(loss: Range | None) -> str:
    """`−3.1 % (−4.0 … −2.2)`: throughput against the chosen candidate's."""
    if loss is None or not math.isfinite(loss.value):
        return "–"
    ends = f" ({-loss.high:+.1%} … {-loss.low:+.1%})" if math.isfinite(loss.low + loss.high) else " (not known)"
    return f"{-loss.value:+.1%}{ends}" if loss.value or loss.low or loss.high else ""


def _nothing(advice: Advice) -> str:
    missed = [(row, text) for row, text in zip(advice.rows, advice.decision.missed, strict=True) if text]
    if missed:
        best = max(missed, key=lambda one: one[0].candidate.tokens_per_s.value if one[0].candidate.tokens_per_s else 0)
        return f"no candidate meets the objectives; with {best[0].candidate.label} {best[1]}"
    refused = next((row.candidate for row in advice.rows if row.candidate.refusal), None)
    return "nothing can be recommended" + (f"; {refused.label}: {refused.refusal}" if refused else "")


def _against(advice: Advice, other: int) -> str:
    chosen = advice.decision.chosen
    assert chosen is not None
    more = advice.gaps.between(chosen, other)
    if not math.isfinite(more.value):
        return f"which nothing compares with {_name_at(advice, other)}"
    word = "assumed to be" if advice.evidence.is_modelled and not advice.rows[chosen].is_measured else "95 % interval"
    ends = f"{word} {more.low:+.1%} … {more.high:+.1%}" if math.isfinite(more.high) else "interval not known"
    return f"{abs(more.value):.1%} {'more' if more.value >= 0 else 'less'} than {_name_at(advice, other)} ({ends})"


def _contrasts(advice: Advice, chosen: Row) -> list[str]:
    """What larger and smaller blocks would cost, where the block size is among the axes."""
    same = [row for row in advice.rows if row.prediction.refusal is None and _rest(row) == _rest(chosen)]
    larger = [row for row in same if row.settings.block_size > chosen.settings.block_size]
    smaller = [row for row in same if row.settings.block_size < chosen.settings.block_size]
    own, told = chosen.exact, []
    if larger:
        top = max(larger, key=lambda row: row.settings.block_size)
        told.append(
            f"its tails waste {own.life_waste_share:.1%} of what is stored and {own.life_sequences:,} sequences fit, "
            f"with {top.settings.block_size} {top.exact.life_waste_share:.1%} and {top.exact.life_sequences:,}"
        )
    if smaller and chosen.prediction.step_s is not None:
        low = min(smaller, key=lambda row: row.settings.block_size)
        if low.prediction.step_s is not None:
            word = "modelled" if advice.evidence.is_modelled else "predicted"
            told.append(
                f"a decode step of {chosen.prediction.step_batch} sequences is {word} to take "
                f"{format_seconds(chosen.prediction.step_s)}, with {low.settings.block_size} "
                f"{format_seconds(low.prediction.step_s)}"
            )
    return told


def _loses(name: str, loss: Range | None) -> str:
    """What `name` loses against the chosen one, or has more, with the ends of the interval."""
    if loss is None or not math.isfinite(loss.value):
        return f"{name} loses an unknown share"
    if loss.value < 0:
        ends = f" ({-loss.high:+.1%} … {-loss.low:+.1%})" if math.isfinite(loss.low + loss.high) else ""
        return f"{name} has {-loss.value:.1%} more{ends}"
    ends = f" ({loss.low:.1%} … {loss.high:.1%})" if math.isfinite(loss.low + loss.high) else ""
    return f"{name} loses {loss.value:.1%}{ends}"


def _rest(row: Row) -> list[tuple[str, str]]:
    return sorted((name, str(value)) for name, value in row.candidate.settings.items() if name != "block_size")


def _with_block(advice: Advice, size: int) -> int | None:
    """The candidate of a block size that is otherwise like the chosen one."""
    chosen = advice.chosen
    for at, row in enumerate(advice.rows):
        if chosen is not None and row.settings.block_size == size and _rest(row) == _rest(chosen):
            return at
    return None


def _name_at(advice: Advice, at: int) -> str:
    return _name(advice, advice.rows[at].candidate.settings)


def _name(advice: Advice, settings: Mapping[str, Any]) -> str:
    return " ".join(str(settings[name]) for name in advice.axes) or "the only candidate"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
