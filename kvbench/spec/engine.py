"""Settings of the reference engine: every one can be an axis of a suite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from kvbench.spec.fields import MAX_COUNT, Bytes, BytesOrAuto, Count, CountOrAuto, DtypeName, Settings, dtype_schema
from kvbench.spec.presets import filled_from_preset

KvDtype = Annotated[
    Literal["fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"],
    DtypeName,
    dtype_schema("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"),
]
KvScales = Literal["token-head", "tensor-absmax", "tensor-percentile"]
KvPercentile = Annotated[float, Field(ge=50, le=100)]
WeightDtype = Annotated[
    Literal["auto", "fp32", "fp16", "bf16"], DtypeName, dtype_schema("auto", "fp32", "fp16", "bf16")
]


class EngineSettings(Settings):
    """How the engine keeps KV and forms batches."""

    preset: Literal[
        "none", "vllm", "trtllm-max-utilization", "trtllm-no-evict", "sglang", "hf-continuous", "orca", "contiguous"
    ] = "none"
    """A serving system's policies, as near as this engine comes: sets what is left out here, explicit keys win.
    `kvbench suites presets` lists what each sets and cannot reproduce."""

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, data: Any, info: ValidationInfo) -> Any:
        """Not while axes are still to come: what a preset fills in must not look explicit to them."""
        is_partial = (info.context or {}).get("partial")
        return filled_from_preset(data) if isinstance(data, dict) and not is_partial else data

    block_size: int = Field(default=16, ge=1, le=256)
    """Tokens per block of KV."""

    kv_dtype: KvDtype = "fp32"
    """Stored form of K and V. int8 and fp8 (OCP e4m3, e5m2) take one byte an element and need scales."""

    kv_scales: KvScales = "token-head"
    """Scales of int8 and fp8. `token-head`: a float32 per token and head inside the block. `tensor-absmax`,
    `tensor-percentile`: one per layer for K and one for V, from the largest magnitude or a percentile of a calibration
    pass over foreign tokens."""

    kv_percentile: KvPercentile = 99.9
    """Percentile of the magnitudes that `tensor-percentile` scales still represent; what is beyond saturates."""

    kv_layout: Literal["hnd", "nhd"] = "hnd"
    """Order within a block: `hnd` keeps the tokens of a head together, `nhd` the heads of a token."""

    kv_memory: BytesOrAuto = "auto"
    """Device memory for KV, bytes (`"64MiB"`) or `auto`: resolved once per run from free memory, the same for every
    case."""

    max_sequences: int = Field(default=64, ge=1, le=65_536)
    """Most sequences served at once."""

    max_batch_tokens: Count = 2048
    """Token budget of one step; `continuous` always takes at least one whole prompt."""

    max_context: CountOrAuto = "auto"
    """Longest sequence, tokens; `auto` is the model's own limit."""

    batch_policy: Literal["static", "continuous", "chunked"] = "chunked"
    """`static`: a batch runs to its longest member. `continuous`: join and leave every step, prompts whole.
    `chunked`: decodes first, prompts in chunks up to the token budget."""

    admission: Literal["max-utilization", "guaranteed-no-evict", "watermark", "adaptive"] = "max-utilization"
    """`max-utilization` packs and may preempt; `guaranteed-no-evict` promises every sequence its declared
    maximum; `watermark` packs but leaves a share of the pool; `adaptive` leaves room for the share of the declared
    outputs that it expects, and learns the share."""

    watermark: float = Field(default=0.01, ge=0, le=0.9)
    """`watermark`: share of the pool that an admission must leave (vLLM: 0.01)."""

    adaptive_initial: float = Field(default=0.7, ge=0, le=1)
    """`adaptive`: share of the declared outputs expected at first (SGLang: 0.7)."""

    adaptive_floor: float = Field(default=0.098, ge=0, le=1)
    """`adaptive`: least share, reached by decay (SGLang: 0.14 × 0.7)."""

    adaptive_decay_steps: Count = 600
    """`adaptive`: decoding steps from the initial share to the least (SGLang: 600)."""

    adaptive_ahead: int = Field(default=20, ge=0, le=MAX_COUNT)
    """`adaptive`: tokens added to what each sequence has produced when the share is raised after a preemption (SGLang:
    20)."""

    allocator: Literal["paged", "contiguous", "buddy"] = "paged"
    """The baselines that paging replaced reserve adjacent blocks for every sequence when it is admitted: `contiguous`
    in the first piece that is large enough, `buddy` in a piece of 2^k blocks."""

    reservation: Literal["max", "pow2", "oracle"] = "max"
    """`contiguous`, `buddy`: how much. `max`: `max_context`; `pow2`: the prompt and the next power of two of the
    output; `oracle`: exactly what will be stored."""

    order: Literal["fcfs", "priority", "shortest-first", "longest-prefix-match"] = "fcfs"
    """Who is next in line: by arrival, by priority, by fewest prompt and declared output tokens, or by most prompt
    tokens in the prefix cache (of the first 32 that arrived)."""

    starvation_limit: Count = 64
    """A request that so many later ones were admitted before goes first, whatever the order."""

    deduplicate_prefixes: bool = False
    """A request whose next prompt blocks are being computed by another one waits for them instead of computing them
    again."""

    preemption: Literal["recompute", "swap", "swap-else-recompute"] = "recompute"
    """What happens to a sequence that loses its blocks. `recompute`: its KV is computed again. `swap`: its blocks go to
    the swap area in host memory and come back. `swap-else-recompute`: swap where copying out and back takes less time
    than computing again, as measured so far. Without room in the swap area both recompute."""

    swap_memory: Bytes = 0
    """Size of the swap area in host memory, bytes; needed when `preemption` swaps."""

    victim: Literal["last-arrived", "first-arrived", "fewest-tokens", "lrc", "lrc-age", "priority"] = "last-arrived"
    """Who loses its blocks when there are none left: the last or first that arrived, the one with the fewest computed
    tokens, the one whose blocks have the fewest other owners and hits (`lrc-age` weighs that with `lrc_alpha` against
    age with `lrc_beta`), or the one with the lowest priority; of equals the last that arrived."""

    prefix_cache: Literal["none", "hash", "radix"] = "none"
    """Reuse of KV between requests with the same prefix: `hash` chains a digest over full blocks, `radix` is a tree of
    tokens; both find the same."""

    hash_function: Literal["xxh3-128", "sha256"] = "xxh3-128"
    """Digest of the prefix cache; hits compare tokens as well, so xxh3-128 is safe against collisions. `radix` needs
    digests for lower tiers only. The blocks of sliding-window layers are named by sha256 under either."""

    partial_block_reuse: bool = False
    """Reuse also the front of a block in which a prompt parts from all others: the block is copied, and what is cached
    is no multiple of `block_size` any more."""

    eviction: Literal["lru", "fifo", "lfu", "lrc", "lrc-age", "priority"] = "lru"
    """Which cached, unreferenced block loses its contents first, children before parents under every policy.
    `lru`: least recently used. `fifo`: first published. `lfu`: fewest hits. `lrc`: fewest references (cached
    descendants and lifetime hits), then deepest. `lrc-age`: the largest `lrc_alpha` · (most references − references) +
    `lrc_beta` · age. `priority`: lowest request priority, then least recently used."""

    lrc_alpha: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of references in `lrc-age`."""

    lrc_beta: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of age in `lrc-age`; age counts sequences released since the block was used."""

    offload: Literal["none", "host", "host+disk"] = "none"
    """Tiers below the device that extend the prefix cache: blocks go to host memory and come back on a hit; with
    `host+disk`, what the host tier gives up goes on to files."""

    host_memory: Bytes = 0
    """Size of the host tier, bytes; needed when `offload` is on."""

    disk_memory: Bytes = 0
    """Size of the disk tier, bytes, headers of its files included; needed when `offload = "host+disk"`."""

    disk_path: str = ""
    """Folder in which the disk tier makes a private one, removed at the end; empty: the user's cache."""

    offload_when: Literal["evicted", "completed"] = "evicted"
    """When a block is copied to the host tier: as it is evicted from the device, or already when it is complete, while
    it stays on the device."""

    store_threshold: Count = 1
    """With `offload_when = "completed"`: only contents that were seen so many times, computed or hit, are copied."""

    host_eviction: Literal["lru", "arc"] = "lru"
    """Which contents of the host tier give way: least recently used, or `arc`, which also remembers what has left."""

    reblock_to: Annotated[int, Field(ge=1, le=256)] | Literal["none"] = "none"
    """Another block size that the engine goes on with in the middle of a run, contents kept, in the same memory: what
    it costs is a column. A multiple of `block_size`, or one that divides it."""

    reblock_after: Count = 1
    """Finished requests after which it is re-blocked; while there is no room, again after every further one."""

    promotion: Literal["blocking", "overlapped"] = "blocking"
    """`blocking`: a step waits for the blocks that its new sequences need from a lower tier. `overlapped`: such a
    sequence waits, without a seat, while the others go on."""

    attention: Literal["auto", "torch", "numba", "triton"] = "auto"
    """Attention backend; `auto` is numba on a CPU, triton on CUDA (torch where Triton is not installed). With triton
    the KV store writes and copies by Triton's kernels too."""

    cuda_graphs: bool = False
    """Decode steps are captured as CUDA graphs at padded batch sizes and replayed. Needs a CUDA device and the triton
    backend; not for a mixture of experts."""

    weight_dtype: WeightDtype = "auto"
    """Dtype of weights and activations; `auto` is fp32 on a CPU, bf16 on CUDA."""

    speculation: Literal["none", "prompt-lookup", "first-layers", "draft-model"] = "none"
    """Who drafts the next tokens, for the model to verify several at once; the tokens stay the same. `prompt-lookup`:
    what followed the last tokens when they occurred before. `first-layers`: the model's own first layers.
    `draft-model`: a smaller model, whose KV takes its share of `kv_memory`."""

    draft_tokens: int = Field(default=4, ge=1, le=64)
    """Drafts per sequence and step, at most."""

    draft_layers: Count | None = None
    """`first-layers`: how many; needed."""

    draft_model: str | None = None
    """`draft-model`: a preset (seeded random weights) or a checkpoint's folder, with the model's vocabulary."""

    acceptance_rate: float | None = Field(default=None, ge=0, le=1)
    """Virtual clock: share of drafts that are right, one after the other; needed there, since nothing is computed."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        if self.offload != "none" and self.prefix_cache == "none":
            yield (
                "offload",
                f'offload = "{self.offload}" extends the prefix cache, so it needs prefix_cache = "hash" or "radix"',
            )
        if self.offload != "none" and self.host_memory == 0:
            yield "offload", f'offload = "{self.offload}" needs host_memory, as in host_memory = "256MiB"'
        if self.offload == "host+disk" and self.disk_memory == 0:
            yield "offload", 'offload = "host+disk" needs disk_memory, as in disk_memory = "1GiB"'
        if self.preemption != "recompute" and self.swap_memory == 0:
            yield "preemption", f'preemption = "{self.preemption}" needs swap_memory, as in swap_memory = "256MiB"'
        if self.preemption != "recompute" and self.allocator != "paged":
            yield "preemption", f'preemption = "{self.preemption}" moves blocks: it needs allocator = "paged"'
        if self.promotion == "overlapped" and self.batch_policy == "static":
            yield "promotion", 'a static batch starts when all its members are there: use promotion = "blocking"'
        if self.order == "longest-prefix-match" and self.prefix_cache == "none":
            yield "order", 'order = "longest-prefix-match" needs a prefix cache: set prefix_cache = "hash" or "radix"'
        if self.deduplicate_prefixes and self.prefix_cache == "none":
            yield (
                "deduplicate_prefixes",
                'deduplicate_prefixes needs a prefix cache: set prefix_cache = "hash" or "radix"',
            )
        if self.deduplicate_prefixes and self.batch_policy == "static":
            yield "deduplicate_prefixes", "a static batch would end before anybody who waits joins: use another policy"
        if self.adaptive_floor > self.adaptive_initial:
            yield "adaptive_floor", "adaptive_floor is the least share: at most adaptive_initial"
        if self.allocator != "paged" and self.prefix_cache != "none":
            yield "allocator", f'allocator = "{self.allocator}" cannot share blocks: set prefix_cache = "none"'
        if self.reblock_to != "none":
            yield from self._reblock_conflicts(self.reblock_to)
        if self.cuda_graphs and self.attention not in ("auto", "triton"):
            yield "cuda_graphs", f'cuda_graphs captures the triton backend, and attention = "{self.attention}"'
        yield from self._speculation_conflicts()

    def _reblock_conflicts(self, size: int) -> Iterator[tuple[str, str]]:
        small, large = sorted((size, self.block_size))
        if size == self.block_size or large % small:
            yield "reblock_to", f"reblock_to {size} must be a multiple of block_size {self.block_size}, or divide it"
        if self.allocator != "paged":
            yield "reblock_to", 'reblock_to needs allocator = "paged"'
        if self.preemption != "recompute":
            yield "reblock_to", 'reblock_to needs preemption = "recompute": the swap area keeps blocks of the old size'
        if self.offload != "none":
            yield "reblock_to", 'reblock_to needs offload = "none": a lower tier keeps blocks of the old size'

    def _speculation_conflicts(self) -> Iterator[tuple[str, str]]:
        if self.speculation == "first-layers" and self.draft_layers is None:
            yield "draft_layers", 'speculation = "first-layers" needs draft_layers, as in draft_layers = 1'
        if self.speculation != "draft-model":
            return
        if self.draft_model is None:
            yield "draft_model", 'speculation = "draft-model" needs draft_model, a preset or a checkpoint\'s folder'
        if self.offload != "none":
            yield "speculation", 'the KV of a draft model stays on the device: set offload = "none"'
        if self.preemption != "recompute":
            yield "speculation", 'the KV of a draft model is not swapped: set preemption = "recompute"'
        if self.reblock_to != "none":
            yield "speculation", 'the KV of a draft model is not re-blocked: set reblock_to = "none"'
