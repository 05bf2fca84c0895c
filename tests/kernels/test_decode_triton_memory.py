"""Where the Triton decode reads: nothing beyond pool, tables, lengths and queries, nothing before a window, and far
into a large pool. In a child process, and each planted bug in a fork of it: they end in a fault or a wrong number."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from kvbench_kernels.decode_triton import decode
from kvbench_kernels.offsets import block_offsets
from kvbench_kernels.specs import KernelShape

CHILD = """
import os, tempfile
from pathlib import Path
import numpy as np
import torch
from kvbench_kernels import decode_triton
from kvbench_kernels.decode_triton import Config
from kvbench_kernels.offsets import block_offsets
from kvbench_kernels.specs import KernelShape
from tests.kernels.decode_runs import page_with
from tests.kernels.guard import tensor_at_the_edge as at_the_edge

def edge(page, kv_dtype, dim, block_size, context, window, tile, splits):
    scaled = kv_dtype == "int8"
    layout = "nhd" if block_size % 2 else "hnd"
    shape = KernelShape("fp32", kv_dtype, scaled, block_size, 4, 2, dim, dim, layout, 1, context)
    offsets = block_offsets(shape)
    element = {"int8": torch.int8, "fp32": torch.float32}[kv_dtype]
    blocks = -(-context // block_size)
    pool = at_the_edge(torch.zeros((blocks + 1) * offsets.block_elements, dtype=element))
    table = at_the_edge(torch.arange(blocks, 0, -1, dtype=torch.int32).reshape(1, -1))
    table[0, : max(0, context - window) // block_size] = 2**31 - 1
    lengths, sinks = at_the_edge(torch.tensor([context], dtype=torch.int32)), at_the_edge(torch.ones(4))
    q, out = at_the_edge(torch.ones(1, 4, dim)), at_the_edge(torch.full((1, 4, dim), torch.nan))
    scratch = at_the_edge(torch.full((4 * splits * (dim + 1),), torch.nan)) if splits > 1 else None
    scales = pool.view(torch.float32) if scaled else None
    numbers = (window, 0.1, 0.0, 1.0, 2, dim, dim, *offsets)
    page.decode(q, pool, scales, table, lengths, sinks, out, *numbers, splits, Config(tile=tile), scratch)
    assert (out == 0).all()

def edges(page):
    edge(page, "fp32", 24, 3, 16, 2**62, 16, 1)
    edge(page, "fp32", 24, 3, 37, 19, 16, 2)
    edge(page, "int8", 40, 17, 50, 2**62, 64, 1)
    edge(page, "int8", 16, 64, 70, 30, 32, 2)
    edge(page, "fp32", 64, 1, 5, 2**62, 16, 1)

def far(page):
    shape = KernelShape("fp32", "int8", True, 16, 2, 2, 64, 64, "hnd", 1, 16)
    offsets = block_offsets(shape)._replace(block_elements=2**24, block_scales=2**22)
    pool = torch.from_numpy(np.zeros(2**31 + 2**26, np.int8))
    scales, last = pool.view(torch.float32), (2**31 + 2**25) // 2**24
    start = last * offsets.block_elements + offsets.v_base
    pool[start : start + 2 * 16 * 64] = 3
    words = last * offsets.block_scales + offsets.k_scale_base
    scales[words : words + 4 * 16] = 0.5
    table, out = torch.tensor([[last]], dtype=torch.int32), torch.full((1, 2, 64), torch.nan)
    args = (torch.ones(1, 2, 64), pool, scales, table, torch.tensor([16], dtype=torch.int32), None, out)
    for tile in (16, 64):
        page.decode(*args, 2**62, 1.0, 0.0, 1.0, 2, 64, 64, *offsets, 1, Config(tile=tile))
        torch.testing.assert_close(out, torch.full((1, 2, 64), 1.5))

def status(test, page):
    child = os.fork()
    if child == 0:
        os.close(2)
        try:
            test(page)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]

edges(decode_triton)
far(decode_triton)
for test, old, new in (
    (edges, "table + token // BLOCK, mask=is_seen, other=0)", "table + token // BLOCK)"),
    (edges, "v_column[None, :], mask=is_seen[:, None] & is_v[None, :]", "v_column[None, :], mask=is_seen[:, None]"),
    (edges, "other=0.0)\\n    q_unit", "other=0.0) + tl.load(q + q_places)\\n    q_unit"),
    (edges, "begin += split * share\\n    end", "begin = 0\\n    first = 0\\n    end"),
    (edges, "(token >= first) & (token < end)", "token < end"),
    (far, "mask=is_seen, other=0).to(tl.int64)", "mask=is_seen, other=0)"),
    (far, "table + tile // BLOCK).to(tl.int64)", "table + tile // BLOCK)"),
):
    page = page_with(old, new, Path(tempfile.mkdtemp()))
    print("noticed" if status(test, page) else f"{new!r} was not noticed", flush=True)
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux" or torch.cuda.is_available(), reason="needs mprotect and the interpreter")
def test_k07_reads_end_where_the_data_end_and_bugs_there_are_noticed() -> None:
    """With a block's offset beyond 2^31 (K05), in a pool that is not touched elsewhere."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == ["noticed"] * 7 + ["done"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs the interpreter, where an untouched pool costs nothing")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
def test_k05_a_block_whose_offset_is_beyond_two_to_the_31() -> None:
    shape = KernelShape("fp32", "int8", False, 16, 1, 1, 16, 16, "hnd", 1, 16)
    offsets = block_offsets(shape)._replace(block_elements=2**24)
    pool = torch.from_numpy(np.zeros(2**31 + 2**26, np.int8))
    last = (2**31 + 2**25) // 2**24
    pool[last * 2**24 + offsets.v_base : last * 2**24 + offsets.v_base + 16 * 16] = 3
    out = torch.full((1, 1, 16), torch.nan)
    args = (pool, None, torch.tensor([[last]], dtype=torch.int32), torch.tensor([16], dtype=torch.int32), None, out)
    decode(torch.ones(1, 1, 16), *args, 2**62, 1.0, 0.0, 1.0, 1, 16, 16, *offsets)
    torch.testing.assert_close(out, torch.full((1, 1, 16), 3.0))
