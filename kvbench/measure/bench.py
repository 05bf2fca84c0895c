"""The worker's workbench: models kept between cases, one case measured at a time, each written as a part at once."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvbench.errors import KvbenchError
from kvbench.measure.core_speed import CoreSpeed
from kvbench.measure.dominance import is_implied
from kvbench.measure.environment import readings
from kvbench.measure.job import COUNTERS, PROGRESS, REDONE, CaseJob, WorkerJob
from kvbench.measure.live import LiveCounters
from kvbench.measure.redo import Observer, RedoBudget
from kvbench.measure.watch import Watch
from kvbench.paths import cache_dir
from kvbench.spec.suite import KernelSettings, MeasureSettings, ModelSettings, SloSettings
from kvbench.store.parts import now, write_part

Send = Callable[..., None]
ModelKey = tuple[str, str, int, str]
"""Name, weights, seed and dtype: all that decides a model"""


class PoisonedContextError(Exception):
    """The accelerator's context is beyond use; this process must end."""


class Bench:
    """One process's set-up: threads, kernel cache, device, and the models it has built."""

    def __init__(self, job: WorkerJob, send: Send) -> None:
        self._job = job
        self._send = send
        self._measure = MeasureSettings.model_validate(job.suite["measure"])
        self._slo = SloSettings.model_validate(job.suite["slo"])
        self._models: dict[ModelKey, Any] = {}
        self._kv_errors: dict[tuple[ModelKey, str, int, str], dict[str, float]] = {}
        self._out_of_memory = list(job.out_of_memory)
        self._poisoned = False
        self._core = CoreSpeed() if job.device == "cpu" else None
        self._budget = RedoBudget.of(self._measure.redo_share, len(job.cases))
        import kvbench_kernels.cache

        kvbench_kernels.cache.use_cache(cache_dir() / "numba")
        import torch

        torch.set_num_threads(job.threads)
        kvbench_kernels.set_threads(job.threads)
        self._uuid = str(torch.cuda.get_device_properties(0).uuid) if job.device == "cuda" else None

    def measure(self, case: CaseJob) -> tuple[str, dict[str, Any]]:
        """Measure and store one case; its status and the numbers for the progress line. A bad case never raises."""
        from kvbench.measure.measured import Measured

        start = time.perf_counter()
        started_at, before = now(), readings()
        try:
            with Watch(self._job.device, self._uuid) as watch:
                observer = Observer(watch, self._budget, self._teller(case), self._core)
                found = self._implied(case) or self._measured(case, observer)
        except Exception as error:
            status, text = self._classify(error)
            found = Measured({}, status=status, error=text)
        if found.status == "oom":
            self._out_of_memory.append(case)
        found.row["started_at"] = started_at
        found.row["case_s"] = time.perf_counter() - start
        found.row["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        write_part(
            Path(self._job.run_dir),
            found.as_sample(case, {"before": before, "after": readings()}),
            max_steps=self._measure.max_steps_recorded,
        )
        return found.status, found.headline()

    def raise_if_poisoned(self) -> None:
        if self._poisoned:
            raise PoisonedContextError

    def _implied(self, case: CaseJob) -> Any:
        from kvbench.measure.measured import Measured

        smaller = next((other for other in self._out_of_memory if is_implied(case, other)), None)
        if smaller is None or self._job.run_implied:
            return None
        return Measured(
            {}, status="oom_implied", error=f"needs no less memory than case {smaller.case_id}, which ran out"
        )

    def _measured(self, case: CaseJob, observer: Observer) -> Any:
        from kvbench.measure import engine_case, kernel_case

        if case.kind == "kernel":
            kernel = KernelSettings.model_validate(case.kernel)
            return kernel_case.measure_kernel_case(kernel, self._job.device, self._measure, observer, tuned=case.tuned)
        model = self._model(case)
        found = engine_case.measure_engine_case(
            case, model, self._measure, self._slo, self._tell(case), observer, self._live(case)
        )
        found.row |= self._kv_error(case, model, found.tensor_scales)
        return found

    def _tell(self, case: CaseJob) -> Callable[[float], None]:
        return lambda share: self._send(PROGRESS, case.case_id, share=share)

    def _live(self, case: CaseJob) -> LiveCounters | None:
        if not self._job.tells_counters:
            return None
        return LiveCounters(lambda numbers: self._send(COUNTERS, case.case_id, **numbers))

    def _teller(self, case: CaseJob) -> Callable[[str], None]:
        return lambda reason: self._send(REDONE, case.case_id, sample=case.sample, reason=reason)

    def _model(self, case: CaseJob) -> Any:
        from kvbench.engine.model import Model
        from kvbench.geometry.resolve import resolve_model

        key = _model_key(case)
        name, weights, seed, dtype = key
        if key not in self._models:
            self._models.clear()  # one at a time: the next may need the memory
            if weights == "checkpoint":
                self._models[key] = Model.from_pretrained(name, device=self._job.device, dtype=dtype)
            else:
                self._models[key] = Model.random(resolve_model(name), seed=seed, device=self._job.device, dtype=dtype)
        return self._models[key]

    def _kv_error(self, case: CaseJob, model: Any, scales: Any) -> dict[str, float]:
        """Once per model, KV dtype, static scales and block size in this process: it depends on nothing else."""
        from kvbench.measure.kv_error import kv_error

        engine = case.engine or {}
        digest = "" if scales is None else scales.digest
        key = (_model_key(case), engine["kv_dtype"], engine["block_size"], digest)
        if key not in self._kv_errors:
            self._kv_errors[key] = kv_error(model, engine["kv_dtype"], engine["block_size"], scales)
        return self._kv_errors[key]

    def _classify(self, error: Exception) -> tuple[str, str]:
        """`oom` for memory, `error` for the rest; a CUDA error other than memory poisons the context."""
        text = f"{type(error).__name__}: {error}".strip()
        if isinstance(error, KvbenchError):
            return ("oom" if _is_out_of_memory(error) else "error"), error.message
        lowered = text.lower()
        if _is_out_of_memory(error):
            return "oom", text
        if "cuda error" in lowered or "acceleratorerror" in lowered:
            self._poisoned = True
        return "error", text


def _model_key(case: CaseJob) -> ModelKey:
    wanted = ModelSettings.model_validate(case.model)
    return wanted.name, wanted.weights, wanted.seed, str((case.engine or {})["weight_dtype"])


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an allocator gave up, here or in what our own error was raised from (torch has no common class)."""
    while error is not None:
        text = f"{type(error).__name__}: {error}".lower()
        if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
            return True
        error = error.__cause__
    return False
