"""What can be tuned: a kernel with its space of configurations, its buffers, and what its output should be. Torch-free.

A new kernel is one more line in `TUNABLES`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.tune.space import Space, Value
    from kvbench_kernels.specs import CompileSpec, KernelShape

TUNABLES = {
    "decode_numba": "kvbench.tune.decode_cpu:DecodeNumba",
    "decode": "kvbench.tune.triton_tunable:DecodeTriton",
    "prefill": "kvbench.tune.triton_tunable:PrefillTriton",
    "mla": "kvbench.tune.triton_tunable:MlaTriton",
}
"""Name → where; all of a kernel's search lives behind it."""

Configuration = Mapping[str, "Value"]


class Prepared(Protocol):
    """Buffers of one shape on one device, in the process that launches.

    Batch 0 has the shape that is timed, further ones are edges (short, empty, ragged). `outputs` are the tensors that a
    launch of each batch writes, `expected` what should be in them, float64 on the host. Whoever checks fills an output
    with NaN first, so that what a kernel does not write is seen.
    """

    outputs: Sequence[Any]
    expected: Sequence[Any]
    bytes_per_call: int
    """Bytes that a call on batch 0 has to read and write"""

    def compile(self, configuration: Configuration) -> None:
        """Compile without touching the outputs, where that can be done; raises what the compiler raises."""
        ...

    def launch(self, configuration: Configuration, batch: int = 0) -> None:
        """One call; a GPU may still be at it when this returns."""
        ...


class Tunable(Protocol):
    """One kernel as the tuner sees it."""

    name: str
    page: str
    """Module of the kernel: with all of the kernel package that it imports, the source that a winner belongs to"""
    device: str
    """`cpu` or `cuda`: where it can be timed"""
    compiler: str
    """`numba` or `triton`"""

    def space(self, shape: KernelShape, threads: int) -> Space:
        """The configurations that this shape allows; `UsageError` when the kernel cannot do the shape at all.
        `threads`: CPU threads, of no matter on a GPU."""
        ...

    def default(self, shape: KernelShape) -> dict[str, Value]:
        """What runs where nothing was tuned; in the space."""
        ...

    def compile_spec(self, shape: KernelShape, configuration: Configuration) -> CompileSpec | None:
        """What is compiled, for a compiler that needs no device; None where there is no such."""
        ...

    def prepare(self, shape: KernelShape, device: str, seed: int) -> Prepared:
        """Buffers with seeded contents. `CannotRunError` when they do not fit."""
        ...


def refuse_unknown(name: str) -> None:
    """`UsageError` for what is no kernel's name: nothing that a user or a file says is imported."""
    if name not in TUNABLES:
        close = difflib.get_close_matches(name, TUNABLES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(TUNABLES)}"
        raise UsageError(f"no kernel {name!r} to tune", hint=hint)


def make_tunable(name: str) -> Tunable:
    """A kernel by its name, or by `module:Class`, which only code may say."""
    if ":" not in name:
        refuse_unknown(name)
    module, _, attribute = TUNABLES.get(name, name).partition(":")
    tunable: Tunable = getattr(import_module(module), attribute)()
    return tunable
