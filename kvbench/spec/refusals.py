"""Combinations that the settings refuse, gathered into one problem per reason with the `exclude` that removes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from kvbench.spec.matrix import Setting
from kvbench.spec.problems import Problem
from kvbench.spec.toml_write import toml_value

SHOWN = 5
Combination = tuple[Setting, ...]


@dataclass
class Refusals:
    """What was refused, by reason, and what was accepted beside it."""

    refused: dict[Problem, list[Combination]] = field(default_factory=dict)
    accepted: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    _projections: dict[tuple[str, ...], set[tuple[str, ...]]] = field(default_factory=dict)

    def refuse(self, combination: list[Setting], problems: list[Problem]) -> None:
        for problem in problems:
            self.refused.setdefault(problem, []).append(tuple(combination))

    def accept(self, section: str, combination: list[Setting]) -> None:
        self.accepted.setdefault(section, []).append({setting.key: setting.text for setting in combination})

    def problems(self) -> list[Problem]:
        return [self._problem(problem, combinations) for problem, combinations in self.refused.items()]

    def _problem(self, problem: Problem, combinations: list[Combination]) -> Problem:
        if not combinations[0]:
            return problem
        if not self.accepted.get(combinations[0][0].key.partition(".")[0]):
            return Problem(problem.key, f"{problem.text}; refused in every case")
        smallest = {self._smallest(combination): None for combination in combinations[: SHOWN * 20]}
        some = ", ".join(" ".join(f"{s.key}={_toml(s)}" for s in combination) for combination in list(smallest)[:SHOWN])
        more = f" and {len(smallest) - SHOWN} more" if len(smallest) > SHOWN else ""
        entries = [", ".join(f'"{s.key}" = {_toml(s)}' for s in combination) for combination in list(smallest)[:SHOWN]]
        exclude = ", ".join(f"{{ {entry} }}" for entry in entries)
        text = f"{problem.text}; refused for {some}{more}; to leave them out: exclude = [{exclude}]"
        return Problem(problem.key, text)

    def _smallest(self, combination: Combination) -> Combination:
        """Drop every setting whose absence would not exclude an accepted case as well."""
        kept = list(combination)
        for setting in combination:
            rest = [other for other in kept if other is not setting]
            if rest and not self._is_accepted(rest):
                kept = rest
        return tuple(kept)

    def _is_accepted(self, settings: list[Setting]) -> bool:
        keys = tuple(setting.key for setting in settings)
        if keys not in self._projections:
            cases = self.accepted.get(keys[0].partition(".")[0], [])
            self._projections[keys] = {tuple(case[key] for key in keys) for case in cases}
        return tuple(setting.text for setting in settings) in self._projections[keys]


def _toml(setting: Setting) -> str:
    return toml_value(json.loads(setting.text))
