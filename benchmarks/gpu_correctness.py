"""Every Triton kernel on a device against float64, in few and awkward shapes. `gpu_check.py` runs it.

What must not be read or written is NaN: unwritten slots, free blocks and the null block of the pool, results and the
splits' scratch before the launch, rows behind the batch. What is stored is compared bit for bit with the torch codec.
Under Triton's interpreter contexts are short, for it runs thousands of times slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kvbench.engine.kvstore.reading_writing import TorchIO
from kvbench.engine.kvstore.store import KVStore
from kvbench.geometry.model import LatentShape, LayerGroup, ModelGeometry
from kvbench_kernels import copy_triton, decode_triton, mla_triton, prefill_triton, reference
from kvbench_kernels.offsets import Offsets
from kvbench_kernels.reference import Rule

DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")
QUERIES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BOUNDS = {"fp32": 5e-6, "fp16": 2e-3, "bf16": 2e-2}
"""Largest error for values of a normal distribution, by the queries' dtype, as the kernels' tests have it."""
_ALL, _POISON = 1 << 62, 0xFF
"""`_POISON` in every byte is NaN in every float form, scales included"""
_FAR_BYTES = 5 << 29
"""A pool whose offsets are beyond 2^31 elements of one byte"""


@dataclass(frozen=True)
class Case:
    """`queries` tokens at the end of each context; all 1 and not `starts`: a decode. Dims are those of a K row and of
    V; `latent` layers have one KV head. `far`: blocks lie beyond 2^31 bytes of a pool (CUDA)."""

    name: str
    kv_dtype: str
    query_dtype: str
    block_size: int
    heads: tuple[int, int]
    dims: tuple[int, int]
    contexts: tuple[int, ...]
    queries: tuple[int, ...] = ()
    splits: int = 1
    window: int | None = None
    cap: float = 0.0
    sinks: bool = False
    layout: str = "hnd"
    latent: bool = False
    far: bool = False

    @property
    def kernel(self) -> str:
        return "mla" if self.latent else "prefill" if self.queries else "decode"


def cases(is_small: bool) -> Iterator[Case]:
    """Fewer and shorter for the interpreter."""
    lengths = (0, 5, 70) if is_small else (0, 1, 37, 1000, 4097)
    pieces = (0, 5, 20) if is_small else (0, 1, 37, 300, 129)
    blocks, dims = (1, 16, 17, 64, 256, 3), ((64, 64), (80, 80), (128, 128), (256, 256), (96, 96), (192, 128))
    for i, dtype in enumerate(DTYPES):
        queries = "fp32" if dtype == "fp32" else "fp16" if dtype == "fp16" else "bf16"
        base = Case(f"{dtype}", dtype, queries, blocks[i], (8, 2), dims[i], lengths, splits=(1, 3, 8)[i % 3])
        yield replace(base, name=f"decode {dtype}", layout=("hnd", "nhd")[i % 2])
        yield replace(base, name=f"prefill {dtype}", queries=pieces, splits=1, block_size=blocks[(i + 1) % 6])
        latent = replace(base, heads=(16, 1), dims=(576, 512), latent=True)
        yield replace(latent, name=f"latent decode {dtype}", contexts=lengths[:3] if is_small else lengths)
        if is_small and i > 1:
            continue
        yield replace(base, name=f"decode {dtype}, window, sinks, cap", window=33, sinks=True, cap=3.0, splits=4)
        yield replace(base, name=f"prefill {dtype}, window, sinks", queries=pieces, splits=1, window=33, sinks=True)
        yield replace(latent, name=f"latent prefill {dtype}", queries=pieces, splits=1)
        yield replace(base, name=f"decode {dtype}, block 16, 128", block_size=16, dims=(128, 128), splits=2)
        if not is_small:
            yield replace(base, name=f"decode {dtype}, block 64, MQA", block_size=64, heads=(20, 1), splits=5)
    if not is_small:
        far = Case("", "int8", "bf16", 16, (8, 8), (128, 128), lengths, far=True)
        yield replace(far, name="decode int8 beyond 2^31", splits=3)
        yield replace(far, name="prefill int8 beyond 2^31", queries=pieces)


@dataclass
class Filled:
    """A case's pool on the CPU, stored by torch, and on the device, stored by the Triton kernel."""

    cpu: KVStore
    device: KVStore
    shift: int
    tables: torch.Tensor

    def pool(self, device: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        view = (self.cpu if device == "cpu" else self.device).layers[0]
        return view.elements, view.scales


def check(case: Case, device: str, seed: int = 0) -> dict[str, Any]:
    """The errors of one case; `ok` says whether they are within the bound."""
    filled = _filled(case, device, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    counts = case.queries or (1,) * len(case.contexts)
    q = torch.randn((sum(counts), case.heads[0], case.dims[0]), generator=generator).to(QUERIES[case.query_dtype])
    sinks = torch.randn(case.heads[0], generator=generator) if case.sinks else None
    rule = Rule(case.dims[0] ** -0.5, case.window, case.cap, sinks)
    layout = filled.cpu.layers[0].layout
    offsets = layout.offsets
    dims = (layout.kv_heads, layout.k_dim, layout.v_dim)
    lengths = torch.tensor(case.contexts, dtype=torch.int32)
    starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    right = reference.prefill(q, starts, *filled.pool("cpu"), filled.tables, lengths, dims, offsets, rule)
    tensors = (q, *filled.pool(device), filled.tables + filled.shift, lengths)
    moved = [None if x is None else x.to(device) for x in tensors]
    out = _launched(case, moved, starts.to(device), sinks, rule, dims, offsets)
    is_clean = bool(out[len(q) :].isnan().all())
    error = float((out[: len(q)].double().cpu() - right).abs().max()) if len(q) else 0.0
    stored = _differing_bytes(filled)
    is_right = math.isfinite(error) and error <= BOUNDS[case.query_dtype]
    return {
        "kernel": case.kernel,
        "max_error": error if math.isfinite(error) else str(error),
        "bound": BOUNDS[case.query_dtype],
        "wrote_beyond": not is_clean,
        "stored_bytes_wrong": stored,
        "ok": is_right and is_clean and stored == 0,
    }


def check_copies(device: str) -> dict[str, Any]:
    """Block copy, gather and scatter against torch's indexing; no other byte may change."""
    rng = np.random.default_rng(7)
    wrong = 0
    for blocks, planes, size in ((9, 1, 16), (40, 3, 4112), (64, 2, 65536) if device == "cuda" else (12, 2, 9216)):
        bytes_ = torch.from_numpy(rng.integers(0, 256, (planes, blocks, size), dtype=np.uint8))
        order = torch.from_numpy(rng.permutation(blocks)[: blocks // 2 * 2].astype(np.int64))
        here, there = order[: blocks // 2], order[blocks // 2 :]
        pool = bytes_.clone().to(device).transpose(0, 1)
        copy_triton.block_copy(pool, here.to(device), there.to(device))
        expected = bytes_.transpose(0, 1).clone()
        expected[there] = expected[here]
        wrong += int((pool.cpu() != expected).sum())
        staged = torch.full((len(here) + 1, planes, size), 170, dtype=torch.uint8, device=device)
        copy_triton.block_gather(pool, there.to(device), staged)
        wrong += int((staged[:-1].cpu() != expected[there]).sum()) + int((staged[-1] != 170).sum())
        copy_triton.block_scatter(staged, pool, here.flip(0).to(device))
        expected[here.flip(0)] = expected[there]
        wrong += int((pool.cpu() != expected).sum())
    return {"kernel": "copy", "bytes_wrong": wrong, "ok": wrong == 0}


def checks(device: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Every check by its name, the quickest kinds first."""
    yield "copies", lambda: check_copies(device)
    for case in cases(is_small=device == "cpu"):
        yield case.name, lambda case=case: check(case, device)


def _launched(
    case: Case,
    tensors: list[torch.Tensor | None],
    starts: torch.Tensor,
    sinks: torch.Tensor | None,
    rule: Rule,
    dims: tuple[int, int, int],
    offsets: Offsets,
) -> torch.Tensor:
    """The page's launcher on NaN: results with one row more than there are queries, scratch, q's gaps."""
    q = tensors[0]
    assert q is not None
    wide = torch.full((len(q), case.heads[0] + 2, dims[1]), torch.nan, dtype=q.dtype, device=q.device)
    wide[:, : case.heads[0]] = q
    out = torch.full((len(q) + 1, case.heads[0], dims[2]), torch.nan, device=q.device)
    moved = (wide[:, : case.heads[0]], *tensors[1:])
    sinks = None if sinks is None else sinks.to(q.device)
    numbers = (_ALL if rule.window is None else rule.window, rule.scale, rule.cap, rule.v_scale, *dims, *offsets)
    scratch = decode_triton.scratch_for(len(case.contexts), case.heads[0], dims[2], case.splits, q.device)
    scratch.fill_(torch.nan)
    if case.kernel == "decode":
        decode_triton.decode(*moved, sinks, out, *numbers, splits=case.splits, scratch=scratch)
    elif case.kernel == "prefill":
        prefill_triton.prefill(*moved, starts, sinks, out, *numbers)
    else:
        own_starts = starts if case.queries else None
        mla_triton.mla(*moved, own_starts, sinks, out, *numbers, splits=case.splits, scratch=scratch)
    return out


def _filled(case: Case, device: str, seed: int) -> Filled:
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    needed = [-(-context // case.block_size) for context in case.contexts]
    count = sum(needed) + 2
    geometry = _geometry(case)
    cpu = _store(case, geometry, count, "cpu", uses_triton=True)
    cpu._io = TorchIO()
    shift = -(-_FAR_BYTES // cpu.block_bytes) if case.far else 0
    there = _store(case, geometry, count + shift, device, uses_triton=True)
    for store, first in ((cpu, 0), (there, shift)):
        store.pool.bytes[:, first:].fill_(_POISON)
    order = (rng.permutation(count)[: sum(needed)] + 1).astype(np.int32)
    tables = np.zeros((len(needed), max(needed) + 1), np.int32)
    for row, blocks in zip(tables, np.split(order, np.cumsum(needed)[:-1]), strict=True):
        row[: len(blocks)] = blocks
    for row, context in zip(tables, case.contexts, strict=True):
        positions = np.arange(context)
        slots = row[positions // case.block_size].astype(np.int64) * case.block_size + positions % case.block_size
        k = torch.randn((context, case.heads[1], case.dims[0]), generator=generator)
        v = torch.randn((context, case.heads[1], 0 if case.latent else case.dims[1]), generator=generator)
        cpu.write(0, k, v, torch.from_numpy(slots))
        there.write(0, k.to(device), v.to(device), torch.from_numpy(slots + shift * case.block_size).to(device))
    return Filled(cpu, there, shift, torch.from_numpy(tables))


def _differing_bytes(filled: Filled) -> int:
    """Of the blocks that hold anything, between what torch stored and what the kernel stored."""
    count = filled.cpu.num_blocks + 1
    there = filled.device.pool.bytes[:, filled.shift : filled.shift + count].cpu()
    return int((filled.cpu.pool.bytes[:, 1:] != there[:, 1:]).sum())


def _store(case: Case, geometry: ModelGeometry, blocks: int, device: str, *, uses_triton: bool) -> KVStore:
    return KVStore(
        geometry,
        case.kv_dtype,
        case.block_size,
        blocks,
        device=device,
        kv_layout=case.layout,
        uses_triton=uses_triton,
    )


def _geometry(case: Case) -> ModelGeometry:
    heads = (*case.heads, case.dims[0])
    if case.latent:
        group = LayerGroup("latent", (0,), 1, case.dims[0], 0)
        shape = LatentShape(None, case.dims[1], 8, case.dims[0] - case.dims[1], 8)
        return ModelGeometry("check", "llama", "check", 1, 8, 8, *heads, 8, 1 << 20, (group,), latent=shape)
    group = LayerGroup("full", (0,), case.heads[1], *case.dims)
    return ModelGeometry("check", "llama", "check", 1, 8, 8, *heads, 8, 1 << 20, (group,))
