"""Nothing beyond the pool, the block table or the lengths is read: they end where an unreadable page begins. Table
entries before a window name blocks that do not exist."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = """
import sys
import numpy as np
from kvbench_kernels.decode_numba import arguments, decode
from kvbench_kernels.gather_numba import gather
from tests.kernels.guard import at_the_edge, trip

if sys.argv[2] == "trip":
    trip(at_the_edge(np.ones(5)))

def run(form, k_dim, v_dim, block_size, context, window):
    heads, group = 2, 3
    dtype = {
        "fp32": np.float32, "bf16": np.uint16, "fp16": np.int16, "int8": np.int8, "fp8_e4m3": np.uint8,
        "fp8_e5m2": np.bool_,
    }[form]
    size = np.dtype(dtype).itemsize
    is_scaled = size == 1
    tokens = heads * block_size
    first_scale = -(-tokens * (k_dim + v_dim) * size // 4)
    scale_words = 2 * tokens if is_scaled else 0
    block = -(-(first_scale + scale_words) * 4 // 16) * 16
    blocks = -(-context // block_size)
    pool = at_the_edge(np.zeros((blocks + 1) * block, np.uint8))
    table = at_the_edge(np.arange(blocks, 0, -1, dtype=np.int32).reshape(1, -1))
    first = max(0, context - window)
    table[0, : first // block_size] = 2**31 - 1
    sinks = at_the_edge(np.ones(heads * group, np.float32))
    lengths = at_the_edge(np.array([context], np.int32))
    scales = pool.view(np.float32) if is_scaled else None
    q = at_the_edge(np.ones((1, heads * group, k_dim), np.float32))
    out = at_the_edge(np.full((1, heads * group, v_dim), np.nan, np.float32))
    layout = (block_size, block // size, tokens * k_dim, v_dim, block // 4, first_scale, first_scale + tokens)
    layout += (block_size, 1) if block_size % 2 else (1, heads)
    rule = (window, 0.1, 0.0, heads, k_dim, v_dim)
    decode(q, pool.view(dtype), scales, table, lengths, sinks, out, *rule, *layout, *arguments())
    assert (out == 0).all()
    k = at_the_edge(np.full((heads, context - first, k_dim), np.nan, np.float32))
    v = at_the_edge(np.full((heads, context - first, v_dim), np.nan, np.float32))
    gather(pool.view(dtype), scales, table[0], first, k, v, *layout[:3], *layout[4:], 1)
    assert (k == 0).all() and (v == 0).all()

for k_dim, v_dim in ((64, 64), (5, 5), (8, 8), (40, 33), (128, 128)):
    for block_size, context in ((1, 5), (3, 64), (16, 300), (16, 256), (64, 1)):
        for window in (2**62, 40):
            run(sys.argv[1], k_dim, v_dim, block_size, context, window)
print("done")
"""


def child(form: str, mode: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CHILD, form, mode], capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
@pytest.mark.parametrize("form", ["fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8"])
def test_k07_reads_end_where_the_data_end(form: str) -> None:
    done = child(form, "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
def test_the_guard_page_bites() -> None:
    assert child("fp32", "trip").returncode < 0
