"""Arrays whose last byte lies before an unreadable page: a read beyond them ends the process. For child processes."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_KEPT: list[Any] = []


def at_the_edge(array: NDArray[Any]) -> NDArray[Any]:
    """A copy with nothing readable behind it, for as long as the process lives."""
    pages = -(-array.nbytes // PAGE)
    memory = mmap.mmap(-1, (pages + 1) * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(memory, np.uint8)
    place = whole[pages * PAGE - array.nbytes : pages * PAGE].view(array.dtype).reshape(array.shape)
    place[...] = array
    guard = whole.ctypes.data + pages * PAGE
    if _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) != 0:
        raise OSError(ctypes.get_errno())
    _KEPT.append((memory, whole))
    return place


def tensor_at_the_edge(values: Any) -> Any:
    """The same for a torch tensor of any dtype."""
    import torch

    place = at_the_edge(values.contiguous().view(torch.uint8).numpy())
    return torch.from_numpy(place).view(values.dtype).view(values.shape)


def trip(place: NDArray[Any]) -> None:
    """Read one byte too far."""
    print(ctypes.string_at(place.ctypes.data + place.nbytes, 1))
