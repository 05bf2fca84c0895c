"""The fitted cost model: step time from the steps of stored runs (docs/fit.md).

One regression for every stored form of K and V, on the terms of `costmodel/terms.py`. Knots of the query tokens are
taken where there are steps on both sides. Intervals come from drawing samples with replacement: a sample is a process,
and steps of one process err together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.analysis.fit_data import SampleSteps, Subject, samples_of
from kvbench.analysis.nonnegative import Fit, Rows, bootstrap, fit, resampled
from kvbench.costmodel.fitted import Configuration, FittedFile, Term
from kvbench.costmodel.fitted_file import with_digest
from kvbench.costmodel.terms import COPIES, COUNTS, matrix, term_names
from kvbench.devices.facts import Device
from kvbench.errors import CannotRunError
from kvbench.store.files import digest_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.store.run import Run

    Floats = NDArray[np.float64]

KNOTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
KNOT_STEPS = 40
"""A knot has so many steps in the segment below it and so many above."""
MIN_STEPS = 100
DRAWS = 400
LEVEL = 0.90
SEEN = ("batch_policy", "prefix_cache", "allocator", "admission", "order", "preemption", "offload", "cache_state")
"""Settings whose values a fitted file lists."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The samples of one stored form, and their fit."""

    form: tuple[str, str, str]
    samples: tuple[SampleSteps, ...]
    knots: tuple[int, ...]
    fit: Fit
    configuration: Configuration


@dataclass(frozen=True)
class FittedRuns:
    """What `fit_runs` found: the file without errors yet, and the same without any one case."""

    file: FittedFile
    notes: tuple[str, ...]
    parts: tuple[_Part, ...]

    @property
    def cases(self) -> dict[tuple[str, str], frozenset[int]]:
        """(run, case) of everything that was fitted, in order → the samples of it that were."""
        found: dict[tuple[str, str], set[int]] = {}
        for part in self.parts:
            for sample in part.samples:
                found.setdefault(sample.case, set()).add(sample.sample)
        return {case: frozenset(samples) for case, samples in found.items()}

    def without(self, case: tuple[str, str]) -> FittedFile | None:
        """The model that all other cases give; None where no other case has this one's stored form."""
        configurations = []
        for part in self.parts:
            times = np.array([float(sample.case != case) for sample in part.samples])
            if not times.any():
                return None
            others = part.configuration
            if not times.all():
                values = _named(resampled(part.fit, times), part)
                others = replace(others, terms={name: Term(value, value, value) for name, value in values.items()})
            configurations.append(others)
        return replace(self.file, configurations=tuple(configurations))

    def residuals(self) -> Iterator[tuple[str, Floats]]:
        """Stored form → (measured − predicted) / predicted of its steps."""
        for part in self.parts:
            yield part.configuration.name, np.concatenate(part.fit.residuals)


def fit_runs(runs: Sequence[Run], *, name: str, draws: int = DRAWS) -> FittedRuns:
    """Fit the steps of all engine cases that ended ok. Raises as `samples_of` does; `CannotRunError` for too few.

    The intervals of coefficients are of so many `draws`; with 0, which saves most of the time, ends are values."""
    subject, samples, notes = samples_of(runs)
    forms = dict.fromkeys(sample.form for sample in samples)
    chosen = {form: _at_own_speed([s for s in samples if s.form == form], notes) for form in forms}
    samples = [sample for own in chosen.values() for sample in own]
    parts = tuple(_fit_part(form, tuple(own), draws) for form, own in chosen.items())
    ids = ", ".join(run.run_id for run in runs)
    file = FittedFile(
        name=name,
        source=f"fitted on {len(samples)} samples of {ids}",
        device=_device(subject),
        model=subject.model,
        geometry=subject.geometry,
        weight_dtype=subject.weight_dtype,
        threads=subject.threads,
        attention=subject.attention,
        configurations=tuple(part.configuration for part in parts),
        settings={key: _values(samples, key) for key in SEEN},
        runs={run.run_id: _manifest_digest(run) for run in runs},
    )
    return FittedRuns(with_digest(file), tuple(notes), parts)


def _at_own_speed(samples: list[SampleSteps], notes: list[str]) -> list[SampleSteps]:
    """The samples that the machine did not slow; all of them where those have too few steps for a fit."""
    kept = [sample for sample in samples if not sample.is_slowed]
    slowed, form = len(samples) - len(kept), "/".join(samples[0].form)
    if not slowed:
        return samples
    of = f"{slowed} of {len(samples)} samples with K and V as {form}, on a core or GPU that others slowed"
    if sum(len(sample.seconds) for sample in kept) < MIN_STEPS:
        notes.append(f"fitted all the same, because the others are too few: {of}")
        return samples
    notes.append(f"left out: {of}")
    return kept


def _fit_part(form: tuple[str, str, str], samples: tuple[SampleSteps, ...], draws: int) -> _Part:
    steps = sum(len(sample.seconds) for sample in samples)
    if steps < MIN_STEPS:
        raise CannotRunError(
            f"{steps} steps with K and V as {'/'.join(form)} are too few to fit ({MIN_STEPS} at least)",
            hint="fit more cases, or longer ones",
        )
    knots = _knots(np.concatenate([sample.counts["tokens"] for sample in samples]))
    found = fit([Rows(matrix(sample.counts, knots), sample.seconds) for sample in samples])
    names = term_names(knots)
    kept = [at for at, name in enumerate(names) if name not in COPIES or _happened(samples, name)]
    values = found.coefficients[kept]
    drawn = bootstrap(found, draws)[:, kept] if draws else np.stack([values, values])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    terms = {
        names[at]: Term(float(v), float(min(a, v)), float(max(b, v)))
        for at, v, a, b in zip(kept, values, low, high, strict=True)
    }
    covariance = tuple(tuple(map(float, row)) for row in np.cov(drawn, rowvar=False))
    domain = _domain(samples)
    configuration = Configuration(*form, knots, terms, covariance, domain, steps, len(samples))
    return _Part(form, samples, knots, found, configuration)


def _named(coefficients: Floats, part: _Part) -> dict[str, float]:
    values = dict(zip(term_names(part.knots), coefficients.tolist(), strict=True))
    return {name: values[name] for name in part.configuration.terms}


def _knots(tokens: Floats) -> tuple[int, ...]:
    """Those of `KNOTS` with enough steps of different sizes below (down to the last knot) and above."""
    found: list[int] = []
    below = 1.0
    for knot in KNOTS:
        inside = tokens[(tokens > below) & (tokens <= knot)]
        if len(inside) >= KNOT_STEPS and np.count_nonzero(tokens > knot) >= KNOT_STEPS:
            found.append(knot)
            below = knot
    return tuple(found)


def _happened(samples: Sequence[SampleSteps], name: str) -> bool:
    return any(bool(sample.counts[name].any()) for sample in samples)


def _domain(samples: Sequence[SampleSteps]) -> dict[str, tuple[float, float]]:
    """Ranges of the counts of a step, and of two settings."""
    found = {}
    for name in COUNTS:
        found[name] = (
            float(min(sample.counts[name].min() for sample in samples)),
            float(max(sample.counts[name].max() for sample in samples)),
        )
    for name in ("block_size", "max_sequences"):
        values = [float(sample.settings[name]) for sample in samples]
        found[name] = (min(values), max(values))
    return found


def _values(samples: Sequence[SampleSteps], name: str) -> tuple[str, ...]:
    return tuple(sorted({str(sample.settings[name]) for sample in samples if sample.settings.get(name) is not None}))


def _device(subject: Subject) -> Device:
    about = "the device that was measured"
    return Device(subject.device_name, subject.device_kind, subject.memory_bytes, datasheet=about)


def _manifest_digest(run: Run) -> str:
    """sha256 of the sealed manifest, else of the plan: each names the digests of what lies beside it."""
    sealed = run.path / "manifest.json"
    return digest_of(sealed if sealed.exists() else run.path / "plan.json")
