"""The JSON Schema (draft 2020-12) of `manifest.json`: every field with what it means, for people and for checkers.

Objects that hold settings of a suite (models, engine, workload, kernel) are open: their keys are the suite's own, in
the suite's schema. All others are closed here, so that a field which nobody documented is noticed.
"""

from __future__ import annotations

from typing import Any

from kvbench.store.version import SCHEMA_VERSION

Schema = dict[str, Any]
_DIGEST = "^[0-9a-f]{8,64}$"


def manifest_schema() -> Schema:
    """Schema of a manifest of this version."""
    root = _object(
        {
            "schema_version": {"const": SCHEMA_VERSION, "description": "Version of all files of the run."},
            "run_id": _text("The run: also the name of its folder."),
            "controlled": _controlled(),
            "environment": _environment(),
            "volatile": _volatile(),
            "files": _map(_digest("sha256 of the file."), "Every file of the run; empty for a run that is not sealed."),
        }
    )
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvbench manifest"}
    return head | {"description": "Everything that a run controlled, what surrounded it, and its files."} | root


def _controlled() -> Schema:
    return _object(
        {
            "suite": _suite(),
            "clock": {"enum": ["wall", "virtual"], "description": "Times measured, or predicted by a cost model."},
            "cost_model": _open(
                "Label, source, digest and rates of the cost model; null by the wall clock.", null=True
            ),
            "device": _object(
                {
                    "kind": {"enum": ["cpu", "cuda"], "description": "Where cases ran."},
                    "name": _text("By its maker's name."),
                    "memory_bytes": _count("Usable memory."),
                },
                "The device that was measured, or that the cost model stands for.",
            ),
            "threads": _count("CPU threads of torch and numba."),
            "repetitions": _count("Samples per case."),
            "order_seed": _count("Seed of the order of cases."),
            "measure": _open("How samples were taken: the suite's `measure` section with every default filled in."),
            "slo": _open("Service-level objectives."),
            "auto_kv_memory_bytes": _count('What `kv_memory = "auto"` was resolved to.', null=True),
            "tuned": _tuned(),
            "engine_digest": _digest("sha256 of the sources that run a case, the kernels apart."),
            "kernel_digest": _digest("sha256 of the sources of the kernels."),
            "cost_model_code_digest": _digest("Virtual clock: sha256 of the cost model's sources."),
            "models": _map(_model(), "Every model by its resolved name."),
            "workloads": _map(_workload(), "Every distinct workload by its digest."),
            "cases": {"type": "array", "items": _case(), "description": "The resolved cases, in the suite's order."},
            "kvbench_version": _text("Version of kvbench."),
            "earlier_systems": {
                "type": "array",
                "items": {"type": "object"},
                "description": "The machine as earlier samples of a resumed run saw it, where that differs.",
            },
            "system": _system(),
        },
        "Decides the result: a difference between two runs is attributed to what differs here.",
        optional=("cost_model_code_digest", "earlier_systems"),
    )


def _tuned() -> Schema:
    return _object(
        {
            "is_on": _flag("Whether winners of `kvbench tune` may be used."),
            "digest": _text("Which configuration was used for what, hashed; of nothing, where all defaults ran."),
            "configurations": {
                "type": "array",
                "items": _open("Kernel, the shape that it was tuned for, and the configuration."),
                "description": "What was used.",
            },
        },
        "Tuned kernel configurations.",
    )


def _suite() -> Schema:
    return _object(
        {
            "name": _text("Its name."),
            "title": _text("One line for people."),
            "claim": _text("The published claim that it re-measures."),
            "digest": _digest("sha256 of `effective`."),
            "text": _text("The file as it was read."),
            "effective": _open("Its content after all overrides; `reproduce` runs this."),
        },
        "What was asked.",
    )


def _model() -> Schema:
    fields = {
        "attention_mode": _text("mha, gqa, mqa or mla, with `+window` where some layer has one."),
        "geometry": _open("Shape: layers, heads, widths, layer groups, parameters."),
        "checkpoint": _digest("Digest of the checkpoint's files: its revision."),
    }
    return _object(fields, optional=("checkpoint",))


def _workload() -> Schema:
    fields = {
        "seed": _count("Seed of whatever was drawn."),
        "report": _open("Where the requests came from and what changed on the way in; `sha256` of a trace."),
        "requests": _count("How many."),
        "input_tokens": _open("Realised prompt lengths: min, p50, mean, p90, max."),
        "output_tokens": _open("Realised output lengths."),
        "arrival_span_s": _number("First to last scheduled arrival."),
        "requests_per_s": _number("Request rate; null where all arrive at once.", null=True),
    }
    return _object(fields, optional=tuple(name for name in fields if name not in ("seed", "report")))


def _case() -> Schema:
    return _object(
        {
            "case_id": _text("Digest of every setting that decides its result."),
            "fingerprint": _text("Digest of settings, model, code and device."),
            "kind": {"enum": ["engine", "kernel"], "description": "A workload through the engine, or one kernel."},
            "label": _text("In words."),
            "axes": _open("Axis → value."),
            "model": _open("The model section, resolved.", null=True),
            "engine": _open("The engine section, every `auto` resolved.", null=True),
            "workload": _open("The workload section.", null=True),
            "kernel": _open("The kernel section.", null=True),
            "tuned": _open("Layer group → tuned kernel configuration; empty where the default runs."),
            "max_context": _count("Longest sequence, tokens.", null=True),
            "workload_digest": _text("Its workload.", null=True),
            "memory_bytes": _count("Device memory that it was planned to take."),
            "refusal": _text("Why it could not run here.", null=True),
            "notes": {
                "type": "array",
                "items": {"type": "string"},
                "description": "What was said when it was planned.",
            },
        }
    )


def _system() -> Schema:
    strings = {"type": "string"}
    return _object(
        {
            "cpu": _cpu(),
            "gpus": {"type": "array", "items": _gpu(), "description": "Every GPU of the machine."},
            "gpu_topology": _map(_text("same board … system", null=True), "`0-1` → the nearest thing two GPUs share."),
            "driver": _texts(version="GPU driver.", cuda="CUDA version of the driver."),
            "python": _object(
                {
                    "optimize": _count("`python -O` level."),
                    "gil": {"type": "boolean", "description": "Whether the global lock is on."},
                },
                "How Python runs.",
            ),
            "versions": _map(_text("Version; null: not installed.", null=True), "Python and the packages that decide."),
            "variables": _map(strings, "Environment variables that decide speed or memory."),
            "kvbench": _object(
                {
                    "git_commit": _text("Commit of the checkout; null for an installed wheel.", null=True),
                    "git_dirty": _flag("Whether tracked files differed from it."),
                },
                "The code.",
            ),
            "container": _texts(kind="What wraps the process.", image="Image: $KVBENCH_IMAGE, or what podman says."),
        },
        "The machine.",
    )


def _cpu() -> Schema:
    numbers = {"type": ["array", "null"], "items": {"type": "number"}, "description": "Highest clocks, hertz."}
    text = _texts(
        model="By its maker's name.", architecture="Instruction set.", signature="family/model/stepping.",
        vector_flags="Vector instructions.", affinity="CPUs that the process may use.", governor="Frequency policy.",
        turbo="on or off.", smt="on or off.", numa_memory_nodes="NUMA nodes that memory may come from.",
        numa_policy="Memory policy of the process.", transparent_huge_pages="always, madvise or never.",
    )["properties"]  # fmt: skip
    return _object(
        {
            **text,
            "cache_bytes": _map(_count("Size.", null=True), "Data caches of one core: l1d, l2, l3."),
            "physical_cores": _count("Cores, hyperthreads counted once."),
            "logical_cores": _count("CPUs that the process may use."),
            "quota_cores": _number("Limit by control group; null: none.", null=True),
            "max_clock_hz": numbers,
            "numa_nodes": _count("NUMA nodes.", null=True),
        }
    )


def _gpu() -> Schema:
    text = _texts(
        name="By its maker's name.", uuid="The very card.", compute_capability="As in 9.0.", mig="on or off.",
        mig_profile="Slices of a partitioned card.", ecc="on or off.", persistence_mode="on or off.",
        compute_mode="default or exclusive.",
    )["properties"]  # fmt: skip
    hertz = ("application_sm_clock_hz", "application_memory_clock_hz", "max_sm_clock_hz", "max_memory_clock_hz")
    return _object(
        {
            **text,
            **{name: _number("Clock, hertz.", null=True) for name in hertz},
            "sm_count": _count("Streaming multiprocessors.", null=True),
            "memory_bytes": _count("Memory.", null=True),
            "power_limit_w": _number("Enforced limit.", null=True),
            "default_power_limit_w": _number("The maker's limit.", null=True),
            "clocks_locked": _flag("Whether somebody set the clocks."),
            "nvlinks": _count("Links that are up.", null=True),
        }
    )


def _environment() -> Schema:
    host = _texts(
        host_name="Name.", system="Linux …", distribution="By name and version.", microcode="Of the CPU.",
        kernel_release="Of the kernel.", libc="C library.",
    )["properties"]  # fmt: skip
    host |= {
        "virtual_machine": {"type": "boolean", "description": "Whether a hypervisor shows."},
        "memory_bytes": _count("Memory of the machine.", null=True),
        "swap_bytes": _count("Swap space.", null=True),
        "swappiness": _count("How readily the kernel swaps.", null=True),
    }
    gpu = _texts(vbios="Firmware.")["properties"]
    gpu |= {name: _count("PCIe link.", null=True) for name in ("pcie_max_generation", "pcie_max_width")}
    places = _map({"type": "string"}, "Environment variables that only say where files lie.")
    gpus = {"type": "array", "items": _object(gpu), "description": "What is noted of every GPU."}
    return _object({"host": _object(host), "gpus": gpus, "variables": places}, "Noted; no reason to refuse.")


def _volatile() -> Schema:
    return _object(
        {
            "created_at": _text("When the run began, UTC.", null=True),
            "sealed_at": _text("When it was sealed, UTC."),
            "order": {"type": "array", "description": "[case, sample, finished_at] in the order of execution."},
            "planned_order": {"type": ["array", "null"], "description": "Cases of each repetition as planned."},
            "statuses": _map(_count("Samples."), "How samples ended."),
            "warnings": _map(_count("Samples."), "Warnings by name; the rows have their numbers."),
            "readings": _open("Load, free memory, clocks and temperatures when the run began."),
            "suite_path": _text("Where the suite's file lay.", null=True),
            "argv": {"type": "array", "items": {"type": "string"}, "description": "The command line."},
        },
        "Differs between any two runs.",
        optional=("suite_path", "argv"),
    )


def _object(fields: dict[str, Schema], doc: str = "", optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in fields if name not in optional]
    found: Schema = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
    return found | ({"description": doc} if doc else {})


def _open(doc: str, *, null: bool = False) -> Schema:
    return {"type": ["object", "null"] if null else "object", "description": doc}


def _map(of: Schema, doc: str) -> Schema:
    return {"type": "object", "additionalProperties": of, "description": doc}


def _texts(**fields: str) -> Schema:
    return _object({name: _text(doc, null=True) for name, doc in fields.items()})


def _text(doc: str, *, null: bool = False) -> Schema:
    return {"type": ["string", "null"] if null else "string", "description": doc}


def _digest(doc: str) -> Schema:
    return {"type": "string", "pattern": _DIGEST, "description": doc}


def _flag(doc: str) -> Schema:
    return {"type": ["boolean", "null"], "description": doc}


def _count(doc: str, *, null: bool = False) -> Schema:
    return {"type": ["integer", "null"] if null else "integer", "description": doc}


def _number(doc: str, *, null: bool = False) -> Schema:
    return {"type": ["number", "null"] if null else "number", "description": doc}
