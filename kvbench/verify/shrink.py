"""From a failing scenario to a small one that fails in the same way (delta debugging, Zeller & Hildebrandt 2002)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError
from kvbench.verify.play import Outcome, play

if TYPE_CHECKING:
    from kvbench.verify.scenario import Ask, Scenario

Play = Callable[["Scenario"], Outcome]


def shrink(scenario: Scenario, failure: str, *, seconds: float = 30.0, run: Play = play) -> Scenario:
    """The smallest scenario found in the time that fails with the same message, numbers apart."""
    deadline, kind = time.monotonic() + seconds, failure_kind(failure)
    while time.monotonic() < deadline:
        smaller = _first_that_fails(scenario, kind, run, deadline)
        if smaller is None:
            break
        scenario = smaller
    return scenario


def failure_kind(failure: str) -> str:
    """The message without its numbers and lists: the same fault, whichever block it hits."""
    return re.sub(r"\[[^\]]*\]|\d+", "#", failure)


def _first_that_fails(scenario: Scenario, kind: str, run: Play, deadline: float) -> Scenario | None:
    for candidate in _smaller(scenario):
        if time.monotonic() > deadline:
            return None
        if _fails(candidate, kind, run):
            return candidate
    return None


def _fails(candidate: Scenario, kind: str, run: Play) -> bool:
    """In the same way; a candidate whose settings no longer go together does not count."""
    try:
        failure = run(candidate).failure
    except UsageError:
        return False
    return failure is not None and failure_kind(failure) == kind


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """One simplification each, the boldest first."""
    yield from (replace(scenario, asks=kept) for kept in _subsets(scenario.asks, keep_one=True))
    yield from (replace(scenario, faults=kept) for kept in _subsets(scenario.faults, keep_one=False))
    for at, ask in enumerate(scenario.asks):
        for simpler in _simpler_ask(ask):
            yield replace(scenario, asks=(*scenario.asks[:at], simpler, *scenario.asks[at + 1 :]))
    for key in scenario.engine:
        yield replace(scenario, engine={k: v for k, v in scenario.engine.items() if k != key})
    if scenario.weak_hash:
        yield replace(scenario, weak_hash=False)


def _subsets(items: tuple[Any, ...], keep_one: bool) -> Iterator[tuple[Any, ...]]:
    """Halves, quarters … single items left out."""
    size = len(items)
    while size > 1:
        size = (size + 1) // 2
        for start in range(0, len(items), size):
            kept = items[:start] + items[start + size :]
            if kept or not keep_one:
                yield kept
    if len(items) == 1 and not keep_one:
        yield ()


def _simpler_ask(ask: Ask) -> Iterator[Ask]:
    if len(ask.prompt) > 1:
        yield replace(ask, prompt=ask.prompt[: len(ask.prompt) // 2])
        yield replace(ask, prompt=ask.prompt[:-1])
    if ask.output > 1:
        yield replace(ask, output=ask.output // 2)
        yield replace(ask, output=ask.output - 1)
    for field in fields(ask):
        if field.default is not MISSING and getattr(ask, field.name) != field.default:
            changed: dict[str, Any] = {field.name: field.default}
            yield replace(ask, **changed)
