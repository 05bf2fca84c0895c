"""Decode's bandwidth against the device's copy rate, and against torch's SDPA and FlexAttention, with the project's
bars. `gpu_check.py` runs it.

Without CUDA the same calls run on numba's kernels at small sizes: that checks the script, and no bar is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from paged import Call, CopyRate, Layer, Work, processors

from kvbench.measure.timers import timer_for

BARS = {"bf16": 0.90, "fp8_e4m3": 0.85}
"""Share of the copy rate that a decode should reach, by KV dtype, from these on:"""
LEAST_BATCH, LEAST_CONTEXT, LEAST_BLOCK = 64, 4096, 16
SMALL = Work("bf16", 16, 2, 128, 8, 2, 64)
FLEX_PAGE = 128
"""Tokens of a page in FlexAttention's paged cache: the block of its masks"""
TOLERANCE = 0.05
"""Of a rival's bf16 result against ours: that it computes the same thing"""
Check = tuple[str, Callable[[], dict[str, Any]]]


def bandwidth(device: str, rounds: int = 9) -> Iterator[Check]:
    """The loads that the bars are about first, then what surrounds them."""
    copy = CopyRate(device)
    if device == "cpu":
        loads = [Work(dtype, 16, 2, 128, 8, 2, 64) for dtype in ("bf16", "fp8_e4m3")]
    else:
        loads = [Work(dtype, 16, 64, context) for dtype in BARS for context in (4096, 8192)]
        loads += [Work(dtype, 64, 128, 8192) for dtype in BARS]
        loads += [Work(dtype, 16, 64, 8192) for dtype in ("int8", "fp8_e5m2", "fp16")]
        loads += [Work(dtype, block, 64, 8192) for block in (1, 32, 256) for dtype in BARS]
        loads += [Work(dtype, 16, *load) for load in ((1, 32768), (8, 8192), (128, 4096)) for dtype in BARS]
    for work in loads:
        yield name_of(work), lambda work=work: measured(work, copy, rounds)


def measured(work: Work, copy: CopyRate, rounds: int) -> dict[str, Any]:
    layer = Layer(work, copy.device)
    moved = layer.decode_bytes()
    row = {**asdict(work), **asdict(moved), **asdict(copy.against(layer.decode, moved.data, rounds))}
    programs = layer.programs
    row |= {"splits": layer.splits, "programs": programs}
    row["programs_per_processor"] = None if programs is None else programs / processors(copy.device)
    bar = BARS.get(work.kv_dtype) if copy.device == "cuda" and _counts(work) else None
    row["bar"], row["bar_met"] = bar, None if bar is None else row["share"] >= bar
    return {**row, "ok": bool(layer.decode().isfinite().all())}


def rivals(device: str, kind: str, rounds: int = 9) -> Iterator[Check]:
    """Ours and a rival in turns on the same numbers; `kind` is sdpa or flex."""
    loads = [SMALL] if device == "cpu" else [Work("bf16", 16, 64, context) for context in (4096, 8192)]
    make = {"sdpa": sdpa, "flex": flex}[kind]
    for work in loads:
        yield f"{kind}, {name_of(work)}", lambda work=work: compared(work, device, make, kind, rounds)


def compared(work: Work, device: str, make: Callable[[Layer], Call], kind: str, rounds: int) -> dict[str, Any]:
    layer, timer = Layer(work, device), timer_for(device, "l2-flushed")
    theirs = make(layer)
    result = theirs()
    assert isinstance(result, torch.Tensor)
    difference = float((result.reshape(layer.q.shape).float() - layer.decode().float()).abs().max())
    times = [(timer(layer.decode).device_s, timer(theirs).device_s) for _ in range(rounds)]
    row = {
        **asdict(work),
        "rival": kind,
        "ours_s": median(ours for ours, _ in times),
        "rival_s": median(other for _, other in times),
        "rival_over_ours": median(other / ours for ours, other in times),
        "max_difference": difference,
        "ok": difference <= TOLERANCE,
    }
    is_judged = kind == "flex" and device == "cuda" and _counts(work)
    return {**row, "bar": 1.0 if is_judged else None, "bar_met": row["rival_over_ours"] > 1.0 if is_judged else None}


def sdpa(layer: Layer) -> Call:
    """On contiguous K and V, the query heads of a KV head as queries of one sequence."""
    work, q = layer.work, layer.q
    k, v = (x.transpose(0, 1).contiguous().to(q.dtype) for x in (layer.k, layer.v))
    k, v = (x.expand(work.batch, *x.shape).clone() for x in (k, v))
    rows = q.view(work.batch, work.kv_heads, -1, work.head_dim)
    return lambda: F.scaled_dot_product_attention(rows, k, v)


def flex(layer: Layer) -> Call:
    """FlexAttention over torch's own paged cache; compiled on CUDA, in the open on a CPU. Pages of 128 tokens, which
    its masks are made of, handed out in shuffled order."""
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention, noop_mask

    work, q, device = layer.work, layer.q, layer.device
    pages = work.batch * -(-work.context // FLEX_PAGE)
    cache = PagedAttention(pages, FLEX_PAGE, work.batch, device=device)
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(0))
    cache.empty_pages = [int(page) for page in order]
    shape = (1, work.kv_heads, pages * FLEX_PAGE, work.head_dim)
    k_cache, v_cache = (torch.zeros(shape, dtype=q.dtype, device=device) for _ in range(2))
    position = torch.arange(work.context, device=device)[None]
    k, v = (x.transpose(0, 1)[None].to(q.dtype) for x in (layer.k, layer.v))
    for sequence in range(work.batch):
        which = torch.tensor([sequence], device=device)
        cache.reserve(which, torch.tensor([work.context], device=device))
        cache.assign(which, position, k, v, k_cache, v_cache)
    logical = create_block_mask(noop_mask, work.batch, None, 1, work.context, device=device, BLOCK_SIZE=FLEX_PAGE)
    lengths = torch.full((work.batch,), work.context, device=device)
    mask, score = cache.convert_logical_block_mask(logical, kv_len=lengths), cache.get_score_mod(None, kv_len=lengths)
    attend = torch.compile(flex_attention) if device == "cuda" else flex_attention
    rows = q[:, :, None]
    return lambda: attend(rows, k_cache, v_cache, score_mod=score, block_mask=mask, enable_gqa=True)


def name_of(work: Work) -> str:
    return f"{work.kv_dtype}, block {work.block_size}, {work.batch} × {work.context}"


def _counts(work: Work) -> bool:
    return work.batch >= LEAST_BATCH and work.context >= LEAST_CONTEXT and work.block_size >= LEAST_BLOCK
