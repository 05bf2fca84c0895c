"""`sliding-window`: models with windows against full attention in the same memory, as contexts outgrow the window."""

from __future__ import annotations

from typing import Any

from kvbench.analysis.claims.estimates import Finding, labelled, merged, ratios
from kvbench.analysis.claims.evidence import CaseEvidence, Evidence, whole_numbers
from kvbench.analysis.claims.judge import Claim, at_most, everywhere, more_than, not_tested
from kvbench.analysis.claims.quantities import held_tokens_per_sequence
from kvbench.analysis.claims.types import ClaimVerdict

BOUND = Claim(
    "A window layer never holds more than its window",
    "slots held by a sequence, longest prompts over the shortest beyond the window:",
    at_most(1.1),
)
MORE = Claim(
    "At equal memory {name} serves more sequences than full attention",
    "sequences served at once, mean over time, prompts longer than the window:",
    more_than(1),
)


def check(evidence: Evidence) -> list[ClaimVerdict]:
    """Each model with windows against the one without, where prompts are longer than the window."""
    windows = {name: size for name in _names(evidence) if (size := _window(evidence, name))}
    full = [name for name in _names(evidence) if name not in windows and _groups(evidence, name)]
    if not windows or not full:
        lacking = "a window" if not windows else "full attention alone"
        told = BOUND.text, MORE.text.format(name="a model with windows")
        return [not_tested(text, f"the run has no model with {lacking}") for text in told]
    pure = [name for name in windows if all(group.get("window") for group in _groups(evidence, name))]
    bounds = [_growth(evidence, name, windows[name]) for name in pure]
    lack = Finding(lack="the run has no model with windows alone")
    found = [everywhere(BOUND, merged(*bounds) if bounds else lack, is_modelled=evidence.is_exact)]
    for name, window in windows.items():
        more = _beyond(evidence, "active_sequences_mean", name, full[0], window)
        claim = Claim(MORE.text.format(name=name), MORE.quantity, MORE.wanted)
        found.append(everywhere(claim, more, is_modelled=evidence.is_exact))
    return found


def _beyond(evidence: Evidence, metric: str, name: str, full: str, window: int) -> Finding:
    """The model over the one with full attention, for every prompt length beyond the window."""
    lengths = _lengths(evidence, name, window)
    if not lengths:
        return Finding(lack=f"the run has no prompts longer than the window of {window} tokens")
    found = []
    for length in lengths:
        sides = ({"model_name": one, "input_tokens": length} for one in (name, full))
        found.append(labelled(ratios(evidence, metric, *sides), f"prompts of {length}"))
    return merged(*found)


def _growth(evidence: Evidence, name: str, window: int) -> Finding:
    lengths = _lengths(evidence, name, window)
    if len(lengths) < 2:
        return Finding(lack=f"the run has no two prompt lengths beyond the window of {window} tokens")
    ends = ({"model_name": name, "input_tokens": length} for length in (lengths[-1], lengths[0]))
    return ratios(evidence, held_tokens_per_sequence, *ends)


def _lengths(evidence: Evidence, name: str, window: int) -> list[int]:
    lengths = whole_numbers(evidence.where({"model_name": name}), "input_tokens")
    return [length for length in lengths if length > window]


def _names(evidence: Evidence) -> list[str]:
    return [str(name) for name in evidence.values_of("model_name")]


def _groups(evidence: Evidence, name: str) -> list[dict[str, Any]]:
    cases: list[CaseEvidence] = evidence.where({"model_name": name})
    groups = cases[0].model.get("groups") if cases else None
    return [group for group in groups or [] if isinstance(group, dict)]


def _window(evidence: Evidence, name: str) -> int:
    """The smallest window of the model's layers; 0 without any."""
    sizes = [group.get("window") for group in _groups(evidence, name)]
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=0)
