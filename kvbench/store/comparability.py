"""May two runs be compared? Their manifests must differ in the declared treatment and in nothing else that counts.

Cases are paired by content (their id), then, of those that are left, by the values of their axes: the same place in the
suite under another block size is a pair whose settings differ, and is refused unless the block size is the treatment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvbench.errors import CannotRunError, UsageError
from kvbench.store.comparability_rules import (
    NEVER_VARIED,
    NOTED,
    ONLY_STORED,
    VIRTUAL_NOTED,
    FieldPath,
    FieldRole,
    fits,
    is_varied,
    item_of,
    role_of,
    vary_words,
)
from kvbench.store.manifest import flat_paths

DEFAULT_VARY = ("git_commit",)
_MISSING = object()


class NotComparableError(CannotRunError):
    """The manifests differ in more than the declared treatment; `comparability` has the table."""

    def __init__(self, message: str, comparability: Comparability, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.comparability = comparability


class FieldDifference(NamedTuple):
    """One field in which two manifests differ. Where several cases differ alike it stands once, with their number."""

    role: FieldRole
    item: str
    field: str
    left: Any
    right: Any
    cases: int = 0
    vary: str = ""
    """The word that would declare it, empty where none may"""


class CasePair(NamedTuple):
    """Ids of one case in both runs: equal, but for a case whose settings are the treatment."""

    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Comparability:
    """What two manifests have in common and how they differ."""

    differences: tuple[FieldDifference, ...]
    pairs: tuple[CasePair, ...]
    left_only: tuple[str, ...]
    right_only: tuple[str, ...]
    """Ids of cases that one side lacks"""

    def having(self, role: FieldRole) -> list[FieldDifference]:
        return [difference for difference in self.differences if difference.role == role]

    @property
    def refused(self) -> list[FieldDifference]:
        """Differences for which nobody asked."""
        return self.having("equal")

    def check(self) -> None:
        """Raise `NotComparableError` where some must-be-equal field differs."""
        if self.refused:
            items = list(dict.fromkeys(difference.item for difference in self.refused))
            shown = ", ".join(items[:4]) + (f" and {len(items) - 4} more" if len(items) > 4 else "")
            raise NotComparableError(
                f"the two runs are not comparable: they differ in {shown}", self, hint=self._hint()
            )

    def _hint(self) -> str:
        if any(not difference.vary for difference in self.refused):
            return "measure both sides the same way; this difference can never be the treatment"
        words = dict.fromkeys(difference.vary for difference in self.refused)
        declared = " ".join(f"--vary {word}" for word in words)
        return f"measure both sides alike, or, if that is what you compare, declare it: {declared}"


def compare_manifests(
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    *,
    vary: Sequence[str] = DEFAULT_VARY,
    is_stored: bool = True,
) -> Comparability:
    """Every difference of two manifests with its role, under the declared treatment `vary`.

    `is_stored`: the sides were measured in different sessions, so that the GPU's UUID must be equal too. Raises
    `UsageError` for a word of `vary` that names nothing in either manifest.
    """
    sides = [_fields(left), _fields(right)]
    _check_words(vary, sides)
    noted: tuple[str, ...] = () if is_stored else ONLY_STORED
    if all(side.get(("clock",)) == "virtual" for side in sides):
        noted += VIRTUAL_NOTED
    pairs, left_only, right_only = _pairs(_cases(left), _cases(right), vary)
    found = [*_of_the_runs(sides, vary, noted), *_of_the_cases(left, right, pairs, vary, noted)]
    found += _mixed_systems(left, "first run") + _mixed_systems(right, "second run")
    order: tuple[FieldRole, ...] = ("equal", "treatment", "noted")
    found.sort(key=lambda difference: order.index(difference.role))
    return Comparability(tuple(found), tuple(pairs), tuple(left_only), tuple(right_only))


def _fields(manifest: Mapping[str, Any]) -> dict[FieldPath, Any]:
    """Path → value of what may decide whether runs are comparable, cases apart."""
    found = dict(flat_paths({"schema_version": manifest.get("schema_version"), **_controlled(manifest)}))
    found |= {("environment", *path): value for path, value in flat_paths(manifest.get("environment", {}))}
    return found


def _controlled(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Without the cases, and without what only repeats the suite's digest."""
    apart = ("cases", "earlier_systems", "suite")
    found = {key: value for key, value in manifest.get("controlled", {}).items() if key not in apart}
    suite = manifest.get("controlled", {}).get("suite", {})
    return {**found, "suite": {key: suite.get(key) for key in ("name", "digest")}}


def _cases(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {case["case_id"]: case for case in manifest.get("controlled", {}).get("cases", ()) if "case_id" in case}


def _of_the_runs(
    sides: Sequence[Mapping[FieldPath, Any]], vary: Sequence[str], noted: tuple[str, ...]
) -> Iterator[FieldDifference]:
    """Differences outside the cases. Models and workloads that one side lacks belong to cases that it lacks."""
    groups = [{path[:2] for path in side if path[0] in ("models", "workloads")} for side in sides]
    lone = groups[0] ^ groups[1]
    for path in sorted(sides[0].keys() | sides[1].keys()):
        values = [side.get(path, _MISSING) for side in sides]
        if path[:2] not in lone and not _same(*values):
            yield _difference(path, values, vary, noted)


def _of_the_cases(
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    pairs: Iterable[CasePair],
    vary: Sequence[str],
    noted: tuple[str, ...],
) -> list[FieldDifference]:
    """Differences of paired cases, each said once whatever the number of cases that have it."""
    cases = _cases(left), _cases(right)
    counts: Counter[tuple[FieldPath, str]] = Counter()
    found: dict[tuple[FieldPath, str], list[Any]] = {}
    for pair in pairs:
        sides = [dict(flat_paths(side[case_id])) for side, case_id in zip(cases, pair, strict=True)]
        for path in sorted(sides[0].keys() | sides[1].keys()):
            values = [side.get(path, _MISSING) for side in sides]
            if path != ("case_id",) and not _same(*values):
                key = path, repr(values)
                counts[key] += 1
                found[key] = values
    return [
        _difference(("cases", "*", *path), values, vary, noted, counts[path, text])
        for (path, text), values in found.items()
    ]


def _difference(
    path: FieldPath, values: Sequence[Any], vary: Sequence[str], noted: tuple[str, ...], cases: int = 0
) -> FieldDifference:
    left, right = (None if value is _MISSING else value for value in values)
    field = ".".join(path[2:] if cases else path)
    if path[0] == "environment":
        return FieldDifference("noted", "surroundings", field, left, right)
    item = item_of(path)
    word = _word_for(path)
    role = role_of(path, vary, noted)
    return FieldDifference(role, item.name if item else field, field, left, right, cases, word)


def _word_for(path: FieldPath) -> str:
    """What to give to `--vary` for a field, empty where nothing would help."""
    if path[0] == "cases" and len(path) > 3 and path[2] in ("engine", "kernel", "workload", "model"):
        return path[3]
    item = item_of(path)
    word = item.vary if item and item.vary else ".".join(path)
    return word if is_varied(path, [word]) else ""


def _same(left: Any, right: Any) -> bool:
    """A field that is missing and one that the machine does not tell are the same: nothing is known of either."""
    nothing = (None, _MISSING)
    return left is right or bool(left == right and type(left) is type(right)) or (left in nothing and right in nothing)


def _pairs(
    left: Mapping[str, Mapping[str, Any]], right: Mapping[str, Mapping[str, Any]], vary: Sequence[str]
) -> tuple[list[CasePair], list[str], list[str]]:
    pairs = [CasePair(case_id, case_id) for case_id in left if case_id in right]
    places = [_places(side, other, vary) for side, other in ((left, right), (right, left))]
    pairs += [CasePair(case_id, places[1][place]) for place, case_id in places[0].items() if place in places[1]]
    mine, theirs = {pair.left for pair in pairs}, {pair.right for pair in pairs}
    order = {case_id: at for at, case_id in enumerate(left)}
    pairs.sort(key=lambda pair: order[pair.left])
    return pairs, [c for c in left if c not in mine], [c for c in right if c not in theirs]


def _places(
    side: Mapping[str, Mapping[str, Any]], other: Mapping[str, Any], vary: Sequence[str]
) -> dict[tuple[Any, ...], str]:
    """(kind, axis values but for the varied ones) → case, of cases that the other side lacks; unique places only."""
    places = {case_id: _place(case, vary) for case_id, case in side.items() if case_id not in other}
    counts = Counter(places.values())
    return {place: case_id for case_id, place in places.items() if counts[place] == 1}


def _place(case: Mapping[str, Any], vary: Sequence[str]) -> tuple[Any, ...]:
    axes = case.get("axes", {})
    kept = {name: value for name, value in axes.items() if not is_varied(("cases", "*", "axes", name), vary)}
    return str(case.get("kind", "engine")), repr(sorted(kept.items(), key=str))


def _mixed_systems(manifest: Mapping[str, Any], side: str) -> list[FieldDifference]:
    """A run that was resumed on another machine is not one measurement: no treatment covers that."""
    controlled = manifest.get("controlled", {})
    now = dict(flat_paths({"system": controlled.get("system", {})}))
    found = []
    for earlier in controlled.get("earlier_systems", ()):
        before = dict(flat_paths({"system": earlier}))
        for path in sorted(now.keys() | before.keys()):
            values = before.get(path), now.get(path)
            item = item_of(path)
            if not _same(*values) and item is not None and not fits(path, NOTED):
                field = f"{'.'.join(path)} (within the {side})"
                found.append(FieldDifference("equal", f"{item.name}, within one run", field, *values))
    return found


def _check_words(vary: Iterable[str], sides: Sequence[Mapping[FieldPath, Any]]) -> None:
    from kvbench.store.setting_columns import setting_columns

    settings = {name for key, column in setting_columns().items() for name in (key, column.name, key.split(".", 1)[1])}
    for word in vary:
        if fits(tuple(word.split(".")), NEVER_VARIED):
            raise UsageError(f"--vary: {word} can never be the treatment", hint="measure both sides the same way")
        known = word in vary_words() or word in settings
        if not known and not any(is_varied(path, [word]) for side in sides for path in side):
            from difflib import get_close_matches

            close = get_close_matches(word, [*vary_words(), *settings], n=3, cutoff=0.6)
            hint = f"did you mean {', '.join(close)}?" if close else f"one of {', '.join(vary_words())}, or a setting"
            raise UsageError(f"--vary: nothing is called {word!r}", hint=hint)
