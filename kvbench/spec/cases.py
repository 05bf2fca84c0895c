"""A suite multiplied out: products of axes and zip groups, less what rules leave out, each point a case."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from kvbench.spec.engine import EngineSettings
from kvbench.spec.fields import PARTIAL, Settings
from kvbench.spec.identity import case_id, deciding_text, moot_keys, state_text
from kvbench.spec.keys import SECTIONS, SECTIONS_OF, Kind, column
from kvbench.spec.matrix import MAX_CASES, Matrix, Rule, Setting, read_matrix
from kvbench.spec.overlay import Texts, base_of, overlaid
from kvbench.spec.problems import Problem, SuiteError
from kvbench.spec.refusals import Refusals
from kvbench.spec.suite import CacheState, KernelSettings, ModelSettings, Suite
from kvbench.spec.translate import problems_of
from kvbench.spec.workload import WorkloadSettings

Point = tuple[Setting, ...]


@dataclass(frozen=True)
class Case:
    """One point of the matrix, all axes fixed.

    `case_id` is content: it does not depend on key order, on the spelling of a value, or on which values are axes.
    `axes` maps column → value of this kind's axes, in the suite's order.
    """

    case_id: str
    kind: Kind
    axes: dict[str, Any]
    model: ModelSettings
    engine: EngineSettings | None
    workload: WorkloadSettings | None
    kernel: KernelSettings | None
    cache_state: CacheState = "cold"

    @property
    def label(self) -> str:
        """`block_size=16 kv_dtype=bf16`, or the kind when nothing is varied."""
        return " ".join(f"{name}={value}" for name, value in self.axes.items()) or self.kind


@dataclass
class Expansion:
    """All cases and all that is wrong."""

    cases: list[Case] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    moot: dict[str, dict[str, str]] = field(default_factory=dict)
    """Section → its settings that decide nothing in any case, and why."""
    idle_rules: list[str] = field(default_factory=list)
    """Places of `exclude` and `only` entries that match no case."""

    @property
    def moot_everywhere(self) -> dict[str, str]:
        return {key: why for section in self.moot.values() for key, why in section.items()}


def expand(suite: Suite) -> list[Case]:
    """Every case of the suite, engine cases first, in the order of the axes (the last one runs fastest).

    Raises SuiteError that lists every bad axis, impossible combination and duplicate.
    """
    expansion = expand_all(suite)
    if expansion.problems:
        raise SuiteError(expansion.problems, what=f"suite {suite.name}")
    return expansion.cases


def kinds_of(suite: Suite, matrix: Matrix) -> list[Kind]:
    """Kinds of case: by the presence of `[engine]`, `[workload]` or `[kernel]`, or of an axis of that kind."""
    is_engine = suite.engine is not None or "workload" in suite.model_fields_set or bool(matrix.of_kind("engine"))
    is_kernel = suite.kernel is not None or bool(matrix.of_kind("kernel"))
    kinds: tuple[tuple[Kind, bool], ...] = (("engine", is_engine), ("kernel", is_kernel))
    return [kind for kind, is_there in kinds if is_there]


def expand_all(suite: Suite) -> Expansion:
    """Like `expand`, with the problems beside the cases."""
    matrix = read_matrix({"axes": suite.axes, "zip": suite.zip, "exclude": suite.exclude, "only": suite.only})
    expansion = Expansion(problems=list(matrix.problems))
    kinds = kinds_of(suite, matrix)
    count = sum(matrix.count(kind) for kind in kinds)
    if not expansion.problems and count > MAX_CASES:
        text = f"{count:,} combinations; at most {MAX_CASES:,} cases make a suite"
        expansion.problems.append(Problem("axes", text))
    if expansion.problems:
        return expansion
    if not kinds:
        expansion.problems.append(Problem("", "no cases; expected an [engine] or a [kernel] table, or an axis of one"))
    for kind in kinds:
        _Expander(suite, matrix, kind, expansion).run()
    if kinds and not expansion.cases and not expansion.problems:
        expansion.problems.append(_nothing_left(matrix, count))
    _refuse_duplicates(expansion)
    return expansion


def _nothing_left(matrix: Matrix, count: int) -> Problem:
    where = "only" if matrix.only else "exclude"
    return Problem(where, f"leaves none of the {count:,} combinations; expected at least one case")


@dataclass
class _Read:
    """A section at a point: its settings, what is moot in them, and the text that goes into the id."""

    settings: Settings
    moot: dict[str, str]
    text: str
    is_used: bool = False


class _Expander:
    """Multiplies out one kind. Sections are read once per combination of their own axes, not once per case."""

    def __init__(self, suite: Suite, matrix: Matrix, kind: Kind, expansion: Expansion) -> None:
        self.suite, self.matrix, self.kind, self.expansion = suite, matrix, kind, expansion
        self.names = (*SECTIONS_OF[kind], *(("measure",) if kind == "engine" else ()))
        self.base = {name: base_of(suite, name) for name in self.names}
        self.refusals = Refusals()
        self._partial: dict[tuple[str, ...], Texts] = {}
        self._whole: dict[tuple[str, ...], _Read | None] = {}

    def run(self) -> None:
        exclude = [rule for rule in self.matrix.exclude if rule.kind == self.kind]
        only = [rule for rule in self.matrix.only if rule.kind == self.kind]
        used: set[str] = set()
        for point in self._points():
            own = {name: [s for s in point if s.section == name] for name in self.names}
            if exclude or only:
                partial = {name: self._partial_section(name, own[name]) for name in self.names}
                excluding = {rule.place for rule in exclude if _matches(rule, partial)}
                including = {rule.place for rule in only if _matches(rule, partial)}
                used |= excluding | including
                if excluding or (only and not including):
                    continue
            self._add(point, own)
        self.expansion.problems += self.refusals.problems()
        self.expansion.idle_rules += [rule.place for rule in (*exclude, *only) if rule.place not in used]

    def _points(self) -> Iterator[Point]:
        steps = [dimension.steps for dimension in self.matrix.of_kind(self.kind)]
        for choice in itertools.product(*steps):
            yield tuple(itertools.chain.from_iterable(choice))

    def _partial_section(self, name: str, own: list[Setting]) -> Texts:
        key = (name, *(setting.text for setting in own))
        if key not in self._partial:
            data = overlaid(self.base[name], own)
            self._partial[key] = Texts(SECTIONS[name].model_validate(data, context=PARTIAL))
        return self._partial[key]

    def _whole_section(self, name: str, own: list[Setting]) -> _Read | None:
        """None, and noted, when the combination is impossible."""
        key = (name, *(setting.text for setting in own))
        if key not in self._whole:
            self._whole[key] = self._read(name, own)
        return self._whole[key]

    def _read(self, name: str, own: list[Setting]) -> _Read | None:
        try:
            settings = SECTIONS[name].model_validate(overlaid(self.base[name], own))
        except ValidationError as error:
            self.refusals.refuse(own, problems_of(error, SECTIONS[name], name))
            return None
        self.refusals.accept(name, own)
        return _Read(settings, moot_keys(name, settings), deciding_text(name, settings))

    def _add(self, point: Point, own: dict[str, list[Setting]]) -> None:
        found = {name: self._whole_section(name, own[name]) for name in self.names}
        reads = {name: read for name, read in found.items() if read is not None}
        if len(reads) < len(found):
            return
        for name, read in reads.items():
            self._note_moot(name, read)
        texts = {name: read.text for name, read in reads.items() if name != "measure"}
        sections: dict[str, Any] = {name: read.settings for name, read in reads.items()}
        self.expansion.cases.append(
            Case(
                case_id(self.kind, texts, state_text(sections.get("measure"), sections.get("engine"))),
                self.kind,
                {column(setting.key): setting.cell for setting in point},
                sections.get("model", self.suite.model),
                sections.get("engine"),
                sections.get("workload"),
                sections.get("kernel"),
                sections["measure"].cache_state if "measure" in sections else "cold",
            )
        )

    def _note_moot(self, name: str, read: _Read) -> None:
        """Keep what is moot in every case that there is."""
        if not read.is_used:
            read.is_used = True
            known = self.expansion.moot.get(name)
            both = read.moot if known is None else {key: why for key, why in known.items() if key in read.moot}
            self.expansion.moot[name] = both


def _matches(rule: Rule, partial: dict[str, Texts]) -> bool:
    return all(partial[key.partition(".")[0]][key] in texts for key, texts in rule.matches.items())


def _refuse_duplicates(expansion: Expansion) -> None:
    """One problem per reason: the first two cases that are the same, and how many more there are."""
    first: dict[str, Case] = {}
    pairs: dict[str, list[tuple[Case, Case]]] = {}
    for case in expansion.cases:
        other = first.setdefault(case.case_id, case)
        if other is not case:
            pairs.setdefault(_moot_axes(case), []).append((other, case))
    for why, found in pairs.items():
        one, two = found[0]
        more = f", and {len(found) - 1} more pairs" if len(found) > 1 else ""
        text = f"the cases ({one.label}) and ({two.label}) are one and the same{why}{more}"
        expansion.problems.append(Problem("axes", f"{text}; leave one out with exclude or only"))


def _moot_axes(case: Case) -> str:
    """Why: which of the varied settings decide nothing here."""
    sections = {"model": case.model, "engine": case.engine, "workload": case.workload}
    moot = [item for name, found in sections.items() if found for item in moot_keys(name, found).items()]
    if case.engine is not None and case.engine.prefix_cache == "none":
        moot.append(("measure.cache_state", 'engine.prefix_cache is "none"'))
    whys = [f"{column(key)} decides nothing while {why}" for key, why in moot if column(key) in case.axes]
    return f": {', '.join(whys)}" if whys else ""
