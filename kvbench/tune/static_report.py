"""A kernel's whole space compiled and judged for a GPU that need not be there, and the report of it."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kvbench import __version__
from kvbench.tune.compile_pool import CompileJob, Outcome, compile_all
from kvbench.tune.pages import configurations, default_of, fields_of, load_page
from kvbench.tune.prune import STATUSES, Candidate, Judged, judge, spec_key
from kvbench.tune.static_columns import COLUMNS, write_parquet
from kvbench.tune.targets import Target, device_of, refuse_dtype

if TYPE_CHECKING:
    from kvbench_kernels.specs import KernelShape

SCHEMA_VERSION = 1
Progress = Callable[[int, int, Outcome], None]


@dataclass(frozen=True, slots=True)
class StaticReport:
    """`facts`: what was compiled, for what, by which compiler. `judged`: every configuration in the space's order."""

    facts: dict[str, Any]
    judged: list[Judged]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One flat row a configuration: the ranked ones first, then the others in the order of the space."""
        ordered = sorted(self.judged, key=lambda one: (one.rank is None, one.rank or 0, one.number))
        return [_row(one) for one in ordered]

    @property
    def counts(self) -> dict[str, int]:
        """Configurations per status."""
        found = Counter(one.status for one in self.judged)
        return {status: found[status] for status in STATUSES if found[status]}


def static_report(
    kernel: str,
    shape: KernelShape,
    target: Target,
    *,
    gpu: str | None = None,
    only: Sequence[Any] | None = None,
    jobs: int | None = None,
    timeout_s: float = 60.0,
    log: IO[bytes] | None = None,
    on_done: Progress | None = None,
) -> StaticReport:
    """Compile a kernel's space (`only`: these configurations of it) for `target` and judge what came out.

    `gpu` names the device whose SMs and bandwidth the ranking assumes. `UsageError` for an unknown kernel or device, a
    KV dtype that the target cannot read, a shape that the kernel cannot do; `CannotRunError` without Triton.
    """
    refuse_dtype(target, shape.kv_dtype)
    device = device_of(target, gpu)
    page = load_page(kernel)
    default = default_of(page, shape)
    wanted = configurations(page, shape) if only is None else [(c, page.allowed(shape, c) or "") for c in only]
    candidates = [
        Candidate(fields_of(config), config == default, refusal, None if refusal else page.compile_spec(shape, config))
        for config, refusal in wanted
    ]
    outcomes = _compiled(candidates, target, jobs, timeout_s, log, on_done)
    judged = judge(kernel, shape, candidates, outcomes, target, device)
    return StaticReport(_facts(kernel, shape, target, device.name, outcomes), judged)


def _compiled(
    candidates: Sequence[Candidate],
    target: Target,
    jobs: int | None,
    timeout_s: float,
    log: IO[bytes] | None,
    on_done: Progress | None,
) -> list[Outcome | None]:
    """Each distinct compile once."""
    specs = {spec_key(one.spec): one.spec for one in candidates if one.spec is not None}
    work = [CompileJob(spec, target.arch) for spec in specs.values()]
    done = 0

    def note(at: int, outcome: Outcome) -> None:
        nonlocal done
        done += 1
        if on_done is not None:
            on_done(done, len(work), outcome)

    outcomes = dict(
        zip(specs, compile_all(work, workers=jobs, timeout_s=timeout_s, log=log, on_done=note), strict=True)
    )
    return [outcomes[spec_key(one.spec)] if one.spec is not None else None for one in candidates]


def _facts(
    kernel: str, shape: KernelShape, target: Target, device: str, outcomes: Sequence[Outcome | None]
) -> dict[str, Any]:
    from kvbench_kernels import source_digest

    first = next((one for one in outcomes if one is not None and one.triton), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "kernel": kernel,
        "target": target.name,
        "ranked_for": device,
        "was_launched": False,
        "shape": asdict(shape),
        "kernel_source": source_digest(),
        "triton": first.triton if first else None,
        "ptxas": next((one.ptxas for one in outcomes if one is not None and one.ptxas), None),
        "fp_fusion": next((one.fp_fusion for one in outcomes if one and one.resources), None),
        "python": platform.python_version(),
        "kvbench": __version__,
    }


def _row(one: Judged) -> dict[str, Any]:
    found, resident, predicted = one.resources, one.occupancy, one.prediction
    row: dict[str, Any] = {"rank": one.rank, "number": one.number, **one.candidate.configuration}
    row |= {"is_default": one.candidate.is_default, "status": one.status, "reason": one.reason}
    row |= {name: getattr(found, name) if found else None for name in COLUMNS["resources"]}
    row |= {
        "blocks_per_sm": resident.blocks if resident else None,
        "occupancy": resident.share if resident else None,
        "limited_by": resident.limit if resident else None,
        "same_code_as": one.same_code_as,
        "splits": predicted.splits if predicted else None,
        "waves": predicted.waves if predicted else None,
        "model_s": predicted.seconds if predicted else None,
        "compile_s": one.outcome.seconds if one.outcome else None,
    }
    return row


def write_report(report: StaticReport, folder: Path) -> list[Path]:
    """`static.json` (facts, rows), `static.parquet` (rows, and the facts as metadata), each whole or not there."""
    from kvbench.store.files import make_folder, replace_file, to_json, write_errors

    with write_errors(folder):
        paths = [make_folder(folder) / "static.json", folder / "static.parquet"]
        with ExitStack() as stack:
            staging = folder / ".staging"
            stack.callback(lambda: staging.rmdir() if staging.is_dir() else None)
            replace_file(paths[0], to_json({**report.facts, "counts": report.counts, "rows": report.rows}), staging)
            replace_file(paths[1], write_parquet(report.rows, report.facts), staging)
    return paths
