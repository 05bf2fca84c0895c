"""What every stored form of KV makes of the same text: teacher forcing through the engine's paged path.

All settings go through the text together, chunk by chunk, so that the logits of full precision are compared where they
arise and never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvbench.analysis.divergence import Reference, TokenNumbers
from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.calibration import Observed, needs_scales, observed
from kvbench.engine.kvstore.scales import TensorScales
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.teacher import TeacherForced, blocks_for
from kvbench.errors import CannotRunError, DataError
from kvbench.geometry.memory import TOKEN_HEAD, pool_layout
from kvbench.measure.memory import free_memory_bytes
from kvbench.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from kvbench.cache.types import Int64s
    from kvbench.engine.model import Model

ROWS_AT_ONCE = 256
LOGITS_AT_ONCE = 1 << 23
"""Rows of a step, and numbers in its logits, that bound how many windows go side by side"""
MEMORY_SHARE = 0.25
Setting = tuple[str, str | None]
"""KV dtype and scales, None where it needs none"""
REFERENCE: Setting = ("fp32", None)


@dataclass(frozen=True, slots=True)
class Walk:
    """How the windows are read: blocks of `block_size` tokens, chunks of `chunk_tokens`, numbers from the token at
    position `first_target` on. `tell(share)` hears how far it is."""

    block_size: int
    chunk_tokens: int
    first_target: int
    tell: Callable[[float], None] = lambda share: None


@dataclass(slots=True)
class Taken:
    """`numbers` `[windows, tokens]` of a setting, or why there are none."""

    numbers: TokenNumbers | None
    error: str | None = None


def scales_of(
    model: Model, settings: Sequence[Setting], percentile: float, prompts: Int64s | None
) -> dict[Setting, TensorScales | None]:
    """Static scales for the settings that need them, all from one pass over windows `[n, tokens]` of text, or over
    foreign tokens where there are none."""
    seen: Observed | None = None
    found: dict[Setting, TensorScales | None] = dict.fromkeys(settings)
    for kv_dtype, kind in settings:
        if kind is not None and needs_scales(kv_dtype, kind):
            seen = seen or observed(model, prompts)
            found[kv_dtype, kind] = seen.scales(kv_dtype, kind, percentile)
    return found


def take_quality(
    model: Model, windows: NDArray[np.int64], settings: Mapping[Setting, TensorScales | None], walk: Walk
) -> dict[Setting, Taken]:
    """The numbers of every setting and of full precision, from windows `[windows, tokens]`. A setting whose logits are
    no numbers is given up, and says where.

    Raises `DataError` when they are none with KV in fp32, `CannotRunError` when one window needs more memory than is
    free."""
    forms: dict[Setting, TensorScales | None] = {REFERENCE: None, **settings}
    texts = _texts_at_once(model, windows.shape, list(forms), walk)
    teachers = {form: _teacher(model, form, scales, texts, windows.shape[1], walk) for form, scales in forms.items()}
    taken: dict[Setting, Taken] = {form: Taken(None) for form in forms}
    parts: dict[Setting, list[TokenNumbers]] = {form: [] for form in forms}
    for first in range(0, len(windows), texts):
        for form, numbers in _batch(teachers, windows[first : first + texts], first, taken, walk).items():
            parts[form].append(numbers)
        walk.tell(min(first + texts, len(windows)) / len(windows))
    for form, found in taken.items():
        if found.error is None:
            found.numbers = _joined(parts[form], 0, slice(walk.first_target - 1, None))
    return taken


def _batch(
    teachers: dict[Setting, TeacherForced],
    windows: NDArray[np.int64],
    first_window: int,
    taken: dict[Setting, Taken],
    walk: Walk,
) -> dict[Setting, TokenNumbers]:
    """Some windows from their first token to the last but one, by the settings that have not been given up."""
    parts: dict[Setting, list[TokenNumbers]] = {form: [] for form in teachers}
    last = windows.shape[1] - 1
    for start in range(0, last, walk.chunk_tokens):
        end = min(start + walk.chunk_tokens, last)
        given, targets = windows[:, start:end], windows[:, start + 1 : end + 1]
        reference: Reference | None = None
        for form, teacher in teachers.items():
            if taken[form].error is not None:
                continue
            logits = _on_host(teacher.forward(given, start))
            if (where := _not_finite(logits, given.shape)) is not None:
                _give_up(
                    taken,
                    form,
                    f"logits are not finite at position {start + where[1]} of window {first_window + where[0] + 1}",
                )
                continue
            if reference is None:
                reference = Reference(logits, np.ascontiguousarray(targets).reshape(-1))
            parts[form].append(_shaped(reference.judge(logits), given.shape))
    return {form: _joined(found, 1) for form, found in parts.items() if taken[form].error is None}


def _give_up(taken: dict[Setting, Taken], form: Setting, reason: str) -> None:
    if form == REFERENCE:
        raise DataError(
            f"with KV in fp32 the model's {reason}: there is nothing to compare with",
            hint="are the weights whole, and do their values fit --weight-dtype?",
        )
    taken[form].error = reason


def _not_finite(logits: NDArray[np.float32], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Row and column of the first such logits, of rows that stand for `shape`."""
    is_bad = ~np.isfinite(logits).all(axis=1)
    if not is_bad.any():
        return None
    row, column = np.unravel_index(int(is_bad.argmax()), shape)
    return int(row), int(column)


def _on_host(logits: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = logits.cpu().numpy()
    return found


def _shaped(numbers: TokenNumbers, shape: tuple[int, ...]) -> TokenNumbers:
    return TokenNumbers(
        numbers.kl_nats.reshape(shape), numbers.nll_nats.reshape(shape), numbers.is_same_top1.reshape(shape)
    )


def _joined(parts: list[TokenNumbers], axis: int, columns: slice = slice(None)) -> TokenNumbers:
    return TokenNumbers(
        np.concatenate([part.kl_nats for part in parts], axis)[:, columns],
        np.concatenate([part.nll_nats for part in parts], axis)[:, columns],
        np.concatenate([part.is_same_top1 for part in parts], axis)[:, columns],
    )


def _teacher(
    model: Model, form: Setting, scales: TensorScales | None, texts: int, tokens: int, walk: Walk
) -> TeacherForced:
    device = model.device
    attention = attention_backend("auto", device)
    blocks = _blocks(model, form, texts, tokens, walk)
    store = KVStore(
        model.geometry,
        form[0],
        walk.block_size,
        blocks,
        device=device,
        tensor_scales=scales,
        uses_triton=attention.stores_by_triton,
    )
    return TeacherForced(model, store, attention, texts, tokens)


def _blocks(model: Model, form: Setting, texts: int, tokens: int, walk: Walk) -> int:
    layout = pool_layout(model.geometry, form[0], walk.block_size, form[1] or TOKEN_HEAD)
    return blocks_for(len(layout.pieces), texts, tokens, walk.block_size)


def _texts_at_once(model: Model, shape: tuple[int, ...], forms: list[Setting], walk: Walk) -> int:
    """Windows that go side by side: by the rows of a step, the size of its logits, and the memory of their KV."""
    count, tokens = shape
    one = sum(
        _blocks(model, form, 1, tokens, walk)
        * pool_layout(model.geometry, form[0], walk.block_size, form[1] or TOKEN_HEAD).block_bytes
        for form in forms
    )
    free = _free_bytes(model.device)
    if one > free:
        raise CannotRunError(
            f"KV of one window of {tokens:,} tokens takes {format_bytes(one)} in {len(forms)} forms, and "
            f"{format_bytes(free)} are free",
            hint="lower --window-tokens, or measure fewer settings at a time",
        )
    rows = max(1, min(ROWS_AT_ONCE, LOGITS_AT_ONCE // model.geometry.vocab_size))
    return max(1, min(count, rows // min(walk.chunk_tokens, tokens), int(free * MEMORY_SHARE) // one))


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory_bytes("cpu")
