"""NVIDIA's management library, read so that nothing it does can stop a benchmark.

The library may be absent, may have no driver, may refuse single readings, and may vanish between two of them: each
reading that fails is None.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_DEVICES = 1024
CORES_PER_SM = {"7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.7": 128, "8.9": 128, "9.0": 128}
"""CUDA cores of one SM by compute capability (CUDA C++ programming guide); 128 from 9.0 on."""


class Nvml:
    """An open connection to the library. `module` is `pynvml`, or what a test puts in its place."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def read(self, name: str, *arguments: Any) -> Any:
        """One reading by the library's own function name; None when it fails or does not exist."""
        try:
            return _plain(getattr(self._module, name)(*arguments))
        except Exception:  # the library raises its own error family, ctypes errors, and AttributeError when too old
            return None

    def constant(self, name: str) -> Any:
        """A constant of the library, None where this version lacks it."""
        return getattr(self._module, name, None)

    def handles(self) -> list[Any]:
        """One handle per GPU that answers."""
        count = _whole(self.read("nvmlDeviceGetCount")) or 0
        found = [self.read("nvmlDeviceGetHandleByIndex", index) for index in range(min(count, MOST_DEVICES))]
        return [handle for handle in found if handle is not None]

    def memory_bytes(self, handle: Any) -> tuple[int | None, int | None]:
        """Total and used."""
        memory = self.read("nvmlDeviceGetMemoryInfo", handle)
        return _whole(getattr(memory, "total", None)), _whole(getattr(memory, "used", None))

    def compute_capability(self, handle: Any) -> str | None:
        found = self.read("nvmlDeviceGetCudaComputeCapability", handle)
        return f"{found[0]}.{found[1]}" if isinstance(found, tuple | list) and len(found) == 2 else None

    def sm_count(self, handle: Any) -> int | None:
        """SMs, from the number of CUDA cores: the library does not tell it for a whole GPU."""
        cores, capability = _whole(self.read("nvmlDeviceGetNumGpuCores", handle)), self.compute_capability(handle)
        if not cores or capability is None:
            return None
        return cores // CORES_PER_SM.get(capability, 128)


@contextmanager
def open_nvml(module: Any = None) -> Iterator[Nvml | None]:
    """The library for the time of the block, None where there is no library, driver or device."""
    library = module if module is not None else _import()
    nvml = _start(library)
    try:
        yield nvml
    finally:
        if nvml is not None:
            nvml.read("nvmlShutdown")


def _import() -> Any:
    try:
        import pynvml
    except Exception:  # a half-installed library fails in any way it likes
        return None
    return pynvml


def _start(library: Any) -> Nvml | None:
    if library is None:
        return None
    try:
        library.nvmlInit()
    except Exception:  # no driver, no permission, wrong library version: all mean that there is nothing to read
        return None
    return Nvml(library)


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
