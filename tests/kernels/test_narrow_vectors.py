"""The tiles for CPUs without 512-bit registers, run on any CPU: a copy of the package with 8 lanes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kvbench_kernels

PACKAGE = Path(kvbench_kernels.__file__).parent
CHILD = """
import sys
import numpy as np
import kvbench_kernels
kvbench_kernels.use_cache(sys.argv[1])
from kvbench_kernels import tiles
from kvbench_kernels.decode_numba import arguments, decode, reference
assert tiles.LANES == 8
rng = np.random.default_rng(0)
block_size, lengths = 7, np.array([1, 63, 300, 0], np.int32)
for heads, group, k_dim, v_dim in ((1, 1, 64, 64), (2, 7, 24, 40), (1, 15, 5, 9), (2, 8, 80, 80)):
    tokens = heads * block_size
    elements, scales_at = tokens * (k_dim + v_dim), -(-tokens * (k_dim + v_dim) // 4)
    block = -(-(scales_at + 2 * tokens) * 4 // 16) * 16
    table = (rng.permutation(4 * 44) + 1).astype(np.int32).reshape(4, 44)
    pool = rng.integers(0, 255, (table.size + 1) * block, dtype=np.uint8)
    scales = pool.view(np.float32).reshape(-1, block // 4)
    scales[:, scales_at:] = rng.random(scales[:, scales_at:].shape) * 0.02
    q = rng.standard_normal((4, heads * group, k_dim)).astype(np.float32)
    out = np.full((4, heads * group, v_dim), np.nan, np.float32)
    layout = (block_size, block, tokens * k_dim, v_dim, block // 4, scales_at, scales_at + tokens)
    layout += (block_size, 1)
    args = (q, pool.view(np.int8), pool.view(np.float32), table, lengths)
    for window, cap, sinks in ((2**62, 0.0, out[0, :0, 0]), (50, 3.0, q[1, :, 0])):
        rule = (window, k_dim**-0.5, cap)
        decode(*args, sinks.copy(), out, *rule, heads, k_dim, v_dim, *layout, *arguments())
        expected = reference(*args, sinks.copy(), *rule, heads, k_dim, v_dim, *layout)
        np.testing.assert_allclose(out, expected, atol=2e-5)
print("done")
"""


def test_eight_lanes_give_the_same_answers(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "kvbench_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    tiles = tmp_path / "kvbench_kernels" / "tiles.py"
    text, count = re.subn(r"^LANES = 16 if .*$", "LANES = 8", tiles.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count == 1
    tiles.write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "cache")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "done\n", done.stderr
