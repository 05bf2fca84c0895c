"""What must be equal for two runs to be compared, and what is only noted: the three classes of fields, as data.

Fields are dotted names of the manifest's `controlled` class and `schema_version`. In a pattern `*` stands for one part
and a trailing `**` for any number of them. A controlled field that no pattern here knows must be equal as well, so that
a variable which somebody forgets to list makes a refusal and never a silent comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal, NamedTuple

FieldRole = Literal["equal", "noted", "treatment"]
FieldPath = tuple[str, ...]
"""The parts of a field's name; a part (a model's name) may hold dots itself."""


class Item(NamedTuple):
    """One entry of the must-be-equal list: what people call it, the word for `--vary`, and its fields."""

    name: str
    vary: str
    fields: tuple[str, ...]


_GPU = "system.gpus.*"
MUST_BE_EQUAL = (
    Item("clock, wall or virtual", "", ("clock",)),
    Item("cost model of the virtual clock", "cost_model", ("cost_model.**",)),
    Item("device", "device", ("device.kind", "device.name", "device.memory_bytes")),
    Item("GPU name", "gpu", (f"{_GPU}.name", f"{_GPU}.compute_capability")),
    Item("SM count", "gpu", (f"{_GPU}.sm_count",)),
    Item("GPU memory", "gpu", (f"{_GPU}.memory_bytes",)),
    Item("MIG profile", "gpu", (f"{_GPU}.mig", f"{_GPU}.mig_profile")),
    Item("ECC", "gpu", (f"{_GPU}.ecc",)),
    Item("GPU UUID", "gpu", (f"{_GPU}.uuid",)),
    Item("number of GPUs", "gpu", ("system.gpus",)),
    Item("topology of GPUs", "gpu", (f"{_GPU}.nvlinks", "system.gpu_topology.**")),
    Item("driver", "driver", ("system.driver.**",)),
    Item("CUDA runtime", "cuda", ("system.versions.cuda_runtime", "system.versions.cudnn")),
    Item("torch", "torch", ("system.versions.torch",)),
    Item("Triton", "triton", ("system.versions.triton",)),
    Item("numba", "numba", ("system.versions.numba", "system.versions.llvmlite")),
    Item("numpy", "numpy", ("system.versions.numpy",)),
    Item("Python", "python", ("system.versions.python", "system.versions.python_implementation", "system.python.**")),
    Item("power limit", "power", (f"{_GPU}.power_limit_w", f"{_GPU}.default_power_limit_w")),
    Item("clock locks", "clocks", (f"{_GPU}.clocks_locked",)),
    Item("application clocks", "clocks", (f"{_GPU}.application_sm_clock_hz", f"{_GPU}.application_memory_clock_hz")),
    Item("highest clocks", "clocks", (f"{_GPU}.max_sm_clock_hz", f"{_GPU}.max_memory_clock_hz")),
    Item("persistence mode", "gpu", (f"{_GPU}.persistence_mode",)),
    Item("compute mode", "gpu", (f"{_GPU}.compute_mode",)),
    Item("model geometry", "model", ("models.*.geometry.**", "models.*.attention_mode")),
    Item("model revision", "model", ("models.*.checkpoint",)),
    Item("model of the case", "model", ("cases.*.model.**",)),
    Item("weight dtype", "weight_dtype", ("cases.*.engine.weight_dtype",)),
    Item("KV dtype", "kv_dtype", ("cases.*.engine.kv_dtype", "cases.*.kernel.kv_dtype")),
    Item("KV memory", "kv_memory", ("cases.*.engine.kv_memory", "auto_kv_memory_bytes")),
    Item("engine setting", "engine", ("cases.*.engine.**",)),
    Item("workload setting", "workload", ("cases.*.workload.**",)),
    Item("kernel setting", "kernel", ("cases.*.kernel.**",)),
    Item("kind of case", "", ("cases.*.kind",)),
    Item("maximum context", "max_context", ("cases.*.max_context",)),
    Item("service-level objective", "slo", ("slo.**",)),
    Item("workload digest", "workload", ("cases.*.workload_digest",)),
    Item("workload seed", "workload", ("workloads.*.seed",)),
    Item("seed of the order", "seed", ("order_seed", "measure.seed")),
    Item("cache state", "cache_state", ("measure.cache_state",)),
    Item("tuned kernel configurations", "tuned", ("tuned.**", "measure.tuned", "cases.*.tuned.**")),
    Item("iterations and warm-up", "measure", ("measure.**",)),
    Item("environment variable", "variables", ("system.variables.**",)),
    Item("CPU model", "cpu", ("system.cpu.model", "system.cpu.architecture", "system.cpu.signature")),
    Item("CPU features", "cpu", ("system.cpu.vector_flags", "system.cpu.smt", "system.cpu.cache_bytes.**")),
    Item("CPU clocks", "cpu", ("system.cpu.governor", "system.cpu.turbo", "system.cpu.max_clock_hz")),
    Item("cores", "cpu", ("system.cpu.physical_cores", "system.cpu.logical_cores", "system.cpu.quota_cores")),
    Item("core affinity", "cpu", ("system.cpu.affinity",)),
    Item("NUMA binding", "cpu", ("system.cpu.numa_nodes", "system.cpu.numa_memory_nodes", "system.cpu.numa_policy")),
    Item("huge pages", "cpu", ("system.cpu.transparent_huge_pages",)),
    Item("threads", "threads", ("threads",)),
    Item("container image", "container", ("system.container.**",)),
    Item("schema version", "", ("schema_version",)),
)
"""The first item whose pattern fits names a field."""

NOTED = (
    "suite.**",
    "repetitions",
    "measure.repetitions",
    "measure.timeout_s",
    "cases.*.label",
    "cases.*.axes.**",
    "cases.*.memory_bytes",
    "cases.*.refusal",
    "cases.*.notes",
    "cases.*.fingerprint",
    "cases.*.workload.trace",
    "models.*.geometry.source",
    "workloads.*.report.**",
    "workloads.*.requests",
    "workloads.*.requests_per_s",
    "workloads.*.input_tokens.**",
    "workloads.*.output_tokens.**",
    "workloads.*.arrival_span_s",
)
"""Controlled, and no reason to refuse: what is here follows from must-be-equal fields (a fingerprint, the suite's text,
what a digest stands for), says where a file lies, or changes no number. The class `environment` is noted whole."""

TREATMENTS = {
    "git_commit": (
        "engine_digest",
        "kernel_digest",
        "cost_model_code_digest",
        "kvbench_version",
        "system.kvbench.**",
        "system.versions.kvbench",
    ),
}
"""Word for `--vary` → fields that it covers beside those of `MUST_BE_EQUAL`. `git_commit` is the code: kvbench's and
its kernels' source digests, version, commit and dirtiness."""

NEVER_VARIED = ("clock", "measure.clock", "schema_version", "cases.*.kind")
"""Predicted times never meet measured ones, whatever is declared."""
VIRTUAL_NOTED = ("system.**",)
"""Where both sides are predicted: the machine that did the arithmetic decides nothing."""
ONLY_STORED = ("system.gpus.*.uuid",)
"""Must be equal for stored baselines; where both sides are measured in one session they are noted."""


def fits(path: FieldPath, patterns: Iterable[str]) -> bool:
    """Whether a field is one of the patterns'."""
    return any(_matches(path, _parts(pattern)) for pattern in patterns)


def item_of(path: FieldPath) -> Item | None:
    """The entry of the must-be-equal list that a field belongs to; None for one that nobody listed."""
    return next((item for item in MUST_BE_EQUAL if fits(path, item.fields)), None)


def vary_words() -> list[str]:
    """Words that `--vary` knows, beside the names of settings and fields."""
    return sorted({*TREATMENTS, *(item.vary for item in MUST_BE_EQUAL if item.vary)})


def is_varied(path: FieldPath, vary: Iterable[str]) -> bool:
    """Whether the declared treatment covers the field: by a word, by the name of a setting (`block_size` or
    `engine.block_size`), or by the field's own name or pattern."""
    return not fits(path, NEVER_VARIED) and any(_is_covered(path, word) for word in vary)


def role_of(path: FieldPath, vary: Iterable[str], also_noted: tuple[str, ...] = ()) -> FieldRole:
    """What a difference in the field means: the declared treatment, a note, or a refusal. `also_noted` are patterns
    beside `NOTED`."""
    if is_varied(path, vary):
        return "treatment"
    return "noted" if fits(path, NOTED) or fits(path, also_noted) else "equal"


def _is_covered(path: FieldPath, word: str) -> bool:
    if word in TREATMENTS:
        return fits(path, TREATMENTS[word])
    if word in vary_words():
        return any(item.vary == word and fits(path, item.fields) for item in MUST_BE_EQUAL)
    named = _parts(word)
    setting = path[2:] if path[0] == "cases" else ()
    starts = (setting[:1] + named, named) if len(setting) > 1 else ()
    return fits(path, (word, f"{word}.**")) or any(setting[: len(start)] == start for start in starts)


@cache
def _parts(pattern: str) -> FieldPath:
    return tuple(pattern.split("."))


def _matches(path: FieldPath, pattern: FieldPath) -> bool:
    if pattern and pattern[-1] == "**":
        pattern = pattern[:-1]
        path = path[: len(pattern)]
    return len(path) == len(pattern) and all(want in ("*", part) for part, want in zip(path, pattern, strict=True))
