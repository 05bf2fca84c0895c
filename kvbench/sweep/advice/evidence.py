"""What an answer goes by, the best there is: runs (a model of step times fitted from them), kernel times that were
tuned, or a device's datasheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvbench.costmodel.fitted import FittedFile
from kvbench.costmodel.profiles import GENERIC_CPU, virtual_device
from kvbench.costmodel.roofline import roofline
from kvbench.costmodel.sources import CostSource, read_cost_file
from kvbench.devices.detect import detect
from kvbench.engine.automatic import WEIGHT_DTYPE
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.dtypes import storage_dtype
from kvbench.geometry.parallel import split
from kvbench.geometry.resolve import auto_model, resolve_model
from kvbench.sweep.advice.kept_fits import fit_of
from kvbench.sweep.advice.kernel_times import with_kernel_times
from kvbench.sweep.advice.known import (
    Known,
    read_known,
    refuse_other_device,
    refuse_other_model,
    settled_by_the_first,
)
from kvbench.sweep.advice.question import BLOCK_SIZES, NAMED_AXES, varied_values

if TYPE_CHECKING:
    from kvbench.devices.facts import Device
    from kvbench.geometry.model import ModelGeometry
    from kvbench.sweep.advice.question import Question

Kind = Literal["fitted", "kernels", "modelled"]
THROUGHPUT = "output_tokens_per_s"
MOST_SEQUENCES = 256
"""Served at once on a GPU unless an override says otherwise"""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where step times come from, and what else the runs settle."""

    kind: Kind
    words: str
    """For the headline"""
    geometry: ModelGeometry
    """Of one device: a rank of a model that is split"""
    whole: ModelGeometry
    model: Mapping[str, Any]
    """`[model]` of a suite"""
    device: Device
    source: CostSource
    base: Mapping[str, Any]
    """Engine settings that every candidate has"""
    arrival: Mapping[str, Any]
    values: Mapping[str, Sequence[Any]]
    """Axis → the values that are worth a candidate"""
    known: Known | None = None
    errors: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(run, case) → ln(measured / predicted) of its throughput"""
    notes: tuple[str, ...] = ()

    @property
    def is_modelled(self) -> bool:
        """Whether no step of an engine was ever measured for it."""
        return self.kind != "fitted"


def find_evidence(question: Question) -> Evidence:
    """The best evidence that the question brings, or the machine has."""
    if not question.results:
        return _modelled(question)
    files = [path for path in question.results if path.is_file()]
    if not files:
        return _of_runs(question)
    if len(question.results) > 1:
        raise UsageError(
            "--results takes run folders, or one file of a fitted cost model", hint="leave out one or the other"
        )
    return _of_file(question, files[0])


def _of_runs(question: Question) -> Evidence:
    known = read_known(question.results)
    refuse_other_model(known, question.model)
    refuse_other_device(known.device_name, gpu=question.gpu, tp=question.tp)
    first = known.cases[0]
    geometry = resolve_model(str(first.model["name"]))
    found = fit_of(known.runs)
    count = len({case.workload_digest for case in known.cases})
    words = f"a cost model fitted from {_counted(len(known.runs), 'run')} ({_counted(count, 'length distribution')})"
    return Evidence(
        kind="fitted",
        words=f"{words}, measured on {known.device_name}",
        geometry=geometry,
        whole=geometry,
        model=dict(first.model),
        device=found.file.device,
        source=found.file,
        base={**first.engine, "max_context": first.max_context},
        arrival=_steady_arrival(first.arrival, int(first.engine["max_sequences"])),
        values=varied_values(case.engine for case in known.cases),
        known=known,
        errors=found.errors,
        notes=(*found.notes, *settled_by_the_first(known, question)),
    )


def _of_file(question: Question, path: Path) -> Evidence:
    source = read_cost_file(path)
    if not isinstance(source, FittedFile):
        evidence = _modelled(question)
        return replace(evidence, source=source, words=f"rates of {source.label}, without a measured run")
    refuse_other_device(source.device.name, gpu=question.gpu, tp=question.tp)
    geometry = resolve_model(question.model or source.model)
    one = source.configurations[0]
    weights = storage_dtype(question.weight_dtype or source.weight_dtype).name
    reason = source.why_not(geometry, weights, one.kv_dtype, one.kv_scales, one.kv_layout)
    if reason is not None:
        raise CannotRunError(reason, hint="give a file that was fitted on this model")
    low, high = one.domain["block_size"]
    base = _defaults(source.device, source.weight_dtype) | {
        "kv_dtype": one.kv_dtype, "kv_scales": one.kv_scales, "kv_layout": one.kv_layout, "attention": source.attention,
    }  # fmt: skip
    return Evidence(
        kind="fitted",
        words=f"{source.label}, measured on {source.device.name}",
        geometry=geometry,
        whole=geometry,
        model={"name": question.model or source.model},
        device=source.device,
        source=source,
        base=base,
        arrival=_steady_arrival({}, int(base["max_sequences"])),
        values={
            "block_size": [size for size in (4, *BLOCK_SIZES) if low <= size <= high],
            "kv_dtype": list(dict.fromkeys(fit.kv_dtype for fit in source.configurations)),
            **{name: sorted(source.settings.get(name, ())) for name in NAMED_AXES},
        },
        errors=source.case_errors(THROUGHPUT),
        notes=(
            f"a fitted file keeps the ends of what was measured: of blocks between {low:g} and {high:g} some may be "
            "interpolated by the model",
        )
        * (low < high),
    )


def _modelled(question: Question) -> Evidence:
    """No run: kernel times of the tuned store where they are of this device and model, else the datasheet alone."""
    at_hand = detect()
    device = at_hand if question.gpu is None else virtual_device(question.gpu).device
    profile = virtual_device(GENERIC_CPU.name if device.kind == "cpu" else device.name)
    name = question.model or auto_model(device.kind, device.memory_bytes)
    whole = resolve_model(name)
    geometry = split(whole, question.tp)
    dtype = storage_dtype(question.weight_dtype or WEIGHT_DTYPE.get(device.kind, "bf16")).name
    rates, kernels = with_kernel_times(roofline(profile), geometry, at_hand if question.gpu is None else device)
    kind: Kind = "kernels" if kernels else "modelled"
    words = f"modelled: {rates.source}" + (f"; {kernels}" if kernels else "")
    notes: tuple[str, ...] = ("no step was measured: kvbench sweep measures, and --results takes its runs",)
    notes += (f"the time that {question.tp} devices take to exchange activations is not counted",) * (question.tp > 1)
    return Evidence(
        kind=kind,
        words=words,
        geometry=geometry,
        whole=whole,
        model={"name": name},
        device=device,
        source=rates,
        base=_defaults(device, dtype),
        arrival=_steady_arrival({}, int(_defaults(device, dtype)["max_sequences"])),
        values={
            "block_size": list(BLOCK_SIZES),
            "kv_dtype": [dtype, *(other for other in ("fp8_e4m3", "int8") if other != dtype)],
            "batch_policy": ["continuous", "chunked"],
            "prefix_cache": ["none", "hash"],
        },
        notes=notes,
    )


def _defaults(device: Device, weight_dtype: str) -> dict[str, Any]:
    kv = weight_dtype if weight_dtype in ("fp32", "fp16", "bf16") else "bf16"
    sequences = 32 if device.kind == "cpu" else MOST_SEQUENCES
    return {"weight_dtype": weight_dtype, "kv_dtype": kv, "max_sequences": sequences}


def _steady_arrival(arrival: Mapping[str, Any], max_sequences: int) -> dict[str, Any]:
    """The runs' own arrivals; recorded ones are those of another trace, and a closed loop keeps the engine as busy."""
    if arrival and arrival.get("kind") != "recorded":
        return {key: value for key, value in arrival.items() if value is not None}
    return {"kind": "closed-loop", "clients": max_sequences}


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"
