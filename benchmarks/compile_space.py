"""Kernels compiled for GPUs that are not there: how a whole space fares, and what ships. Nothing is launched or timed
but the compiler.

    python benchmarks/compile_space.py [--kernel decode] [--target sm_90] [--kv-dtype bf16,fp8_e4m3,int8]
    python benchmarks/compile_space.py --shipped [--kernel decode,prefill,…] [--target sm_80,sm_90,sm_100]

and [--jobs 2] [--json] with either.

The first compiles every configuration of a kernel and counts their fates; the second prints registers, spills, shared
memory and instructions of what runs where nothing was tuned and of what can win, and exits with 1 if one is not clean.
The shape is the typical one of `kvbench tune`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from kvbench.tabulate import markdown
from kvbench.tune.pages import PAGES
from kvbench.tune.shapes import kernel_shape
from kvbench.tune.shipped import TARGETS, compile_shipped, problems, shipped
from kvbench.tune.static_report import StaticReport, static_report
from kvbench.tune.targets import known_target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--kernel")
    parser.add_argument("--target")
    parser.add_argument("--kv-dtype", default="bf16,fp8_e4m3,int8")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = _shipped_rows(options) if options.shipped else _space_rows(options)
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        columns = list(rows[0])
        print(markdown(columns, [[str(row[name]) for name in columns] for row in rows]))
    return int(any(row.get("problems") for row in rows))


def _shipped_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    kernels = options.kernel.split(",") if options.kernel else list(PAGES)
    targets = [known_target(name) for name in (options.target.split(",") if options.target else TARGETS)]
    compiles = [one for kernel in kernels for target in targets for one in shipped(kernel, target)]
    outcomes = compile_shipped(compiles, workers=options.jobs)
    rows = []
    for one, outcome in zip(compiles, outcomes, strict=True):
        found = outcome.resources
        rows.append(
            {
                "kernel": one.kernel,
                "target": one.target.name,
                "KV": one.kv_dtype,
                "head dim": one.head_dim,
                "configuration": "/".join(map(str, one.configuration.values())) + (" *" if one.is_default else ""),
                "registers": found.registers if found else "",
                "spills": found.spill_bytes if found else "",
                "shared bytes": found.shared_bytes if found else "",
                "16-byte loads": found.wide_loads if found else "",
                "narrower": found.narrow_loads if found else "",
                "tensor core": f"{found.tensor_core} {found.tensor_core_kind}".strip() if found else "",
                "problems": "; ".join(problems(one, outcome)),
            }
        )
    return rows


def _space_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    kernel, target = options.kernel or "decode", known_target(options.target or "sm_90")
    rows = []
    for kv_dtype in options.kv_dtype.split(","):
        start = time.perf_counter()
        report = static_report(kernel, kernel_shape(kernel, kv_dtype=kv_dtype), target, jobs=options.jobs)
        rows.append(_summary(kv_dtype, report, time.perf_counter() - start))
    return rows


def _summary(kv_dtype: str, report: StaticReport, seconds: float) -> dict[str, Any]:
    counts = report.counts
    compiled = [one for one in report.judged if one.outcome is not None]
    kept = [one.resources.registers for one in report.judged if one.rank and one.resources]
    first = next((one.candidate.configuration for one in report.judged if one.rank == 1), {})
    return {
        "kernel": report.facts["kernel"],
        "target": report.facts["target"],
        "KV": kv_dtype,
        "compiled": len(compiled),
        "a second": round(len(compiled) / seconds, 2),
        "kept": counts.get("kept", 0),
        "spill": counts.get("spills", 0),
        "do not fit": counts.get("does_not_fit", 0),
        "same code": counts.get("same_code", 0),
        "failed": sum(counts.get(status, 0) for status in ("compile_error", "timeout", "crashed")),
        "registers of the kept": f"{min(kept)} … {max(kept)}" if kept else "",
        "ranked first": "/".join(map(str, first.values())),
        "Triton": report.facts["triton"],
    }


if __name__ == "__main__":
    sys.exit(main())
