"""Descriptions of compiles, and what they are read without."""

from __future__ import annotations

import os
import subprocess
import sys


def test_descriptions_of_compiles_are_read_without_triton_torch_or_numba() -> None:
    code = """
import sys
for name in ("triton", "torch", "numba"):
    sys.modules[name] = None
from kvbench_kernels.specs import CompileSpec, KernelShape
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
