"""A suite as it stands in its TOML file: fixed settings, axes, and how to measure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic.config import JsonDict

from kvbench.costmodel.profiles import virtual_device, virtual_device_names
from kvbench.errors import UsageError
from kvbench.spec.engine import EngineSettings, KvDtype, KvPercentile, KvScales
from kvbench.spec.fields import Count, CountOrAuto, Settings
from kvbench.spec.workload import WorkloadSettings

CacheState = Literal["cold", "primed", "steady"]


class ModelSettings(Settings):
    """Whose KV cache."""

    name: str = "auto"
    """A preset, a folder with a Hugging Face `config.json`, or `auto`: the largest preset that suits the device."""
    weights: Literal["random", "checkpoint"] = "random"
    """`random`: seeded weights (geometry, not weights, decides memory and speed); `checkpoint`: the folder's
    safetensors."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of random weights."""


class KernelSettings(Settings):
    """One decode-attention kernel at given shapes, timed alone."""

    name: Literal["decode"] = "decode"
    """Which kernel; `decode` is paged decode attention of one layer."""
    block_size: int = Field(default=16, ge=1, le=256)
    """Tokens per block of KV."""
    kv_dtype: KvDtype = "fp32"
    """Stored form of K and V."""
    kv_scales: KvScales = "token-head"
    """Scales of int8 and fp8; static ones are taken from the very K and V that are stored."""
    kv_percentile: KvPercentile = 99.9
    """Percentile of the magnitudes that `tensor-percentile` scales still represent."""
    kv_layout: Literal["hnd", "nhd"] = "hnd"
    """Order within a block: heads, then tokens (`hnd`), or tokens, then heads (`nhd`)."""
    batch: Count = 8
    """Sequences."""
    context: Count = 1024
    """Tokens of each sequence."""
    query_heads: Count = 8
    """Query heads."""
    kv_heads: Count = 2
    """KV heads; divides `query_heads`."""
    head_dim: int = Field(default=64, ge=8, le=256)
    """Elements per head."""
    attention: Literal["auto", "torch", "numba", "triton"] = "auto"
    """Attention backend."""
    buffers: Literal["hot", "l2-flushed"] = "hot"
    """`hot`: every call reads the same blocks; `l2-flushed`: calls rotate over several copies, and the last-level cache
    is evicted before each."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        if self.query_heads % self.kv_heads:
            yield "query_heads", f"kv_heads {self.kv_heads} must divide query_heads {self.query_heads}"


def _known_device(name: str) -> str:
    try:
        return virtual_device(name).device.name
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}" if error.hint else error.message) from None


VirtualDeviceName = Annotated[
    str,
    AfterValidator(_known_device),
    WithJsonSchema({"type": "string", "$comment": f"one of {', '.join(virtual_device_names())}"}),
]


class MeasureSettings(Settings):
    """How samples are taken."""

    clock: Literal["wall", "virtual"] = "wall"
    """`wall`: the real device, timed. `virtual`: the same scheduler and cache over a cost model, without tensors;
    bit-for-bit repeatable, labelled everywhere, and never in one run with wall times."""
    virtual_device: VirtualDeviceName | None = None
    """`virtual`: the device that the cost model stands for, a GPU by name or `cpu`; H100-SXM when left out."""
    cost_model: str | None = Field(default=None, min_length=1)
    """`virtual`: `roofline` (from the device's datasheet, also when left out) or the path of a file: rates of a device,
    or a model fitted on measured steps, which stands for the device that was measured."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`wall`: `auto` is CUDA where there is one."""
    repetitions: int = Field(default=3, ge=1, le=10_000)
    """Samples per case, each in a fresh process. Under the virtual clock all are equal, so one is taken unless the
    command line asks for more (`-r`)."""
    cache_state: CacheState = "cold"
    """State of the prefix cache when a sample starts. `cold`: empty. `primed`: it has seen the fronts that several
    conversations of the workload share. `steady`: the workload, or its leading share, was served before. May be an
    axis; it decides nothing where `engine.prefix_cache` is `none`."""
    steady_share: float = Field(default=1.0, gt=0, le=1)
    """`cache_state = "steady"`: share of the workload's requests, from the first on, that is served before the measured
    window."""
    redo_share: float = Field(default=0.2, ge=0, le=1)
    """`wall`: share of a repetition's cases, rounded up, that may be measured a second time because the machine was
    disturbed (throttled, shared, swapping …). Beyond it such a sample stays, with the warning `not_redone`."""
    timeout_s: float = Field(default=600.0, gt=0)
    """A case that takes longer, by the real clock, is stopped and recorded as `timeout`."""
    warmup_requests: int = Field(default=4, ge=0, le=10_000)
    """`wall`: requests on foreign token ids before every case, served again while new kernel variants come up."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the order of cases."""
    threads: CountOrAuto = "auto"
    """`wall`: CPU threads for torch and numba; `auto` is the number of physical cores available."""
    tuned: bool = True
    """`wall`: use the kernel configurations that `kvbench tune` found on this machine; `false`: always the defaults."""
    max_steps_recorded: Count = 1_000_000
    """Above this a declared one step in k is stored; totals stay exact."""
    kernel_min_time_s: float = Field(default=0.25, gt=0)
    """`wall`, `kernel` cases: shortest timed window of a sample."""
    kernel_max_time_s: float = Field(default=1.0, gt=0)
    """`wall`, `kernel` cases: longest timed window of a sample."""
    kernel_precision: float = Field(default=0.01, gt=0, lt=1)
    """`wall`, `kernel` cases: between the two, timing stops when the half-width of the median's 95 % interval is this
    share of it, autocorrelation counted."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        if self.kernel_max_time_s < self.kernel_min_time_s:
            text = f"kernel_min_time_s {self.kernel_min_time_s:g} is longer than kernel_max_time_s"
            yield "kernel_min_time_s", f"{text} {self.kernel_max_time_s:g}"
        for name in ("virtual_device", "cost_model"):
            if self.clock == "wall" and getattr(self, name) is not None:
                yield name, f'{name} has no effect while clock is "wall": set clock = "virtual", or leave it out'


class SloSettings(Settings):
    """Service-level objectives; goodput counts requests that meet all of them."""

    ttft_s: float | None = Field(default=None, gt=0)
    """Time to first token."""
    tpot_s: float | None = Field(default=None, gt=0)
    """Mean time per output token after the first."""
    e2e_s: float | None = Field(default=None, gt=0)
    """From scheduled arrival to last token."""
    attainment: float = Field(default=0.95, gt=0, le=1)
    """Share of the requests that must meet them all for the objectives to be met."""


_NAME_WORDS: JsonDict = {"$comment": "1 to 64 letters, digits, '.', '_' or '-', with a letter or digit first"}


class Suite(Settings):
    """What to run."""

    name: str = Field(
        min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", json_schema_extra=_NAME_WORDS
    )
    """Short name; part of the run folder's name."""
    title: str = ""
    """One line for people."""
    claim: str = ""
    """The published claim that the suite re-measures."""
    model: ModelSettings = ModelSettings()
    """Whose KV cache."""
    engine: EngineSettings | None = None
    """Fixed engine settings; its presence (or an `engine.`, `workload.` or `model.` axis) makes `engine` cases."""
    workload: WorkloadSettings = WorkloadSettings()
    """Fixed workload settings of `engine` cases."""
    kernel: KernelSettings | None = None
    """Fixed kernel settings; its presence (or a `kernel.` axis) makes `kernel` cases."""
    measure: MeasureSettings = MeasureSettings()
    """How samples are taken."""
    slo: SloSettings = SloSettings()
    """Service-level objectives."""
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    """Dotted key → values; all combinations are run."""
    zip: list[dict[str, list[Any]]] = Field(default_factory=list)
    """Groups of axes that advance together; each group counts as one axis of the product."""
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    """Combinations to leave out: a case that matches every key of an entry (a value, or a list of values)."""
    only: list[dict[str, Any]] = Field(default_factory=list)
    """If given, a case must match at least one entry."""
