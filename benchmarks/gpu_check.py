"""One prepared check of everything that needs a GPU: first right, then fast, then unchanged code against itself.

    python benchmarks/gpu_check.py --out FOLDER [--device cuda|cpu] [--parts correctness,pairs] [--only TEXT]

From a checkout, with `kvbench` and `kernels` on PYTHONPATH (`make gpu-check` sets it); nothing is installed. Under six
minutes on one GPU. Every part runs in processes of its own and has a time limit; what it finds is written line by line,
so a part that hangs, fails or loses its process costs no other. A check whose process dies is failed and the rest goes
on in a fresh one. Without a CUDA device the CPU form runs: Triton's interpreter, numba, small sizes. It checks this
script and the kernels' results; nothing in it is a measurement of a GPU, and no bar is judged.

Written: summary.json, checks.jsonl (every check), log.txt (what processes said on stderr), and pairs.parquet, which
`kvbench gate replay` reads (pairs.csv without pyarrow). Exit status: 0 all right, 1 a wrong result or a missed bar,
3 something did not run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PARTS = {"correctness": 90, "engine": 60, "bandwidth": 60, "sdpa": 25, "flex": 50, "sweep": 40, "pairs": 60}
"""In order, with the most seconds that each may take."""
TOTAL_S = 345
SHARES = 4
"""Processes that share the checks of correctness on a GPU: compiling takes longer than running"""
PACKAGES = ("torch", "triton", "numpy", "numba", "xxhash", "pydantic", "platformdirs", "pandas", "pyarrow", "click")
_LOST = 70
"""Exit status of a part's process whose device can no longer be used"""
SWEEP = """
name = "gpu-check"
title = "A few cases of the engine"
claim = "The engine serves on this device under every one of these settings."
[model]
name = "{model}"
[engine]
kv_memory = "{memory}"
max_context = 256
[workload]
requests = {requests}
input_tokens = 32
output_tokens = 8
seed = 1
[measure]
repetitions = 1
warmup_requests = 1
redo_share = 0.0
[axes]
"engine.kv_dtype" = [{dtypes}]
"""
Check = tuple[str, Callable[[], dict[str, Any]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-check")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda where there is a device")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--only", default="", help="checks with this in their name")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1), help=argparse.SUPPRESS)
    parser.add_argument("--skip", default="[]", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.device = options.device or ("cuda" if has_cuda() else "cpu")
    if options.part:
        return work(options)
    if unknown := set(options.parts.split(",")) - PARTS.keys():
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    return orchestrate(options)


def has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def orchestrate(options: argparse.Namespace) -> int:
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    for name in ("summary.json", "checks.jsonl", "log.txt", "pairs.parquet", "pairs.csv"):
        (out / name).unlink(missing_ok=True)
    start = time.monotonic()
    summary: dict[str, Any] = {"device": options.device, **facts(options.device), "parts": {}, "bars": {}}
    if options.device == "cpu":
        say(
            "NO CUDA DEVICE: this is the CPU form. NOTHING IS MEASURED ON A GPU; it checks the script and results only."
        )
    for part in options.parts.split(","):
        limit = min(PARTS[part], TOTAL_S - (time.monotonic() - start))
        summary["parts"][part] = run_shares(part, options, limit)
        summary["bars"], summary["seconds"] = bars(rows_of(out), options.device), time.monotonic() - start
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        say(line_of(part, summary["parts"][part]))
    status = exit_status(summary, options.device)
    for bar, verdict in summary["bars"].items():
        print(f"{verdict:8} {bar}")
    if options.device == "cpu":
        print("nothing was measured on a GPU: CPU form, Triton's interpreter")
    print(f"exit {status}, {summary['seconds']:.0f} s, {out}")
    return status


def run_shares(part: str, options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """A part, its checks dealt out to several processes at once where only results count."""
    start = time.monotonic()
    count = SHARES if part == "correctness" and options.device == "cuda" else 1
    with ThreadPoolExecutor(count) as pool:
        states = list(pool.map(lambda number: run_part(part, options, limit, (number, count)), range(count)))
    worst = max(states, key=("done", "lost", "timed out").index)
    return _counted(part, options.out, worst, start)


def run_part(part: str, options: argparse.Namespace, limit: float, share: tuple[int, int] = (0, 1)) -> str:
    """A share of a part in as many processes, one after the other, as it takes: done, timed out or lost."""
    start, file, state = time.monotonic(), options.out / "checks.jsonl", "done"
    while True:
        rows = [row for row in rows_of(options.out) if (row["part"], row["share"]) == (part, share[0])]
        begun, over = {row["name"] for row in rows}, {row["name"] for row in rows if "ok" in row}
        left = limit - (time.monotonic() - start)
        is_late = state == "timed out" or left <= 1
        found = (
            {"ok": None, "not_run": "stopped at the limit"} if is_late else {"ok": False, "error": "its process died"}
        )
        for name in begun - over or ({"whatever was left"} if is_late else set()):
            append(file, {"part": part, "share": share[0], "name": name, **found})
        if is_late:
            return "timed out"
        returned = _process(part, options, begun, left, share)
        state = {0: "done", None: "timed out"}.get(returned, "lost")
        now = {row["name"] for row in rows_of(options.out) if (row["part"], row["share"]) == (part, share[0])}
        if state == "done" or (state == "lost" and now <= begun):
            return state


def _process(
    part: str, options: argparse.Namespace, skip: set[str], limit: float, share: tuple[int, int]
) -> int | None:
    """Its exit status; None when time ran out. The whole process group ends with it."""
    command = [sys.executable, __file__, "--part", part, "--device", options.device, "--out", str(options.out)]
    command += ["--only", options.only, "--skip", json.dumps(sorted(skip)), "--share", *map(str, share)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_search_path())}
    if options.device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    with open(options.out / "log.txt", "a", encoding="utf-8") as log:
        log.write(f"== {part}\n")
        log.flush()
        child = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            return child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, 9)
                child.wait()


def _search_path() -> list[str]:
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return [*given, str(ROOT), str(ROOT / "kernels")]


def work(options: argparse.Namespace) -> int:
    """In a part's process: its checks one by one. A package that is missing is said, not raised."""
    file, skip, (number, count) = options.out / "checks.jsonl", set(json.loads(options.skip)), options.share
    row = {"part": options.part, "share": number}
    try:
        for at, (name, check) in enumerate(checks_of(options.part, options.device, options.out)):
            if at % count != number or name in skip or options.only not in name:
                continue
            append(file, {**row, "name": name})
            start = time.perf_counter()
            found = _outcome(check)
            append(file, {**row, "name": name, "seconds": round(time.perf_counter() - start, 3), **found})
            if "CUDA error" in str(found.get("error", "")):
                return _LOST
    except ImportError as error:
        append(file, {**row, "name": options.part, "ok": None, "not_run": f"a package is missing: {error}"})
    return 0


def _outcome(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a check found; whatever it raises is its result."""
    try:
        return check()
    except ImportError as error:
        return {"ok": None, "not_run": f"a package is missing: {error}"}
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {str(error)[:600]}"}


def checks_of(part: str, device: str, out: Path) -> Iterator[Check]:
    if part == "correctness":
        import gpu_correctness

        yield from gpu_correctness.checks(device)
    elif part == "engine":
        import gpu_engine

        yield from gpu_engine.checks(device)
    elif part in ("bandwidth", "sdpa", "flex"):
        import gpu_speed

        yield from gpu_speed.bandwidth(device) if part == "bandwidth" else gpu_speed.rivals(device, part)
    elif part == "sweep":
        yield "small sweep", lambda: small_sweep(device)
    else:
        yield "base against base", lambda: pairs(device, out)


def small_sweep(device: str) -> dict[str, Any]:
    """`kvbench sweep` on a suite of a few cases. Needs pydantic, pandas, pyarrow, click, rich and platformdirs."""
    for name in ("pydantic", "platformdirs", "pandas", "pyarrow", "click", "rich"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(name)
    is_gpu = device == "cuda"
    text = SWEEP.format(
        model="llama-3.2-1b" if is_gpu else "tiny-llama",
        memory="2GiB" if is_gpu else "1MiB",
        requests=64 if is_gpu else 4,
        dtypes='"bf16", "fp8_e4m3"' if is_gpu else '"fp32"',
    )
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "gpu-check.toml"
        suite.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "kvbench", "sweep", str(suite), "--out", folder, "--format", "json"]
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode not in (0, 3):
        return {"ok": False, "error": f"kvbench sweep exited with {done.returncode}: {done.stderr[-500:]}"}
    return {"exit": done.returncode, "table": json.loads(done.stdout), "ok": done.returncode == 0}


def pairs(device: str, out: Path) -> dict[str, Any]:
    import gpu_pairs

    count = gpu_pairs.PAIRS if device == "cuda" else 2
    path = gpu_pairs.save(gpu_pairs.run(device, count), out)
    return {"file": path.name, "pairs": count, "ok": True}


def bars(rows: list[dict[str, Any]], device: str) -> dict[str, str]:
    """PASS, FAIL or not run for everything that must hold."""
    judged = {
        "decode of bf16 ≥ 90 % of the copy rate": [r for r in rows if r.get("kv_dtype") == "bf16" and _is(r, "share")],
        "decode of fp8 ≥ 85 % of the copy rate": [r for r in rows if r.get("kv_dtype") != "bf16" and _is(r, "share")],
        "decode ahead of FlexAttention": [r for r in rows if r.get("rival") == "flex" and _is(r, "rival_over_ours")],
    }
    found = {name: _verdict([row["bar_met"] for row in judged_rows]) for name, judged_rows in judged.items()}
    done = [row for row in rows if "ok" in row]
    parts = {
        "every kernel within its bound of float64": lambda r: r["part"] == "correctness",
        "greedy tokens equal to the CPU's": lambda r: r["name"].startswith("greedy"),
        "graph replay equal to the eager step": lambda r: r["name"].startswith("graph") and device == "cuda",
    }
    return {name: _verdict([r["ok"] for r in done if belongs(r)]) for name, belongs in parts.items()} | found


def _is(row: dict[str, Any], figure: str) -> bool:
    return row.get("bar") is not None and figure in row


def _verdict(values: list[bool | None]) -> str:
    if any(value is False for value in values):
        return "FAIL"
    return "PASS" if values and None not in values else "not run"


def exit_status(summary: dict[str, Any], device: str) -> int:
    parts, verdicts = summary["parts"].values(), summary["bars"].values()
    if any(part["failed"] for part in parts) or "FAIL" in verdicts:
        return 1
    is_missing = any(part["state"] != "done" or part["not_run"] or not part["ok"] for part in parts)
    return 3 if is_missing or (device == "cuda" and "not run" in verdicts) else 0


def _counted(part: str, out: Path, state: str, start: float) -> dict[str, Any]:
    rows = [row for row in rows_of(out) if row["part"] == part and "ok" in row]
    return {
        "state": state,
        "seconds": round(time.monotonic() - start, 1),
        "ok": sum(row["ok"] is True for row in rows),
        "failed": {row["name"]: row.get("error", "wrong") for row in rows if row["ok"] is False},
        "not_run": {row["name"]: row["not_run"] for row in rows if row["ok"] is None},
    }


def line_of(part: str, found: dict[str, Any]) -> str:
    told = f"{part:12} {found['state']}, {found['ok']} ok, {len(found['failed'])} failed, {found['seconds']:.0f} s"
    return "\n".join([told, *(f"  {name}: {why}" for name, why in (found["failed"] | found["not_run"]).items())])


def rows_of(out: Path) -> list[dict[str, Any]]:
    file = out / "checks.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def append(file: Path, row: dict[str, Any]) -> None:
    with open(file, "a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")


def facts(device: str) -> dict[str, Any]:
    """Versions, with None for what is not installed, and the device's name."""
    found: dict[str, Any] = {"python": sys.version.split()[0], "packages": {name: _version(name) for name in PACKAGES}}
    if device == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = {
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
        }
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
