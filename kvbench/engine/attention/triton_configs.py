"""How an attention kernel of a GPU is launched: its page's configuration and its splits, from tuned fields.

Kernels are imported when they are asked for: this file needs neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench_kernels.specs import KernelShape

SPLITS = "splits"
"""The field of a tuned configuration that is no part of a page's `Config`"""
MOST_SPLITS = 1024


@dataclass(frozen=True, slots=True)
class Launch:
    """`config` None: the page's default for the shape. `splits` 0: as many as the decode page's rule makes of batch,
    context and device."""

    config: Any = None
    splits: int = 0

    def splits_for(self, batch: int, query_heads: int, kv_heads: int, seen: int, processors: int) -> int:
        """Of a decode of so many sequences whose longest sees so many tokens."""
        from kvbench_kernels import decode_triton

        if self.splits:
            return self.splits
        sizes = (batch, query_heads, kv_heads, seen, processors)
        if isinstance(self.config, decode_triton.Config):
            return decode_triton.splits_for(*sizes, self.config)
        return decode_triton.splits_for(*sizes)


def launch_of(page: str, fields: Mapping[str, Any], shape: KernelShape) -> Launch:
    """Tuned fields for the kernel of a module, checked; `UsageError` for what the kernel cannot run so."""
    kernel = import_module(page)
    values = dict(fields)
    splits = values.pop(SPLITS, 0)
    named = f"configuration {dict(fields)} of {page.rpartition('.')[2]}"
    if any(type(value) is not int for value in (splits, *values.values())) or not 0 <= splits <= MOST_SPLITS:
        raise UsageError(f"{named}: fields are whole numbers, splits at most {MOST_SPLITS}", hint="tune again")
    try:
        config = kernel.Config(**values)
    except TypeError as error:
        raise UsageError(f"{named}: {error}", hint="tune again") from None
    if reason := kernel.allowed(shape, config):
        raise UsageError(f"{named}: {reason}", hint="tune again")
    return Launch(config, splits)
