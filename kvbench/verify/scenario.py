"""One verification as data: settings, sizes, requests and faults. A failure is kept, shrunk and replayed as this."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from kvbench.errors import UsageError

FaultKind = Literal["evict", "abort", "refuse-admission", "refuse-growth", "corrupt", "copy", "lose-disk"]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong before a step; `argument` is a request, a count or a seed, by kind."""

    turn: int
    kind: FaultKind
    argument: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. It arrives `arrival` turns after the start."""

    request_id: int
    prompt: tuple[int, ...]
    output: int
    arrival: int = 0
    salt: str | None = None
    stops: bool = False
    """Whether every ninth token id ends the output"""
    forced: tuple[int, ...] | None = None
    samples: int = 1
    """Outputs drawn at random"""
    priority: int = 0
    beams: int = 0
    """Width of a beam search, 0 for none"""

    @property
    def width(self) -> int:
        """Sequences that serve it"""
        return max(self.samples, self.beams)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`engine` are the settings that differ from their defaults; `windows` has an entry per layer group, None for a
    full one."""

    engine: dict[str, Any]
    num_blocks: int
    host_blocks: int
    disk_blocks: int
    swap_blocks: int
    max_context: int
    windows: tuple[int | None, ...]
    asks: tuple[Ask, ...]
    faults: tuple[Fault, ...] = ()
    lag: int = 0
    """Polls after which copies between tiers have ended at the latest; 0: at once"""
    guess: float | None = None
    """With speculation: the chance that a draft is right; None: drafts are looked up in the prompt"""
    weak_hash: bool = False
    """A digest of four bits instead of the settings' own"""

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """`UsageError` for what is not a scenario of this version."""
        try:
            data = json.loads(text)
            if data.pop("format") != FORMAT:
                raise UsageError("this scenario was written by another version of kvbench", hint="run the seed again")
            data["asks"] = tuple(_ask(one) for one in data["asks"])
            data["faults"] = tuple(Fault(**one) for one in data["faults"])
            data["windows"] = tuple(data["windows"])
            return cls(**data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"this is not a scenario: {_problem(error)}", hint="give a file that `kvbench verify` wrote"
            ) from None


def _ask(data: dict[str, Any]) -> Ask:
    forced = data.get("forced")
    return Ask(**{**data, "prompt": tuple(data["prompt"]), "forced": None if forced is None else tuple(forced)})


def _problem(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)
