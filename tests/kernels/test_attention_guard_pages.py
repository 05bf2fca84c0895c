"""Prefill and latent attention read nothing beyond q, pool, block tables, lengths, starts or sinks: all end where an
unreadable page begins. Table entries before a window name blocks that do not exist. In a child, which a fault ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

CHILD = """
import sys
import numpy as np
import torch
from kvbench_kernels import mla_triton, prefill_triton
from kvbench_kernels.offsets import block_offsets
from kvbench_kernels.specs import KernelShape
from tests.kernels.guard import at_the_edge as array_at_the_edge, tensor_at_the_edge as at_the_edge, trip

if sys.argv[1] == "trip":
    trip(array_at_the_edge(np.ones(5)))

def ints(*values):
    return at_the_edge(torch.tensor(values, dtype=torch.int32))

def run(page, kv_dtype, dims, block_size, context, count, window, tile):
    is_latent = page is mla_triton
    heads, kv_heads = (3, 1) if is_latent else (4, 2)
    layout = "nhd" if block_size % 2 else "hnd"
    shape = KernelShape("fp32", kv_dtype, kv_dtype == "int8", block_size, heads, kv_heads, *dims, layout, 1, context)
    offsets = block_offsets(shape, is_latent=is_latent)
    blocks = -(-context // block_size)
    element = {"int8": torch.int8, "fp32": torch.float32}[kv_dtype]
    pool = at_the_edge(torch.zeros((blocks + 1) * offsets.block_elements, dtype=element))
    table = at_the_edge(torch.arange(blocks, 0, -1, dtype=torch.int32).reshape(1, -1))
    table[0, : max(0, context - count - window + 1) // block_size] = 2**31 - 1
    q, out = at_the_edge(torch.ones(count, heads, dims[0])), at_the_edge(torch.full((count, heads, dims[1]), torch.nan))
    scales = pool.view(torch.float32) if kv_dtype == "int8" else None
    starts = None if is_latent and count == 1 else ints(0, count)
    launch = page.mla if is_latent else page.prefill
    more = {"splits": 2 if starts is None else 1} if is_latent else {}
    numbers = (window, 0.1, 0.0, 1.0, kv_heads, *dims, *offsets)
    config = page.Config(16, tile, 4, 1)
    sinks = at_the_edge(torch.ones(heads))
    launch(q, pool, scales, table, ints(context), starts, sinks, out, *numbers, config=config, **more)
    assert (out == 0).all()

ALL = 2**62
for page, dims in ((prefill_triton, (24, 40)), (mla_triton, (40, 24))):
    run(page, "fp32", dims, 3, 16, 1, ALL, 16)
    run(page, "fp32", dims, 3, 40, 10, 12, 16)
    run(page, "int8", dims, 17, 50, 3, ALL, 64)
    run(page, "int8", dims, 64, 70, 7, 30, 32)
    run(page, "int8", dims, 1, 21, 1, 9, 16)
print("done")
"""


def child(mode: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CHILD, mode], capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(sys.platform != "linux" or torch.cuda.is_available(), reason="needs mprotect and the interpreter")
def test_k07_attention_reads_end_where_the_data_end() -> None:
    done = child("run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "done\n"


@pytest.mark.skipif(sys.platform != "linux" or torch.cuda.is_available(), reason="needs mprotect and the interpreter")
def test_the_guard_page_bites() -> None:
    assert child("trip").returncode < 0
