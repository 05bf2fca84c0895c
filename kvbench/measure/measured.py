"""What an engine case needs and brings home under either clock. Torch-free."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvbench.engine.reblocking import ReblockRecord
from kvbench.engine.sampling import SamplingParams
from kvbench.engine.serve import Served
from kvbench.engine.telemetry import RequestRecord, StepRecord
from kvbench.errors import DataError
from kvbench.geometry.budget import Load, table_bytes
from kvbench.geometry.memory import pool_layout
from kvbench.geometry.model import ModelGeometry
from kvbench.measure.consistency import contradictions
from kvbench.measure.job import CaseJob, sample_row
from kvbench.measure.live import LiveCounters
from kvbench.measure.metrics import case_metrics
from kvbench.measure.slo import goodput
from kvbench.measure.warnings import text
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import SloSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.store.parts import Sample
from kvbench.store.run import open_run
from kvbench.store.stored_workload import stored_workload
from kvbench.workload.build import Workload, build_workload

OnShare = Callable[[float], None]


@dataclass(slots=True)
class Measured:
    """What one sample brought home."""

    row: dict[str, Any]
    requests: list[RequestRecord] | None = None
    steps: list[StepRecord] | None = None
    warnings: list[dict[str, Any]] = field(default_factory=list)
    status: str = "ok"
    error: str | None = None
    tensor_scales: Any = None
    """Static KV scales of the engine that was measured, for the numeric error"""
    extra: dict[str, Any] = field(default_factory=dict)
    """What no column holds: curves, decisions and the numbers behind them; JSON"""

    def as_sample(self, case: CaseJob, extra: dict[str, Any]) -> Sample:
        """The form in which it is stored; `extra` are readings taken around it."""
        return Sample(
            case_id=case.case_id,
            sample=case.sample,
            fingerprint=case.fingerprint,
            row=sample_row(case, self.status, self.error) | self.row | {"warnings": self.warnings},
            requests=self.requests,
            steps=self.steps,
            workload_digest=case.workload_digest,
            extra=self.extra | extra,
        )

    def headline(self) -> dict[str, Any]:
        """The numbers for the progress line."""
        names = (
            "output_tokens_per_s", "ttft_p50_s", "tpot_p50_s", "decode_s", "bytes_per_s", "measured_s", "warmup_s",
        )  # fmt: skip
        found = {name: self.row[name] for name in names if self.row.get(name) is not None}
        return found | ({"error": self.error} if self.error else {})


def planned_workload(case: CaseJob) -> Workload:
    """The case's requests; `DataError` when they are not those that the plan saw."""
    settings = WorkloadSettings.model_validate(case.workload)
    if case.requests_from is not None and case.workload_digest is not None:
        return stored_workload(open_run(case.requests_from), case.workload_digest, settings.arrival.model_dump())
    workload = build_workload(settings, max_context=case.max_context)
    if case.workload_digest is not None and workload.digest != case.workload_digest:
        raise DataError(
            "the workload is not the one that was planned: its trace changed on disk since the sweep began",
            hint="start the sweep again",
        )
    return workload


def measured(
    served: Served,
    settings: EngineSettings,
    slo: SloSettings,
    geometry: ModelGeometry,
    max_context: int,
    reblocks: Sequence[ReblockRecord] = (),
    width: int = 1,
) -> Measured:
    """A served workload with its metrics and the warnings about them; `invalid` when its columns contradict each other.
    `width` sequences per request."""
    block_sizes = np.full(len(served.steps), settings.block_size)
    for record in reblocks:
        block_sizes[[step.step >= record.step for step in served.steps]] = record.block_size
    layout = pool_layout(geometry, settings.kv_dtype, settings.block_size, settings.kv_scales)
    metrics, warnings = case_metrics(
        served.requests,
        served.steps,
        slo=slo,
        wall_s=served.wall_s,
        block_size=block_sizes,
        pieces=len(layout.pieces),
        offload=settings.offload,
    )
    broken = contradictions(served.requests, served.steps, wall_s=served.wall_s, width=width)
    load = Load(settings.max_sequences, settings.max_batch_tokens, max_context)
    row = {
        **metrics,
        **_reblocking(reblocks),
        "measured_s": served.wall_s,
        "slo_verdict": goodput(served.requests, slo).verdict,
        "block_table_bytes": table_bytes(layout, load),
    }
    found = Measured(row, served.requests, served.steps, [warning.as_dict() for warning in (*broken, *warnings)])
    if broken:
        found.status, found.error = "invalid", text(*broken[0])
    return found


def _reblocking(reblocks: Sequence[ReblockRecord]) -> dict[str, Any]:
    """Nothing where the block size never changed."""
    if not reblocks:
        return {}
    last = reblocks[-1]
    return {
        "reblock_s": sum(record.seconds for record in reblocks),
        "reblock_bytes": sum(record.moved_bytes for record in reblocks),
        "reblock_staging_bytes": max(record.staging_bytes for record in reblocks),
        "reblock_kept_tokens": last.kept_tokens,
        "reblock_dropped_tokens": last.dropped_tokens,
        "reblock_refusals": last.refusals,
        "reblock_step": last.step,
    }


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the workload's requests choose their tokens, and how many sequences each is."""

    sampling: SamplingParams
    n: int
    beams: int

    @property
    def width(self) -> int:
        return max(self.n, self.beams)


def decoding_of(case: CaseJob) -> Decoding:
    """From the case's `workload.sampling`."""
    asked = WorkloadSettings.model_validate(case.workload).sampling
    return Decoding(SamplingParams(asked.temperature, asked.top_k, asked.top_p), asked.n, asked.beams)


def share_of(
    workload: Workload, width: int, on_share: OnShare, live: LiveCounters | None = None
) -> Callable[[StepRecord], None]:
    """Progress by tokens of `width` sequences per request, told at most four times a second; `live` hears every step
    too."""
    total = max(1, sum(r.input_tokens + width * r.output_tokens for r in workload.requests))
    done = 0
    last = time.monotonic()

    def on_step(step: StepRecord) -> None:
        nonlocal done, last
        done += step.prefill_tokens + step.decode_tokens
        now = time.monotonic()
        if now - last >= 0.25:
            last = now
            on_share(min(1.0, done / total))
        if live is not None:
            live(step)

    return on_step
