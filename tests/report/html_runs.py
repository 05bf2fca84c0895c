"""Small runs with the data that figures need, made of given numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from kvbench.store.parts import Sample
from kvbench.store.run import Run, open_run
from kvbench.store.run_folder import RunFolder
from tests.store.samples import case_id, plan, request_record, step_record

Row = Callable[[dict[str, Any], int], dict[str, Any]]


def axes_run(
    out: Path,
    axes: Mapping[str, list[Any]],
    row: Row,
    *,
    samples: int = 1,
    kind: str = "engine",
    zipped: tuple[str, ...] = (),
    **plan_changes: Any,
) -> Run:
    """A sealed run of the product of `axes` (column → values; `zipped` ones advance together), one row from each case's
    axes and sample number; the suite declares them as a suite file does."""
    wanted = plan(0, samples, clock="wall", **plan_changes)
    settings = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    if zipped:
        settings = [one for one in settings if len({axes[name].index(one[name]) for name in zipped}) == 1]
    wanted["cases"] = [
        {"case_id": case_id(n), "kind": kind, "fingerprint": "f", "axes": one} for n, one in enumerate(settings)
    ]
    keys = {name: f"{kind}.{name}" for name in axes}
    wanted["suite"]["effective"] = {
        "axes": {keys[name]: values for name, values in axes.items() if name not in zipped},
        "zip": [{keys[name]: axes[name] for name in zipped}] if zipped else [],
    }
    with RunFolder.create(out, wanted) as folder:
        for number, (n, one) in product(range(samples), enumerate(settings)):
            folder.add(_sample(n, number, kind, one, row(one, number)))
        folder.seal()
        return open_run(folder.path)


def _sample(n: int, number: int, kind: str, axes: dict[str, Any], row: dict[str, Any]) -> Sample:
    facts = {"status": "ok", "kind": kind, "clock": "wall", "device": "cpu", "device_name": "AMD EPYC", "model": "tiny"}
    if kind == "kernel":
        return Sample(case_id(n), number, "f", {**facts, **axes, **row})
    facts |= {"ttft_p50_s": 0.1, "tpot_p50_s": 0.01}
    requests = [request_record(i, ttft_s=0.1 * (i + 1), itl_s=[0.01, 0.02, 0.03]) for i in range(6)]
    steps = [step_record(i, kv_bytes_used=100 * i, batch_size=i + 1) for i in range(8)]
    return Sample(case_id(n), number, "f", {**facts, **axes, **row}, requests, steps)
