"""The requests of a stored run as a workload that can be served again, without the trace that they came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvbench.errors import DataError
from kvbench.store.run import Run
from kvbench.workload.build import ImportReport, Workload
from kvbench.workload.digest import workload_digest


def stored_workload(run: Run, digest: str, arrival: Mapping[str, Any]) -> Workload:
    """The workload of this digest, checked against it; `arrival` are the case's settings (a closed loop has clients).

    Raises `DataError` where the run does not describe it or holds other requests."""
    try:
        about = run.manifest["controlled"]["workloads"][digest]
        clients = arrival["clients"] if arrival["kind"] == "closed-loop" else None
        report = ImportReport(**{**about["report"], "notes": tuple(about["report"]["notes"])})
        seed = int(about["seed"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{run.path}: workload {digest[:12]} is not described: {error!r}", hint="damaged") from None
    requests = run.requests_of(digest)
    if workload_digest(requests, seed, clients) != digest:
        raise DataError(f"{run.path}: the requests are not those of their digest", hint="workload.parquet is damaged")
    return Workload(tuple(requests), report, digest, seed, clients)
