"""docs/results.md, written from the schemas: `python -m kvbench.store.results_doc > docs/results.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from kvbench.store.columns import Column
from kvbench.store.schemas import columns
from kvbench.store.version import SCHEMA_VERSION

_HEAD = f"""# What a run holds

Written by `python -m kvbench.store.results_doc`; a test checks that it is current. Schema version {SCHEMA_VERSION}.

A run is a folder `results/<suite>-<UTC time>-<id>/`. While a sweep runs it holds `plan.json`, written before the first
case, and one folder `parts/<case>-<sample>/` per finished sample, renamed into place with the sha256 of its files.
Sealing (at the end, on resume and every 256 samples) compacts the parts into `cases.parquet`, `requests.parquet`,
`steps.parquet` and `workload.parquet` (zstd, unit and description in every field's metadata) and writes
`manifest.json`, which has the sha256 of each of them. Readers accept both states and a seal that was interrupted.
Samples that a changed suite or changed code made obsolete move to `superseded/`.

Missing values are null, never 0 or NaN. Times are seconds, sizes bytes.

How the metrics are defined:

* Latency counts from the scheduled arrival, queueing included. TPOT uses the tokens actually produced; ITL is every
  gap between output tokens and never TTFT. Requests that were rejected or failed are in no latency.
* A percentile q is given only if the largest of n values lies above it with 95 % confidence, qⁿ ≤ 0.05: 5 values for
  p50, 29 for p90, 59 for p95, 299 for p99. Otherwise it is null and the warning `too_few_samples` says why.
* Busy time of prefill (decode) is the length of all steps that computed a prompt (decode) token. A step that did both
  counts whole in both, because splitting it would need a model of what each part costs; `mixed_busy_s` says how much.
* A share of the pool over time is weighted by the length of the steps.
* Goodput counts requests that met every objective; a latency that is missing is not met.
"""
_TITLES = {
    "cases": "one row per case and sample",
    "requests": "one row per request and sample",
    "steps": "one row per engine step and sample",
    "workload": "the requests as they were run, once per distinct workload",
}


def results_markdown() -> str:
    """The whole page."""
    parts = [_HEAD]
    for table, title in _TITLES.items():
        parts.append(f"## {table}.parquet: {title}\n\n{_table(columns(table))}")
    return "\n".join(parts)


def _table(found: Iterable[Column]) -> str:
    rows = ["| column | type | unit | meaning |", "| :-- | :-- | :-- | :-- |"]
    rows += [f"| `{c.name}` | {c.type} | {c.unit} | {c.description.replace('|', '&#124;')} |" for c in found]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(results_markdown())
