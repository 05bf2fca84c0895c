"""Cases under the virtual clock: served, or modelled, in this process and without tensors. Torch-free."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.costmodel.fitted import FittedFile
from kvbench.costmodel.model import decode_kernel_s
from kvbench.costmodel.rates import NamedRates, Rates
from kvbench.costmodel.sources import CostSource, cost_for
from kvbench.engine.serve import Served, serve
from kvbench.engine.telemetry import StepRecord
from kvbench.engine.virtual import VirtualEngine
from kvbench.errors import CannotRunError, ExitCode, KvbenchError
from kvbench.geometry.huggingface import geometry_from_folder
from kvbench.geometry.memory import kv_bytes_per_token
from kvbench.geometry.model import ModelGeometry
from kvbench.geometry.resolve import resolve_model
from kvbench.measure.cache_state import bring_about, check_hits
from kvbench.measure.domain import Reach, outside
from kvbench.measure.environment import readings
from kvbench.measure.job import CaseJob
from kvbench.measure.kernel_geometry import one_layer
from kvbench.measure.live import LiveCounters
from kvbench.measure.measured import Measured, OnShare, decoding_of, measured, planned_workload, share_of
from kvbench.spec.engine import EngineSettings
from kvbench.spec.suite import KernelSettings, MeasureSettings, SloSettings
from kvbench.store.parts import now, write_part

BACKEND = "cost model"


class OutOfTimeError(KvbenchError):
    """A case that simulates longer than `timeout_s` of real time."""

    exit_code = ExitCode.PARTIAL


@dataclass(slots=True)
class VirtualBench:
    """Measures cases one after another and writes each as a part at once. What is measured depends on nothing but
    the case: what goes by the real clock are `case_s`, `peak_rss_bytes` and the time stamps."""

    run_dir: Path
    cost_source: CostSource
    measure_settings: MeasureSettings
    slo: SloSettings

    def measure(self, case: CaseJob, on_share: OnShare, live: LiveCounters | None = None) -> tuple[str, dict[str, Any]]:
        """Measure and store one case; its status and the numbers for the progress line. A bad case never raises;
        what cannot be written does."""
        start = time.perf_counter()
        started_at, before = now(), readings()
        try:
            found = self._measured(case, on_share, live)
        except OutOfTimeError as error:
            found = Measured({}, status="timeout", error=error.message)
        except KvbenchError as error:
            found = Measured({}, status="error", error=error.message)
        except MemoryError as error:
            found = Measured({}, status="oom", error=f"MemoryError: {error}")
        found.row |= {
            "started_at": started_at,
            "case_s": time.perf_counter() - start,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        sample = found.as_sample(case, {"before": before, "after": readings()})
        write_part(self.run_dir, sample, max_steps=self.measure_settings.max_steps_recorded)
        return found.status, found.headline()

    def _measured(self, case: CaseJob, on_share: OnShare, live: LiveCounters | None) -> Measured:
        if case.kind == "kernel":
            return modelled_kernel(KernelSettings.model_validate(case.kernel), _rates(self.cost_source))
        return served_case(
            case, self.cost_source, self.measure_settings, self.slo, on_share, timeout_s=case.timeout_s, live=live
        )


def served_case(
    case: CaseJob,
    source: CostSource | Rates,
    measure: MeasureSettings,
    slo: SloSettings,
    on_share: OnShare,
    *,
    timeout_s: float,
    live: LiveCounters | None = None,
) -> Measured:
    """Serve the case's workload once, its cache in the declared state. There is nothing to warm up.

    Raises `InternalError` when the engine's books do not add up afterwards."""
    settings = EngineSettings.model_validate(case.engine)
    workload = planned_workload(case)
    geometry = geometry_of(case)
    engine = virtual_engine(geometry, settings, source, case.max_context)
    asked = decoding_of(case)
    on_step = _until(timeout_s, share_of(workload, asked.width, on_share, live))
    prepared = bring_about(engine, workload, case, measure, asked)
    served: Served = serve(engine, workload, sampling=asked.sampling, n=asked.n, beams=asked.beams, on_step=on_step)
    if live is not None:
        live.flush()
    engine.check_invariants()
    found = measured(served, settings, slo, geometry, engine.sizes.max_context, width=asked.width)
    found.row |= {"attention_backend": BACKEND, **prepared.columns()}
    warnings = [*prepared.warnings()]
    if isinstance(source, FittedFile):
        reach = Reach.of(source, settings, found.steps or [])
        warnings += outside(source, settings, str(case.cache_state), reach)[1]
    found.warnings += [warning.as_dict() for warning in warnings]
    check_hits(found, served, case)
    return found


def virtual_engine(
    geometry: ModelGeometry, settings: EngineSettings, source: CostSource | Rates, max_context: int | None = None
) -> VirtualEngine:
    """The engine of resolved settings."""
    dtype = settings.weight_dtype
    cost = cost_for(
        source,
        geometry,
        weight_dtype=dtype,
        kv_dtype=settings.kv_dtype,
        block_size=settings.block_size,
        kv_scales=settings.kv_scales,
        kv_layout=settings.kv_layout,
    )
    return VirtualEngine(geometry, settings, cost, weight_dtype=dtype, max_context=max_context)


def modelled_kernel(kernel: KernelSettings, rates: Rates) -> Measured:
    """One decode-attention call by the same terms as in a step; nothing was called, so there are no iterations."""
    geometry = one_layer(kernel)
    seconds = decode_kernel_s(
        geometry,
        rates,
        kv_dtype=kernel.kv_dtype,
        kv_scales=kernel.kv_scales,
        block_size=kernel.block_size,
        batch=kernel.batch,
        context=kernel.context,
    )
    stored = int(kernel.batch * kernel.context * kv_bytes_per_token(geometry, kernel.kv_dtype, kernel.kv_scales))
    moved = stored + 2 * 4 * kernel.batch * kernel.query_heads * kernel.head_dim
    return Measured(
        {
            "attention_backend": BACKEND,
            "decode_s": seconds,
            "decode_mean_s": seconds,
            "bytes_read_per_call": moved,
            "bytes_per_s": moved / seconds,
            "copy_bytes_per_s": 2 * rates.copy_bytes,
        }
    )


def _rates(source: CostSource) -> Rates:
    if isinstance(source, NamedRates):
        return source.rates
    raise CannotRunError(
        f"{source.label} knows steps of an engine, and no kernel calls", hint="leave the kernel cases out"
    )


def geometry_of(case: CaseJob) -> ModelGeometry:
    """Of the case's model."""
    name = case.model["name"]
    return geometry_from_folder(Path(name)) if case.model["weights"] == "checkpoint" else resolve_model(name)


def _until(timeout_s: float, on_step: Callable[[StepRecord], None]) -> Callable[[StepRecord], None]:
    deadline = time.monotonic() + timeout_s

    def checked(step: StepRecord) -> None:
        if time.monotonic() > deadline:
            raise OutOfTimeError(f"simulating took more than {timeout_s:g} s")
        on_step(step)

    return checked
