"""How long a sweep may take: from the newest run on this device that served this model, else from one calibration."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvbench.errors import KvbenchError
from kvbench.store.run import Run, open_run
from kvbench.sweep.plan import PlannedCase, SweepPlan
from kvbench.units import format_duration

CALIBRATION_TIMEOUT_S = 120
PROCESS_START_S = 4.0
KERNEL_CASE_S = 1.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second of prefill and decode, seconds of start-up, and where the figures are from."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    startup_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected seconds of one sample by case id (None: unknown), of the whole sweep, and the source of the figures."""

    case_s: dict[str, float | None]
    total_s: float | None
    source: str


def estimate(plan: SweepPlan, results: Path, *, may_calibrate: bool = True) -> Estimate:
    """Expected times; a figure for orientation, never a promise. Without calibration they may be unknown."""
    if plan.machine.is_virtual:
        return Estimate({}, None, "nothing: the virtual clock takes no device time")
    engine_cases = [case for case in plan.runnable if case.job.kind == "engine"]
    known, rates = _from_newest_run(plan, results, engine_cases)
    source = rates.source if rates else "no engine case to time"
    if may_calibrate and rates is None and any(case.job.fingerprint not in known for case in engine_cases):
        rates, source = _calibrated(plan, engine_cases[0])
    case_s = {case.job.case_id: _one(case, known, rates) for case in plan.runnable}
    times = [value for value in case_s.values() if value is not None]
    startup = rates.startup_s if rates else PROCESS_START_S
    total = plan.repetitions * (sum(times) + startup) if len(times) == len(case_s) else None
    return Estimate(case_s, total, source)


def announcement(plan: SweepPlan, results: Path, todo: int) -> str:
    """What lies ahead of a sweep, in a line: samples, and their time as far as it is known without measuring. Requests
    that arrive over hours take hours, whatever the device."""
    samples = f"{todo} samples to take"
    if plan.machine.is_virtual or not todo or not plan.runnable:
        return samples
    expected = estimate(plan, results, may_calibrate=False)
    share = todo / (len(plan.cases) * plan.repetitions)
    if expected.total_s is not None:
        return f"{samples}, about {format_duration(share * expected.total_s)} (by {expected.source})"
    arrivals = share * plan.repetitions * sum(_last_arrival_s(case) for case in plan.runnable)
    known = f"; the arrivals of their requests take {format_duration(arrivals)} at least" if arrivals >= 1 else ""
    return f"{samples}{known}; --dry-run estimates the time"


def _last_arrival_s(case: PlannedCase) -> float:
    return case.workload.last_arrival_s if case.workload else 0.0


def _one(case: PlannedCase, known: dict[str, float], rates: Rates | None) -> float | None:
    if case.job.fingerprint in known:
        return known[case.job.fingerprint]
    if case.job.kind == "kernel":
        return KERNEL_CASE_S
    if rates is None:
        return None
    inputs, outputs = case.tokens
    busy = inputs / rates.prefill_tokens_per_s + outputs / rates.decode_tokens_per_s
    return max(busy, _last_arrival_s(case))


def _from_newest_run(
    plan: SweepPlan, results: Path, engine_cases: list[PlannedCase]
) -> tuple[dict[str, float], Rates | None]:
    """Seconds by fingerprint, and rates, from the newest run on this device with a sample of the first case's model."""
    model = engine_cases[0].job.columns.get("model") if engine_cases else None
    for run in _runs(results):
        try:
            rows = run.cases
        except KvbenchError:
            continue
        rows = rows[(rows["status"] == "ok") & (rows["device_name"] == plan.device.name)]
        rows = rows[rows["clock"] == "wall"]
        same = rows[rows["model"] == model]
        if len(same) and same["decode_tokens_per_busy_s"].notna().any():
            return _known(rows), _rates(same, run.run_id)
    return {}, None


def _known(rows: Any) -> dict[str, float]:
    return {str(key): float(median(group["case_s"])) for key, group in rows.groupby("fingerprint")}


def _rates(rows: Any, run_id: str) -> Rates:
    return Rates(
        prefill_tokens_per_s=float(rows["prefill_tokens_per_busy_s"].median()),
        decode_tokens_per_s=float(rows["decode_tokens_per_busy_s"].median()),
        startup_s=PROCESS_START_S,
        source=f"run {run_id}",
    )


def _runs(results: Path) -> Iterator[Run]:
    """Readable runs, newest first."""
    plans = sorted(results.glob("*/plan.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in plans:
        try:
            yield open_run(path.parent)
        except KvbenchError:
            continue


def _calibrated(plan: SweepPlan, case: PlannedCase) -> tuple[Rates | None, str]:
    """Serve a handful of short prompts in a process of its own; without rates the text says why there are none."""
    asked = {
        "model": case.job.model,
        "engine": case.job.engine,
        "max_context": case.job.max_context,
        "device": plan.device.kind,
        "threads": plan.threads,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvbench.measure.calibrate"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=CALIBRATION_TIMEOUT_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return None, f"nothing: the calibration step took more than {CALIBRATION_TIMEOUT_S} s"
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        return None, f"nothing: the calibration step failed: {last}"
    rates = Rates(**json.loads(done.stdout.splitlines()[-1]), source="one calibration step on this device")
    return rates, rates.source
