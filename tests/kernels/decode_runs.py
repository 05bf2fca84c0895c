"""One decode by a page's Triton kernel, with everything poisoned that it must not read or write."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from kvbench_kernels import decode_triton, reference
from kvbench_kernels.decode_triton import Config
from tests.attention.batches import Paged
from tests.kernels.pools import flat_pool, rule_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Config(tile=16)
ALL = 1 << 62
BOUNDS = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Of the error for values drawn from a normal distribution, by the queries' dtype: float32 sums; weights that keep 11
bits; weights that keep 8, times a V of about 4."""


def expected(case: Paged, q_dtype: torch.dtype = torch.float32) -> torch.Tensor:
    pool = flat_pool(case)
    args = (pool.data, pool.scales, pool.tables, pool.lengths, pool.dims, pool.offsets, rule_of(case))
    return reference.decode(case.q.to(q_dtype), *args)


def run(
    case: Paged,
    q_dtype: torch.dtype = torch.float32,
    splits: int = 1,
    config: Config = SMALL,
    out_dtype: torch.dtype = torch.float32,
    page: Any = decode_triton,
) -> torch.Tensor:
    """The kernel's result. Two heads beyond the queries', the scratch, and the result with a row beyond it start as
    NaN; that row must stay so."""
    pool, rule = flat_pool(case), rule_of(case)
    batch, heads, k_dim = case.q.shape
    wide = torch.full((batch, heads + 2, k_dim), torch.nan, dtype=q_dtype)
    wide[:, :heads] = case.q
    out = torch.full((batch + 1, heads, pool.dims[2]), torch.nan, dtype=out_dtype, device=DEVICE)
    scratch = page.scratch_for(batch, heads, pool.dims[2], splits, torch.device(DEVICE)).fill_(torch.nan)
    window = ALL if rule.window is None else rule.window
    tensors = (wide.to(DEVICE)[:, :heads], pool.data, pool.scales, pool.tables, pool.lengths, rule.sinks)
    moved = [None if tensor is None else tensor.to(DEVICE) for tensor in tensors]
    numbers = (window, rule.scale, rule.cap, rule.v_scale, *pool.dims, *pool.offsets)
    page.decode(*moved, out, *numbers, splits=splits, config=config, scratch=scratch)
    assert out[batch].isnan().all(), "a row beyond the batch was written"
    return out[:batch].double().cpu()


def assert_right(
    case: Paged,
    q_dtype: torch.dtype = torch.float32,
    splits: int = 1,
    config: Config = SMALL,
    page: Any = decode_triton,
) -> None:
    out = run(case, q_dtype, splits, config, page=page)
    torch.testing.assert_close(out, expected(case, q_dtype), atol=BOUNDS[q_dtype], rtol=0)


def page_with(old: str, new: str, folder: Path) -> Any:
    """The page with one piece of its text changed."""
    text = Path(decode_triton.__file__).read_text(encoding="utf-8")
    assert old in text
    name = "decode_triton_with_a_bug"
    path = folder / f"{name}.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    page = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    return page
