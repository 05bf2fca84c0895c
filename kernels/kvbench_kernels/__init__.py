"""Paged-attention kernels. Each `*_numba.py` file is a workbench page: what it computes, the shapes, the versions
that were tried with their figures, a plain reference, and the launcher. Nothing of kvbench is imported here.

numba is imported with the kernel files only, so that `use_cache` can be called first.
"""

from __future__ import annotations

from kvbench_kernels.cache import source_digest, use_cache
from kvbench_kernels.runtime import compiled_variants, set_threads, threading_layer

__all__ = ["compiled_variants", "set_threads", "source_digest", "threading_layer", "use_cache"]
