"""The few cases that would decide, measured on these very lengths as an ordinary run, and the decision on them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.console import say
from kvbench.costmodel.fitted import FittedFile
from kvbench.devices.detect import detect
from kvbench.errors import CannotRunError
from kvbench.spec.load import LoadedSuite, from_effective
from kvbench.store.files import make_folder, write_errors
from kvbench.store.run import open_run
from kvbench.sweep.advice.pools import context_of
from kvbench.sweep.advise import Advice, advise
from kvbench.sweep.run import run_suite

if TYPE_CHECKING:
    from kvbench.analysis.advice.lengths import LengthSample

SAMPLE_S = 8.0
"""About how long one sample may take, by the prediction"""
FEWEST = 24
MOST_CANDIDATES = 6


def undecided(advice: Advice) -> list[int]:
    """The candidates that measuring would decide between: the tied ones; where no step was ever measured, the first
    two. Nothing where the answer is clear already."""
    decision = advice.decision
    if decision.chosen is None:
        return []
    if len(decision.tied) > 1:
        rates = {at: advice.gaps.value[at, decision.chosen] for at in decision.tied}
        best = sorted(rates, key=lambda at: (at != decision.chosen, -rates[at]))[:MOST_CANDIDATES]
        return sorted(best)
    if advice.evidence.is_modelled and decision.runner_up is not None:
        return sorted((decision.chosen, decision.runner_up))
    return []


def measure_and_decide(advice: Advice, out: Path, rounds: int) -> Advice:
    """Measure what is undecided and answer again, by what was measured. The answer as it was where nothing is.

    Raises `CannotRunError` where the question is about another device than the one at hand."""
    places = undecided(advice)
    if not places:
        say("nothing to measure: the answer is clear", style="yellow")
        return advice
    _refuse_other_device(advice)
    sample = _served(advice)
    run = run_suite(suite_of(advice, places, sample, out), out=out, repetitions=rounds)
    say(f"run: {run.path}")
    question = advice.question
    runs = tuple(path for path in question.results if path.is_dir())
    measured = {name: [advice.rows[at].candidate.settings[name] for at in places] for name in advice.axes}
    overrides = [text for text in question.overrides if text.partition("=")[0].rpartition(".")[2] not in measured]
    overrides += [f"{name}={','.join(map(str, dict.fromkeys(values)))}" for name, values in measured.items()]
    again = advise(
        replace(
            question,
            sample=sample,
            results=(*runs, run.path),
            gpu=None,
            memory_bytes=None,
            kv_memory_bytes=_pool_bytes(advice, places),
            overrides=tuple(overrides),
        )
    )
    return replace(again, notes=(*again.notes, _left_out(advice, places)))


def suite_of(advice: Advice, places: list[int], sample: LengthSample, out: Path) -> LoadedSuite:
    """The cases in question as a suite: what the candidates share, and their axes advancing together."""
    rows = [advice.rows[at] for at in places]
    shared = rows[0].settings.model_dump(mode="json", exclude_defaults=True)
    shared |= {"kv_memory": _pool_bytes(advice, places), "attention": advice.evidence.base.get("attention", "auto")}
    shared["max_context"] = context_of(advice.evidence, rows[0].settings)
    engine = {key: value for key, value in shared.items() if key not in advice.axes}
    data: dict[str, Any] = {
        "name": "recommend",
        "title": f"What decides between {len(rows)} candidates for {sample.label}",
        "model": dict(advice.evidence.model),
        "engine": engine,
        "workload": _workload(advice, sample, out),
        "measure": {"threads": _threads(advice)},
        "zip": [{f"engine.{name}": [row.candidate.settings[name] for row in rows] for name in advice.axes}],
    }
    return from_effective(data, what="the cases to measure")


def _workload(advice: Advice, sample: LengthSample, out: Path) -> dict[str, Any]:
    workload = advice.rows[0].case.workload
    assert workload is not None
    arrival = {"kind": workload.arrival.kind, **workload.arrival.model_dump(mode="json", exclude_defaults=True)}
    if advice.plan.is_recorded and advice.question.trace is not None:
        trace = str(advice.question.trace.resolve())
        return {"source": "trace", "trace": trace, "limit": len(sample), "arrival": arrival}
    if advice.plan.is_recorded and advice.question.run is not None:
        return {**_stored(advice.question.run, str(sample.digest)), "arrival": arrival}
    return {"source": "trace", "trace": str(_written(sample, out)), "format": "vidur", "arrival": arrival}


def _stored(run: Path, digest: str) -> Mapping[str, Any]:
    """The settings of a run's workload, which make the same requests again."""
    cases = open_run(run).plan["cases"]
    found: Mapping[str, Any] = next(case["workload"] for case in cases if case.get("workload_digest") == digest)
    return found


def _written(sample: LengthSample, out: Path) -> Path:
    """The lengths as a file that a sweep reads; the run keeps the requests, so it may go afterwards."""
    digest = sha256(sample.inputs.tobytes() + sample.outputs.tobytes()).hexdigest()[:12]
    path = out / f"lengths-{digest}.csv"
    with write_errors(out):
        make_folder(out)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("num_prefill_tokens", "num_decode_tokens"))
            writer.writerows(zip(sample.inputs.tolist(), sample.outputs.tolist(), strict=True))
    return path.resolve()


def _served(advice: Advice) -> LengthSample:
    """As many requests as take about `SAMPLE_S` by the prediction: all in their order, else a stratified sample. All of
    a run's that share prefixes, for it says how to make all of them."""
    chosen = advice.chosen
    assert chosen is not None
    rate = chosen.candidate.tokens_per_s
    tokens = (rate.value if rate else 1.0) * SAMPLE_S
    count = max(FEWEST, round(tokens / float(advice.sample.outputs.mean())))
    if count >= len(advice.sample) or (advice.plan.is_recorded and advice.question.run is not None):
        return advice.sample
    if advice.plan.is_recorded:
        return advice.sample.rows(np.arange(count))
    return advice.sample.sample(count, advice.question.seed)


def _pool_bytes(advice: Advice, places: list[int]) -> int:
    """The same bytes for all; they differ only by what a last block leaves over."""
    return max(advice.rows[at].exact.pool_bytes for at in places)


def _threads(advice: Advice) -> int | str:
    source = advice.evidence.source
    return source.threads if isinstance(source, FittedFile) else "auto"


def _refuse_other_device(advice: Advice) -> None:
    here, asked = detect(), advice.evidence.device
    if here.name != asked.name:
        raise CannotRunError(
            f"--measure measures on the device at hand, {here.name}, and the question is about {asked.name}",
            hint="leave --measure out, or ask on that device",
        )
    if advice.question.tp > 1:
        raise CannotRunError("--measure measures one device, and --tp splits the model", hint="leave one of them out")


def _left_out(advice: Advice, places: list[int]) -> str:
    """What is said of the candidates that were not measured."""
    rest = [row.candidate.label for at, row in enumerate(advice.rows) if at not in places]
    behind = f"; left out, for the prediction has them behind: {', '.join(rest)}" if rest else ""
    return f"{len(places)} candidates were measured{behind}"
