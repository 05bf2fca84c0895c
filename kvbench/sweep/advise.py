"""The story of `kvbench recommend`: lengths → exact rows → evidence → predictions → decision. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.advice.candidates import Candidate, Gaps
from kvbench.analysis.advice.decide import Decision, decide
from kvbench.analysis.advice.lost_hits import hit_bound
from kvbench.analysis.advice.rule_of_thumb import USUAL_DEFAULT, rule_of_thumb
from kvbench.costmodel.fitted import has_scales
from kvbench.errors import UsageError
from kvbench.geometry.dtypes import storage_dtype
from kvbench.sweep.advice.evidence import THROUGHPUT, Evidence, find_evidence
from kvbench.sweep.advice.measured import Measured, measured_on
from kvbench.sweep.advice.pools import ExactRow, context_of, exact_rows
from kvbench.sweep.advice.predict import (
    Prediction,
    errors_of_candidates,
    floor_of,
    gaps_of,
    of_equal_service,
    predict_all,
    ranges_of,
)
from kvbench.sweep.advice.question import (
    Question,
    axes_of,
    candidate_suite,
    candidates_of,
    label_of,
    neighbours_of,
)
from kvbench.sweep.advice.requests import Plan, Source, plan_servings
from kvbench.sweep.advice.text_quality import TextQuality, precision_lost, text_quality

if TYPE_CHECKING:
    from kvbench.analysis.advice.arithmetic import BlockRow
    from kvbench.analysis.advice.lengths import LengthSample
    from kvbench.analysis.quality import QualityRow
    from kvbench.spec.cases import Case
    from kvbench.spec.engine import EngineSettings
    from kvbench.spec.load import LoadedSuite
    from kvbench.spec.workload import WorkloadSettings


LESS_SHARED = 0.02
"""How much less of the prompts served may be shared than of all before it is said"""
QUEUES = 1.5
"""Clients for each sequence that fits, above which waiting is most of TTFT"""


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate with all that is known of it."""

    candidate: Candidate
    case: Case
    settings: EngineSettings
    exact: BlockRow
    prediction: Prediction
    measured: tuple[float, ...]
    """Its throughput in each round of a run of these very requests, if there is one"""
    kv_error: float | None
    """`kv_error_rel_rms` of its KV dtype in the runs"""
    is_lossy: bool
    quality: QualityRow | None = None
    """What its KV dtype and scales do to the text of `--quality`"""

    @property
    def is_measured(self) -> bool:
        return bool(self.measured)


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer with everything that it rests on."""

    question: Question
    evidence: Evidence
    sample: LengthSample
    plan: Plan
    suite: LoadedSuite
    axes: tuple[str, ...]
    rows: tuple[Row, ...]
    gaps: Gaps
    decision: Decision
    thumb: int
    """The rule of thumb's block size for these lengths"""
    notes: tuple[str, ...]

    @property
    def chosen(self) -> Row | None:
        return None if self.decision.chosen is None else self.rows[self.decision.chosen]


def advise(question: Question) -> Advice:
    """Answer the question. Raises `UsageError` for what is asked wrongly, `CannotRunError` where the evidence is of
    something else or no candidate fits, `DataError` for runs that say nothing."""
    evidence = find_evidence(question)
    quality = text_quality(question.quality, evidence.whole)
    thumb = rule_of_thumb(question.sample)
    suite = _suite(question, evidence, thumb)
    cases = candidates_of(suite)
    sample = question.sample.fitting(min(context_of(evidence, _engine(case)) for case in cases))
    exact, left_out = exact_rows(question, evidence, sample, cases)
    cases = [one.case for one in exact]
    workload = _workload(cases)
    plan = _plan(question, sample, workload, exact)
    length = float((sample.inputs + sample.outputs / 2).mean())
    predictions = of_equal_service(predict_all(evidence, [one.settings for one in exact], plan, length))
    errors = errors_of_candidates(evidence, cases)
    measured = measured_on(evidence.known, sample, workload.arrival.model_dump(mode="json"), exact)
    gaps = measured.over(gaps_of(predictions, errors, floor_of(evidence)))
    rows = tuple(
        _row(
            question,
            evidence,
            quality,
            one,
            label_of(one.case, cases),
            predictions[at],
            measured,
            at,
            errors.values[:, at],
        )
        for at, one in enumerate(exact)
    )
    candidates = [row.candidate for row in rows]
    decision = decide(candidates, gaps, slo=question.slo, usual=_usual(rows), neighbours=neighbours_of(cases))
    notes = (*sample.notes, *evidence.notes, *left_out, *_notes(rows, sample, plan))
    return Advice(question, evidence, sample, plan, suite, axes_of(cases), rows, gaps, decision, thumb, notes)


def _suite(question: Question, evidence: Evidence, thumb: int) -> LoadedSuite:
    base = {**evidence.base, **_weights(question, evidence)}
    values = _with_marks(evidence, thumb)
    return candidate_suite(question, model=evidence.model, base=base, arrival=evidence.arrival, values=values)


def _plan(
    question: Question,
    sample: LengthSample,
    workload: WorkloadSettings,
    exact: Sequence[ExactRow],
) -> Plan:
    """What every candidate serves: the own requests of the trace or the run where some prefix cache could find what
    they share."""
    has_cache = any(one.settings.prefix_cache != "none" for one in exact)
    return plan_servings(
        sample,
        workload,
        at_once=max(1, *(one.block.sequences for one in exact)),
        recorded=_source(question) if has_cache and sample.shared is not None else None,
        requests=question.requests,
        seed=question.seed,
    )


def _source(question: Question) -> Source | None:
    if question.run is not None:
        return Source(question.run, question.sample.digest)
    return None if question.trace is None else Source(question.trace)


def _workload(cases: Sequence[Case]) -> WorkloadSettings:
    """The one that all candidates have."""
    workload = cases[0].workload
    assert workload is not None
    return workload


def _engine(case: Case) -> EngineSettings:
    assert case.engine is not None
    return case.engine


def _weights(question: Question, evidence: Evidence) -> dict[str, str]:
    """`--weights`; runs were measured with theirs, and say nothing about others."""
    if question.weight_dtype is None:
        return {}
    asked, known = storage_dtype(question.weight_dtype).name, evidence.base.get("weight_dtype")
    if evidence.known is not None and asked != known:
        raise UsageError(
            f"the runs have weights in {known}, not in {asked}", hint="leave --weights out, or leave --results out"
        )
    return {"weight_dtype": asked}


def _with_marks(evidence: Evidence, thumb: int) -> dict[str, Sequence[Any]]:
    """The values of the axes; block sizes include the usual default and the rule of thumb's where the evidence reaches
    them."""
    sizes = list(evidence.values.get("block_size", ()))
    marks = [size for size in (USUAL_DEFAULT, thumb) if sizes and min(sizes) <= size <= max(sizes)]
    return {**evidence.values, "block_size": sorted({*sizes, *marks})}


def _usual(rows: Sequence[Row]) -> list[int]:
    """The candidates that servers start with: blocks of 16, nothing lossy."""
    return [at for at, row in enumerate(rows) if row.settings.block_size == USUAL_DEFAULT and not row.is_lossy]


def _row(
    question: Question,
    evidence: Evidence,
    quality: TextQuality,
    exact: ExactRow,
    label: str,
    prediction: Prediction,
    measured: Measured,
    at: int,
    corrections: Any,
) -> Row:
    case, settings, block = exact
    is_measured = measured.is_there(at)
    is_lossy = _is_lossy(settings)
    error = _kv_error(evidence, settings)
    refusal = quality.refusal(settings) or (None if is_measured else prediction.refusal)
    if is_lossy and not question.allow_lossy and refusal is None:
        known = precision_lost(quality.of(settings), error)
        refusal = f"{settings.kv_dtype} loses precision ({known}), and lossy KV was not allowed"
    numbers = measured.ranges(at) if is_measured else _predicted(prediction, evidence, corrections)
    candidate = Candidate(
        label=label,
        settings=dict(case.axes),
        tokens_per_s=numbers.get(THROUGHPUT),
        ttft_s=numbers.get("ttft_s"),
        tpot_s=numbers.get("tpot_s"),
        refusal=refusal,
        notes=(
            *(*prediction.notes, *_interpolated(evidence, settings)) * (not is_measured),
            *quality.notes(settings),
        ),
        precision_lost=quality.lost(settings, error) if is_lossy else 0.0,
    )
    return Row(
        candidate,
        case,
        settings,
        block,
        prediction,
        measured.throughputs(at),
        error,
        is_lossy,
        quality.of(settings),
    )


def _predicted(prediction: Prediction, evidence: Evidence, corrections: Any) -> Mapping[str, Any]:
    return {} if prediction.refusal is not None else ranges_of(prediction, evidence, corrections)


def _interpolated(evidence: Evidence, settings: EngineSettings) -> tuple[str, ...]:
    """That a block size lies between measured ones."""
    if evidence.known is None:
        return ()
    sizes = {int(case.engine["block_size"]) for case in evidence.known.cases}
    if settings.block_size in sizes:
        return ()
    return (f"blocks of {settings.block_size} were not measured: interpolated by the model",)


def _is_lossy(settings: EngineSettings) -> bool:
    """Whether K and V are stored in less than the weights' precision."""
    kv, weights = storage_dtype(settings.kv_dtype), storage_dtype(str(settings.weight_dtype))
    return kv.name not in (weights.name, "fp32")


def _kv_error(evidence: Evidence, settings: EngineSettings) -> float | None:
    """Of the runs that stored K and V as these settings do."""
    if evidence.known is None:
        return None
    names = ("kv_dtype", "kv_scales") if has_scales(settings.kv_dtype) else ("kv_dtype",)
    same = [
        case for case in evidence.known.cases if all(case.engine.get(name) == getattr(settings, name) for name in names)
    ]
    values = [value for case in same for value in case.values("kv_error_rel_rms").values()]
    return mean(values) if values else None


def _notes(rows: Sequence[Row], sample: LengthSample, plan: Plan) -> list[str]:
    """What holds for several candidates, each once, and with whom."""
    by_text: dict[str, list[str]] = {}
    for row in rows:
        for text in row.candidate.notes:
            by_text.setdefault(text, []).append(row.candidate.label)
    found = [
        f"{'all candidates' if len(labels) == len(rows) > 1 else ', '.join(labels)}: {text}"
        for text, labels in by_text.items()
    ]
    return [*found, *_sharing(rows, sample, plan), *_waiting(rows, plan)]


def _sharing(rows: Sequence[Row], sample: LengthSample, plan: Plan) -> list[str]:
    """What a prefix cache could find, here and in the whole trace."""
    caches = any(row.settings.prefix_cache != "none" for row in rows)
    if caches and sample.shared is None:
        return ["these lengths record no shared prefixes: a prefix cache or a lower tier finds nothing here"]
    if sample.shared is None:
        return []
    whole = hit_bound(sample, 1)
    assert whole is not None
    if not caches:
        return [
            f"{whole.hit_rate:.1%} of the prompt tokens stand at the front of an earlier request, and no candidate has "
            "a prefix cache: --axes prefix_cache -a prefix_cache=none,hash weighs one"
        ]
    served = hit_bound(sample.rows(np.arange(min(plan.requests, len(sample)))), 1)
    assert served is not None
    if served.hit_rate > whole.hit_rate - LESS_SHARED:
        return []
    return [
        f"a prefix cache can find at most {served.hit_rate:.1%} of the prompt tokens of the {plan.requests:,} requests "
        f"served, and {whole.hit_rate:.1%} of all {len(sample):,}: it is worth more there, as is a lower tier; "
        "--requests serves more"
    ]


def _waiting(rows: Sequence[Row], plan: Plan) -> list[str]:
    """That a closed loop with more clients than fit measures its own queue."""
    clients = max((one.clients or 0 for one in plan.lists), default=0)
    fit = max(row.exact.sequences for row in rows)
    if clients <= QUEUES * fit:
        return []
    return [
        f"{clients} clients keep the engine full, and {fit} sequences fit at once: TTFT is mostly waiting; "
        f"-a arrival.clients={fit} asks about as many as fit, -a arrival.kind=poisson -a rate=R about a rate"
    ]
