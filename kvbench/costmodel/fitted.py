"""Step time as `kvbench fit` found it on one device, for one model: coefficients of `terms.py`, with where they hold.

A fitted file is a JSON object with `format`, `version`, what was fitted on what, one entry of `configurations` for
every stored form of K and V, `left_out` (each case's metrics, measured, and predicted from all the others) and
`digest`, as in `rates.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.costmodel.features import StepFeatures, decode_run_reads, layer_windows, step_features
from kvbench.costmodel.terms import COPIES, TOKENS
from kvbench.devices.facts import Device
from kvbench.errors import CannotRunError
from kvbench.geometry.dtypes import storage_dtype
from kvbench.geometry.memory import block_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.geometry.model import ModelGeometry

_LINK = {"copy": "copy_bytes", "demote": "disk_bytes", "load": "disk_bytes"}
"""Kind of block copy → the term of its bytes, where that is not the host's."""


LEAST_SENSITIVITY = 0.1
"""What does not follow from step times is off by something too."""


@dataclass(frozen=True, slots=True)
class Term:
    """A coefficient in seconds, with its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Configuration:
    """One stored form of K and V."""

    kv_dtype: str
    kv_scales: str
    kv_layout: str
    knots: tuple[int, ...]
    """Of the query tokens, ascending"""
    terms: Mapping[str, Term]
    """Those of `terms.term_names` that the runs could tell; a copy that never happened has none"""
    covariance: tuple[tuple[float, ...], ...]
    """Of the terms, in their order"""
    domain: Mapping[str, tuple[float, float]]
    """Smallest and largest count in a step, and of the settings `block_size`, `max_sequences`"""
    steps: int
    samples: int

    @property
    def name(self) -> str:
        return f"{self.kv_dtype}/{self.kv_scales}/{self.kv_layout}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A sample of a case that was predicted from all other cases: metric → (measured, predicted, sensitivity).

    The sensitivity is by how many per cent the prediction changes when all step times change by one."""

    run_id: str
    case_id: str
    sample: int
    label: str
    metrics: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True)
class FittedFile:
    """A fitted model as it is stored."""

    name: str
    source: str
    device: Device
    model: str
    geometry: str
    """`geometry_digest` of the model"""
    weight_dtype: str
    threads: int
    attention: str
    """Attention backend"""
    configurations: tuple[Configuration, ...]
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Setting → the values that it had in the runs"""
    left_out: tuple[LeftOut, ...] = ()
    runs: Mapping[str, str] = field(default_factory=dict)
    """Run → digest of its manifest"""
    digest: str = ""
    """Of the file, sha256"""

    @property
    def cases_left_out(self) -> int:
        return len({(one.run_id, one.case_id) for one in self.left_out})

    @property
    def label(self) -> str:
        return f"fitted {self.name} ({self.digest[:12]})"

    @cached_property
    def errors(self) -> dict[str, tuple[float, ...]]:
        """Metric → ln(measured / predicted) of every sample that was left out with its case."""
        found: dict[str, list[float]] = {}
        for case in self.left_out:
            for name, (measured, predicted, _) in case.metrics.items():
                found.setdefault(name, []).append(math.log(measured / predicted))
        return {name: tuple(values) for name, values in found.items()}

    def case_errors(self, metric: str) -> dict[tuple[str, str], float]:
        """(run, case) → ln(measured / predicted), mean over the samples of the case."""
        found: dict[tuple[str, str], list[float]] = {}
        for case in self.left_out:
            if metric in case.metrics:
                measured, predicted, _ = case.metrics[metric]
                found.setdefault((case.run_id, case.case_id), []).append(math.log(measured / predicted))
        return {key: math.fsum(values) / len(values) for key, values in found.items()}

    @cached_property
    def scores(self) -> dict[str, tuple[float, ...]]:
        """`errors` over their sensitivities: by how much step times would have to be off to explain them."""
        found: dict[str, list[float]] = {}
        for case in self.left_out:
            for name, (measured, predicted, sensitivity) in case.metrics.items():
                found.setdefault(name, []).append(math.log(measured / predicted) / max(sensitivity, LEAST_SENSITIVITY))
        return {name: tuple(values) for name, values in found.items()}

    def facts(self) -> dict[str, Any]:
        """What a manifest keeps of it: everything but the cases that were left out."""
        kept = ("model", "geometry", "weight_dtype", "threads", "attention", "runs")
        fits = [asdict(one) for one in self.configurations]
        return {"fitted": {**{name: getattr(self, name) for name in kept}, "configurations": fits}}

    def configuration(self, kv_dtype: str, kv_scales: str, kv_layout: str) -> Configuration | None:
        """The fit of a stored form. Scales decide nothing where there are none."""
        for one in self.configurations:
            same_scales = kv_scales == one.kv_scales or not has_scales(kv_dtype)
            if (one.kv_dtype, one.kv_layout) == (kv_dtype, kv_layout) and same_scales:
                return one
        return None

    def why_not(
        self, geometry: ModelGeometry, weight_dtype: str, kv_dtype: str, kv_scales: str, kv_layout: str
    ) -> str | None:
        """Why it says nothing about an engine; None when it does."""
        if geometry_digest(geometry) != self.geometry:
            return f"{self.label} was fitted on {self.model}, and {geometry.name} is another model"
        if weight_dtype != self.weight_dtype:
            return f"{self.label} was fitted with weights in {self.weight_dtype}, not in {weight_dtype}"
        if self.configuration(kv_dtype, kv_scales, kv_layout) is None:
            known = ", ".join(one.name for one in self.configurations)
            return f"{self.label} knows K and V as {known}, not as {kv_dtype}/{kv_scales}/{kv_layout}"
        return None


def slower(file: FittedFile, factor: float) -> FittedFile:
    """The same device with every step so many times as long."""
    fits = tuple(
        replace(fit, terms={name: Term(*(factor * v for v in astuple(term))) for name, term in fit.terms.items()})
        for fit in file.configurations
    )
    return replace(file, configurations=fits)


class FittedCost:
    """Step seconds of one engine by the coefficients of one configuration; a `StepCost`."""

    def __init__(self, fit: Configuration, geometry: ModelGeometry, *, block_size: int) -> None:
        self.block_size = block_size
        self.block_bytes = block_bytes(geometry, fit.kv_dtype, block_size, fit.kv_scales)
        self.windows, self._layers = layer_windows(geometry)
        self._knots = (*map(float, fit.knots), math.inf)
        self._prices = {name: term.value for name, term in fit.terms.items()}
        self._tokens_s = [self._prices.get(f"{TOKENS}{at}", 0.0) for at in range(len(self._knots))]
        self._read_s = [self._price("decode_reads") * layers for layers in self._layers]
        self._entry_s = [self._price("block_reads") * layers for layers in self._layers]
        self._prompt_s = [self._price("prefill_reads") * layers for layers in self._layers]
        self._pair_s = [self._price("prefill_pairs") * layers for layers in self._layers]

    def features(
        self, starts: NDArray[np.integer], counts: NDArray[np.integer], num_decodes: int, sampled: int
    ) -> StepFeatures:
        """See `step_features`."""
        return step_features(starts, counts, num_decodes, sampled, self.windows, self.block_size)

    def step_s(self, step: StepFeatures) -> float:
        """Seconds from the start of the step to that of the next one, its transfers apart."""
        seconds = self._fixed_s(step.sequences, step.tokens, step.sampled)
        if step.prefills:
            seconds += self._price("prefill_step") + step.prefills * self._price("prefills")
            for at, (context, pairs) in enumerate(zip(step.prefill_context, step.prefill_pairs, strict=True)):
                seconds += context * self._prompt_s[at] + pairs * self._pair_s[at]
        for at, (context, blocks) in enumerate(zip(step.decode_context, step.blocks, strict=True)):
            seconds += context * self._read_s[at]
            seconds += blocks * self._entry_s[at]
        return seconds

    def decode_run_s(self, lengths: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
        """`[steps]`, see `StepCost`."""
        seconds = np.full(steps, self._fixed_s(len(lengths), len(lengths), len(lengths)))
        for at, window in enumerate(self.windows):
            context, blocks = decode_run_reads(lengths, steps, window, self.block_size)
            seconds += context * self._read_s[at]
            seconds += blocks * self._entry_s[at]
        return seconds

    def copies_s(self, kind: str, blocks: int) -> float:
        """By bytes alone. `CannotRunError` for a kind of copy that the runs never made."""
        if not blocks:
            return 0.0
        name = _LINK.get(kind, "host_bytes")
        if name not in self._prices:
            raise CannotRunError(
                f"the fitted model has no price for block copies of the kind {kind!r}: its runs made none",
                hint="fit it again with a run that makes such copies",
            )
        return blocks * self.block_bytes * self._prices[name]

    def _price(self, name: str) -> float:
        return self._prices.get(name, 0.0)

    def _fixed_s(self, sequences: int, tokens: int, sampled: int) -> float:
        """All that does not depend on how long the sequences are."""
        seconds = self._price("step") + sequences * self._price("sequences") + sampled * self._price("sampled_rows")
        below = 0.0
        for knot, price in zip(self._knots, self._tokens_s, strict=True):
            seconds += min(max(tokens - below, 0.0), knot - below) * price
            below = knot
        return seconds


def has_scales(kv_dtype: str) -> bool:
    """Whether blocks of this stored form hold scales."""
    return storage_dtype(kv_dtype).scale_bytes > 0


def prices_copies(fit: Configuration) -> frozenset[str]:
    """The terms of copies that the runs could tell."""
    return frozenset(COPIES) & fit.terms.keys()


def geometry_digest(geometry: ModelGeometry) -> str:
    """`shape_digest` of a model."""
    return shape_digest(asdict(geometry))


def shape_digest(geometry: Mapping[str, Any]) -> str:
    """sha256 of a model's shape, whatever it is called: a geometry as a dict, as manifests keep it."""
    shape = {key: value for key, value in geometry.items() if key not in ("name", "source")}
    return hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode()).hexdigest()
