"""The shape of a kernel's work from what people type. Torch-free."""

from __future__ import annotations

import re
from typing import Any, Literal, cast

from kvbench.errors import UsageError
from kvbench.geometry.dtypes import scales_per_token, storage_dtype
from kvbench_kernels.specs import KernelShape

QUERY_DTYPES = ("fp16", "bf16", "fp32")
_LAYOUTS = ("hnd", "nhd")
_LARGEST = {"block size": 4096, "head dim": 1024, "batch": 65_536, "context": 1 << 24, "query tokens": 1 << 20}
_GPU = {"query_dtype": "bf16", "kv_dtype": "bf16", "batch": 64, "context": 4096}
_CPU = {"query_dtype": "fp32", "kv_dtype": "fp32", "batch": 8, "context": 1024}
DEFAULTS: dict[str, dict[str, Any]] = {
    "decode": {"heads": "32/8", "head_dim": "128", "query_tokens": 1, **_GPU},
    "prefill": {"heads": "32/8", "head_dim": "128", "query_tokens": 512, **_GPU},
    "mla": {"heads": "128/1", "head_dim": "576/512", "query_tokens": 1, **_GPU},
    "decode_numba": {"heads": "8/2", "head_dim": "64", "query_tokens": 1, **_CPU},
}
"""What a kernel's shape is where nobody says: a Llama 3 8B layer; for `mla` a DeepSeek V3 one; on a CPU what kernel
cases of suites have."""


def kernel_shape(
    kernel: str,
    *,
    heads: str | None = None,
    head_dim: str | None = None,
    query_tokens: int | None = None,
    query_dtype: str | None = None,
    kv_dtype: str | None = None,
    kv_scales: str = "token-head",
    block_size: int = 16,
    layout: str = "hnd",
    batch: int | None = None,
    context: int | None = None,
    has_window: bool = False,
    has_sinks: bool = False,
    has_cap: bool = False,
) -> KernelShape:
    """`heads` is query/KV heads (`32/8`; one number for MHA), `head_dim` that of K and V (`128`, or `192/128`).

    `UsageError` names the option that is wrong, or the two that do not go together.
    """
    typical = DEFAULTS.get(kernel, DEFAULTS["decode"])
    query_heads, kv_heads = _pair(heads or typical["heads"], "--heads", "32/8")
    k_dim, v_dim = _pair(head_dim or typical["head_dim"], "--head-dim", "128 or 192/128")
    tokens = typical["query_tokens"] if query_tokens is None else query_tokens
    batch = typical["batch"] if batch is None else batch
    context = typical["context"] if context is None else context
    sizes = {"block size": block_size, "batch": batch, "context": context, "query tokens": tokens}
    for name, value in (*sizes.items(), ("head dim", k_dim), ("head dim", v_dim)):
        if not 1 <= value <= _LARGEST[name]:
            raise UsageError(f"a {name} of {value} is out of range", hint=f"between 1 and {_LARGEST[name]}")
    if query_heads % kv_heads or query_heads > 1024:
        raise UsageError(
            f"{query_heads} query heads cannot share {kv_heads} KV heads",
            hint="the first number of --heads is a multiple of the second, and at most 1024",
        )
    if tokens > context:
        raise UsageError(f"{tokens} query tokens do not fit into a context of {context}", hint="the context holds them")
    query, stored = storage_dtype(query_dtype or typical["query_dtype"]), storage_dtype(kv_dtype or typical["kv_dtype"])
    if query.name not in QUERY_DTYPES:
        raise UsageError(f"queries are not {query.name}", hint=f"one of {', '.join(QUERY_DTYPES)}")
    if layout not in _LAYOUTS:
        raise UsageError(f"unknown KV layout {layout!r}", hint=f"one of {', '.join(_LAYOUTS)}")
    return KernelShape(
        query_dtype=query.name,
        kv_dtype=stored.name,
        has_block_scales=scales_per_token(kv_scales) and stored.scale_bytes > 0,
        block_size=block_size,
        query_heads=query_heads,
        kv_heads=kv_heads,
        k_dim=k_dim,
        v_dim=v_dim,
        layout=cast("Literal['hnd', 'nhd']", layout),
        batch=batch,
        context=context,
        has_window=has_window,
        has_sinks=has_sinks,
        has_cap=has_cap,
        query_tokens=tokens,
    )


def counts(text: str | None, option: str) -> list[int | None]:
    """`1,8,64` → those numbers; nothing → the kernel's typical one."""
    if text is None:
        return [None]
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text):
        raise UsageError(f"{option} {text!r} is not understood", hint=f"as in {option} 8 or {option} 1,8,64")
    return [*dict.fromkeys(int(part) for part in text.split(","))]


def _pair(text: str, option: str, example: str) -> tuple[int, int]:
    """`32/8` → (32, 8); `128` → (128, 128)."""
    found = re.fullmatch(r"\s*(\d{1,6})(?:\s*/\s*(\d{1,6}))?\s*", text)
    pair = (int(found.group(1)), int(found.group(2) or found.group(1))) if found else (0, 0)
    if min(pair) < 1:
        raise UsageError(f"{option} {text!r} is not understood", hint=f"as in {option} {example}")
    return pair
