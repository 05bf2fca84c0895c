"""The process that compiles: `python -m kvbench.tune.compile_worker MODULE …` imports Triton and the modules once, then
compiles one job a line from stdin and answers one JSON line each on what was stdout.

Whatever the compiler prints (hundreds of lines of IR when it aborts) goes to stderr, which the pool keeps in a file.
Needs no device and no driver: the binaries come in Triton's wheel.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvbench.tune.resources import Instructions, Resources, code_digest, count_instructions, parse_ptxas


def main(modules: list[str]) -> int:
    answers = os.dup(1)
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    import triton

    for module in modules:
        with contextlib.suppress(Exception):  # the job that needs it meets the same error, and reports it
            importlib.import_module(module)
    _send(answers, {"ready": triton.__version__})
    seen: dict[str, Instructions] = {}
    while True:
        job = json.loads(jobs.get())
        _send(answers, {"job": job["job"], **_outcome(job, seen)})


def _read_jobs(jobs: queue.SimpleQueue[str]) -> None:
    """When stdin closes, whoever asked is gone: the process ends, even in the middle of a compile that hangs."""
    for line in sys.stdin:
        jobs.put(line)
    os._exit(1)


def _send(descriptor: int, answer: dict[str, Any]) -> None:
    line = json.dumps(answer).encode() + b"\n"
    while line:
        line = line[os.write(descriptor, line) :]


def _outcome(job: dict[str, Any], seen: dict[str, Instructions]) -> dict[str, Any]:
    try:
        return {"status": "compiled", **_compile(job, seen)}
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return {"status": "compile_error", "reason": _reason(error)}
    finally:
        sys.stderr.flush()


def _reason(error: BaseException) -> str:
    """One line. Triton wraps what went wrong in one error for each caller in the kernel: the innermost says it."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = getattr(error, "error_message", None) or str(error)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("ptxas") and ("error" in line or "fatal" in line)]
    return f"{type(error).__name__}: {(fatal or lines or ['no message'])[0]}"


def _compile(job: dict[str, Any], seen: dict[str, Instructions]) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(job["module"]), job["function"])
    names = list(function.arg_names)
    if list(job["signature"]) != names:
        raise ValueError(f"the signature names {', '.join(job['signature'])}; the kernel takes {', '.join(names)}")
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in job["divisible_by_16"]}
    source = ASTSource(function, job["signature"], job["constexprs"], attributes)
    triton.knobs.nvidia.dump_ptxas_log = True
    log = io.StringIO()
    with _own_cache(), contextlib.redirect_stdout(log):
        kernel = triton.compile(source, target=GPUTarget("cuda", job["arch"], 32), options=job["options"])
    return {
        "resources": asdict(_resources(kernel, log.getvalue(), seen)),
        "ptxas": _ptxas_version(job["arch"]),
        "fp_fusion": getattr(kernel.metadata, "enable_fp_fusion", None),
    }


def _ptxas_version(arch: int) -> str:
    """Of the assembler that Triton picks for the architecture (it has two)."""
    from triton.backends.nvidia.compiler import get_ptxas

    return str(get_ptxas(arch).version)


@contextlib.contextmanager
def _own_cache() -> Any:
    """A cache folder for one compile: a kernel that came from a cache would have no report of ptxas."""
    folder = tempfile.mkdtemp(prefix="kvbench-compile-")
    os.environ["TRITON_CACHE_DIR"] = folder
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _resources(kernel: Any, log: str, seen: dict[str, Instructions]) -> Resources:
    registers, stack, stores, loads = parse_ptxas(log)
    cubin, metadata = kernel.asm["cubin"], kernel.metadata
    digest = code_digest(cubin, metadata.num_warps, metadata.shared)
    if digest not in seen:  # the disassembler takes longer than the compiler
        seen[digest] = count_instructions(_disassembled(cubin))
    found = seen[digest]
    return Resources(
        registers=registers,
        stack_bytes=stack,
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        shared_bytes=metadata.shared,
        tensor_memory_columns=getattr(metadata, "tmem_size", None) or 0,
        warps=metadata.num_warps,
        code_digest=digest,
        **asdict(found),
    )


def _disassembled(cubin: bytes) -> str:
    import triton

    with tempfile.TemporaryDirectory(prefix="kvbench-sass-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", "-ndf", str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
