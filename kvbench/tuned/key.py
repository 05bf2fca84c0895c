"""What a tuned configuration is for: kernel and source, device, compiler, shape; batch, context and query tokens by
power of two."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from kvbench.tuned.source import compiler_version, source_digest

if TYPE_CHECKING:
    from kvbench_kernels.specs import KernelShape

BUCKETED = ("batch", "context")


@dataclass(frozen=True, slots=True)
class TunedKey:
    """One place in the table. `batch`, `context` and `query_tokens` are powers of two, see `bucket`."""

    kernel: str
    source: str
    device: str
    compiler: str
    query_dtype: str
    kv_dtype: str
    has_block_scales: bool
    block_size: int
    query_heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    layout: str
    batch: int
    context: int
    has_window: bool = False
    has_sinks: bool = False
    has_cap: bool = False
    query_tokens: int = 1

    @property
    def digest(self) -> str:
        """16 hexadecimal digits: the name of the entry's file."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def rest(self) -> TunedKey:
        """The key without its buckets."""
        return replace(self, batch=0, context=0)

    @property
    def unversioned(self) -> TunedKey:
        """The key without what makes an entry stale, device and buckets included."""
        return replace(self.rest, source="", compiler="", device="")

    @property
    def label(self) -> str:
        """The shape for people."""
        heads = f"{self.query_heads}/{self.kv_heads} heads × {self.k_dim}"
        heads += f"+{self.v_dim}" if self.v_dim != self.k_dim else ""
        rules = "".join(f", {name}" for name in ("window", "sinks", "cap") if getattr(self, f"has_{name}"))
        stored = f"{self.kv_dtype}, block {self.block_size}, {heads}, {self.layout}"
        asked = f", {self.query_tokens} query tokens" if self.query_tokens > 1 else ""
        return f"{stored}, batch {self.batch} × {self.context}{asked}{rules}"


def bucket(count: int) -> int:
    """The next power of two: what is tuned for 1,000 tokens counts for 513 to 1,024."""
    return 1 << max(0, count - 1).bit_length()


def key_of(kernel: str, page: str, compiler: str, device: str, shape: KernelShape) -> TunedKey:
    """The place of a shape on this machine; `device` as `device_label` has it."""
    known = {field.name for field in fields(TunedKey)}
    facts: dict[str, Any] = {name: value for name, value in asdict(shape).items() if name in known}
    facts |= {name: bucket(facts[name]) for name in (*BUCKETED, "query_tokens")}
    return TunedKey(
        kernel=kernel, source=source_digest(page), device=device, compiler=compiler_version(compiler), **facts
    )


def layer_label(kind: str, kv_heads: int, k_dim: int, v_dim: int) -> str:
    """How a case's configurations name the layers that they are for: `full 8x128+128`; the kind is of the layer group,
    `v_dim` of a latent layer the part of its row that is V."""
    return f"{kind} {kv_heads}x{k_dim}+{v_dim}"


def prefill_label(label: str) -> str:
    """The name of the same layers' prefill, where it has a kernel of its own."""
    return f"prefill {label}"


def device_label(kind: str, name: str, threads: int) -> str:
    """The device as a key has it: of a CPU, the threads decide as well."""
    return f"{name}, {threads} thread{'s' if threads != 1 else ''}" if kind == "cpu" else name
