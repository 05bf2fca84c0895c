"""The Triton kernels by name, and the configurations that each can have for a shape."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from kvbench.errors import CannotRunError, UsageError

if TYPE_CHECKING:
    from kvbench_kernels.specs import CompileSpec, KernelShape

PAGES = {
    "decode": "kvbench_kernels.decode_triton",
    "prefill": "kvbench_kernels.prefill_triton",
    "mla": "kvbench_kernels.mla_triton",
    "copy": "kvbench_kernels.copy_triton",
    "write": "kvbench_kernels.write_triton",
}
"""Name → module."""
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class Page(Protocol):
    """What a kernel's module offers to whoever tunes it. A configuration is a frozen dataclass, `Config`."""

    DEFAULT: Any
    SPACE: Mapping[str, Sequence[Any]]

    def Config(self, **fields: Any) -> Any: ...  # noqa: N802

    def allowed(self, shape: KernelShape, config: Any) -> str | None: ...

    def compile_spec(self, shape: KernelShape, config: Any) -> CompileSpec: ...


def refuse_unknown_page(name: str) -> None:
    """`UsageError` for what is no kernel's name: nothing that a user says is imported."""
    if name not in PAGES:
        close = difflib.get_close_matches(name, PAGES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(PAGES)}"
        raise UsageError(f"no Triton kernel {name!r}", hint=hint)


def load_page(name: str) -> Page:
    """A kernel's page by its name, or by its module's, which only code may say. `UsageError` for an unknown one,
    `CannotRunError` where what it needs is not installed."""
    if not _MODULE.fullmatch(name):
        refuse_unknown_page(name)
    module = PAGES.get(name, name)
    try:
        page = import_module(module)
    except ImportError as error:
        raise CannotRunError(
            f"kernel {name} cannot be loaded: {error}", hint="the kernels need triton (Linux)"
        ) from None
    if not _has_what_a_page_has(page):
        raise UsageError(f"module {name} is no kernel's page", hint=f"one of {', '.join(PAGES)}")
    return cast("Page", page)


def _has_what_a_page_has(page: Any) -> bool:
    return all(hasattr(page, name) for name in ("Config", "DEFAULT", "SPACE", "allowed", "compile_spec"))


def default_of(page: Page, shape: KernelShape) -> Any:
    """What runs this shape where nothing was tuned: the page's `default_for` where it has one, else its `DEFAULT`."""
    choose = getattr(page, "default_for", None)
    return choose(shape) if choose is not None else page.DEFAULT


def configurations(page: Page, shape: KernelShape) -> list[tuple[Any, str]]:
    """Every configuration of the space in order, the default among them, each with why it cannot be ("" where it can).

    `UsageError` where none can: the shape is impossible for this kernel.
    """
    found = [
        page.Config(**dict(zip(page.SPACE, values, strict=True))) for values in itertools.product(*page.SPACE.values())
    ]
    default = default_of(page, shape)
    if default not in found:
        found.insert(0, default)
    judged = [(config, page.allowed(shape, config) or "") for config in found]
    if all(reason for _, reason in judged):
        refused = next(reason for config, reason in judged if config == default)
        raise UsageError(
            f"no configuration fits this shape: {refused}", hint="see --heads, --head-dim and --block-size"
        )
    return judged


def fields_of(config: Any) -> dict[str, Any]:
    """A configuration as plain values."""
    return asdict(config)
