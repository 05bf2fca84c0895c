"""Known devices by what people call them."""

from __future__ import annotations

import re
from difflib import get_close_matches

from kvbench.devices.facts import Device
from kvbench.devices.table import DEVICES
from kvbench.errors import UsageError
from kvbench.units import format_bytes, parse_bytes


def known_device(name: str) -> Device:
    """A device by name or alias, case and punctuation ignored, or by a bare size such as `24GiB`.

    `UsageError` with the nearest names otherwise.
    """
    by_key = {_key(alias): device for device in DEVICES for alias in (device.name, *device.aliases)}
    key = _key(name)
    found = by_key.get(key)
    if found is not None:
        return found
    if name.strip()[:1].isdigit():
        return anonymous_device(parse_bytes(name))
    near = [by_key[k].name for k in get_close_matches(key, by_key, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"known: {', '.join(device_names())}."
    raise UsageError(f"unknown GPU {name!r}", hint=f"{hint} A size works too, as in --gpu 24GiB")


def anonymous_device(memory_bytes: int) -> Device:
    """A device of which only the memory is known."""
    if memory_bytes <= 0:
        raise UsageError(f"a device memory of {memory_bytes} bytes cannot hold a model", hint="a size, as in 24GiB")
    return Device(f"a device with {format_bytes(memory_bytes)}", "any", memory_bytes)


def device_names() -> tuple[str, ...]:
    """Names of the known devices, in the order of the table."""
    return tuple(device.name for device in DEVICES)


def _key(name: str) -> str:
    """`NVIDIA GeForce RTX 4090` and `rtx-4090` are the same card."""
    return re.sub(r"nvidia|geforce|amd|instinct|tesla|[^a-z0-9]", "", name.lower())
