"""What is asked of `kvbench recommend`, and the candidates: the cases of a suite that is made for the question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.analysis.advice.decide import Slo
from kvbench.errors import UsageError
from kvbench.spec.cases import Case, expand
from kvbench.spec.load import LoadedSuite, from_effective
from kvbench.spec.overrides import apply_overrides, resolve

if TYPE_CHECKING:
    from kvbench.analysis.advice.lengths import LengthSample

AXES = ("block_size", "kv_dtype", "batch_policy", "prefix_cache", "offload")
NAMED_AXES = ("batch_policy", "prefix_cache", "offload")
"""Those whose values are names"""
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
SUITE = "recommend"
NAME = "engine."
READ = (NAME, "workload.arrival.", "workload.seed")
"""What an override may say"""


@dataclass(frozen=True, slots=True)
class Question:
    """Whose settings, for which lengths, by which evidence.

    `results` are run folders, or one file of a fitted cost model. `overrides` are `key=value[,value…]`, as in
    `sweep -a`. Without `kv_memory_bytes`, `memory_bytes` and `gpu` the pool is that of the results, or of the device
    at hand.
    """

    sample: LengthSample
    results: tuple[Path, ...] = ()
    model: str | None = None
    gpu: str | None = None
    memory_bytes: int | None = None
    kv_memory_bytes: int | None = None
    weight_dtype: str | None = None
    tp: int = 1
    slo: Slo = field(default_factory=Slo)
    axes: tuple[str, ...] = ("block_size",)
    overrides: tuple[str, ...] = ()
    allow_lossy: bool = False
    trace: Path | None = None
    """The trace that the lengths are from, for requests that share prefixes as it records them"""
    run: Path | None = None
    """The run that the lengths are from (its workload is that of the sample's digest), for the same"""
    quality: Path | None = None
    """What `kvbench quality --out` wrote of this model"""
    requests: int | None = None
    """Requests that each candidate serves; None for as many as take a second or two"""
    seed: int = 0


def candidate_suite(
    question: Question,
    *,
    model: Mapping[str, Any],
    base: Mapping[str, Any],
    arrival: Mapping[str, Any],
    values: Mapping[str, Sequence[Any]],
) -> LoadedSuite:
    """A suite whose engine cases are the candidates: `base` engine settings, one axis for each of the question's, with
    the `values` that are known of it, and the overrides on top.

    Raises `SuiteError` for what no engine can be set to, `UsageError` for an axis without values."""
    if not question.axes:
        raise UsageError("--axes names no setting", hint=f"one or more of {', '.join(AXES)}, by commas")
    unknown = [name for name in question.axes if name not in AXES]
    if unknown:
        raise UsageError(f"no axis {unknown[0]!r} to recommend", hint=f"one or more of {', '.join(AXES)}, by commas")
    given = {text.partition("=")[0].rpartition(".")[2] for text in question.overrides}
    axes = {}
    for name in question.axes:
        if name in given:
            continue
        if len(values.get(name, ())) < 2:
            raise UsageError(
                f"nothing says which values of {name} to choose from",
                hint=f"name them, as in -a {name}=VALUE,VALUE, or give --results whose runs vary it",
            )
        axes[NAME + name] = list(values[name])
    engine = {key: value for key, value in base.items() if NAME + key not in axes}
    data: dict[str, Any] = {
        "name": SUITE,
        "model": dict(model),
        "engine": engine,
        "workload": {"arrival": dict(arrival)},
        "axes": axes,
        **_exclusions(axes, question.overrides),
    }
    suite = apply_overrides(from_effective(data, what="the candidates"), list(question.overrides))
    _refuse_unread(question.overrides, suite)
    return suite


def _refuse_unread(overrides: Sequence[str], suite: LoadedSuite) -> None:
    """A setting that decides nothing here would be accepted and ignored: requests, the model and how to measure are
    said elsewhere."""
    for text in overrides:
        for key in resolve(text.partition("=")[0].strip(), suite.suite):
            if not key.startswith(READ):
                raise UsageError(
                    f"-a {text}: {key} is not read here",
                    hint="-a takes settings of the engine and of arrivals; lengths, model, pool and weights have "
                    "options of their own",
                )


def candidates_of(suite: LoadedSuite) -> list[Case]:
    """The engine cases; `UsageError` where one setting of each is all there is."""
    cases = [case for case in expand(suite.suite) if case.kind == "engine"]
    foreign = {name for case in cases for name in case.axes if _is_varied(cases, name) and not _is_engine(suite, name)}
    if foreign:
        raise UsageError(
            f"{', '.join(sorted(foreign))}: only settings of the engine are recommended", hint="give it one value"
        )
    return cases


def axes_of(cases: Sequence[Case]) -> tuple[str, ...]:
    """Columns in which the candidates differ; the block size also where it has one value."""
    names = list(dict.fromkeys(name for case in cases for name in case.axes))
    return tuple(name for name in names if _is_varied(cases, name) or name == "block_size")


def label_of(case: Case, cases: Sequence[Case]) -> str:
    """A candidate by what tells it from the others."""
    return " ".join(f"{name}={case.axes[name]}" for name in axes_of(cases) if name in case.axes) or case.label


def neighbours_of(cases: Sequence[Case]) -> list[list[int]]:
    """For each candidate those with the next smaller and the next larger block size, all else equal."""
    found = []
    for case in cases:
        rest = _rest(case)
        sizes = {c.axes["block_size"]: at for at, c in enumerate(cases) if "block_size" in c.axes and _rest(c) == rest}
        own = case.axes.get("block_size")
        below = max((size for size in sizes if own is not None and size < own), default=None)
        above = min((size for size in sizes if own is not None and size > own), default=None)
        found.append([sizes[size] for size in (below, above) if size is not None])
    return found


def _rest(case: Case) -> list[tuple[str, str]]:
    return sorted((name, str(value)) for name, value in case.axes.items() if name != "block_size")


def _is_varied(cases: Sequence[Case], name: str) -> bool:
    return len({str(case.axes.get(name)) for case in cases}) > 1


def _is_engine(suite: LoadedSuite, name: str) -> bool:
    return NAME + name in suite.suite.axes


def _exclusions(axes: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A lower tier extends a prefix cache: without one there is nothing to extend."""
    names = {*axes, *(f"{NAME}{text.partition('=')[0].rpartition('.')[2]}" for text in overrides)}
    if not {"engine.prefix_cache", "engine.offload"} <= names:
        return {}
    return {"exclude": [{"engine.prefix_cache": "none", "engine.offload": ["host", "host+disk"]}]}


def varied_values(rows: Iterator[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Axis → the different values that engine settings have, ascending where they are numbers."""
    found: dict[str, dict[Any, None]] = {name: {} for name in AXES}
    for settings in rows:
        for name in AXES:
            if settings.get(name) is not None:
                found[name].setdefault(settings[name])
    return {name: sorted(values, key=lambda v: (isinstance(v, str), v)) for name, values in found.items()}
