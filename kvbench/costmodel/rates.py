"""How fast a device is in practice: the coefficients of the cost model, all of them effective rates and overheads.

They come from a device's datasheet by documented factors (`roofline.py`), or from a file: a JSON object with
`format`, `version`, `name`, `source`, `rates` (every field of `Rates`) and `digest`, the sha256 over the rest, so that
a file that was changed by hand without saying so is noticed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvbench.digested import digest_of, read_json_object
from kvbench.errors import DataError, UsageError

FORMAT = "kvbench cost model"
VERSION = 1
WHAT = "cost model"
HINT = "docs/virtual-clock.md describes the file; without measure.cost_model the roofline of the device is used"


@dataclass(frozen=True, slots=True)
class Rates:
    """Effective rates of one device. Rates are per second and positive; overheads are seconds from 0 up."""

    fp32_flops: float
    """FLOP/s of matrix products with fp32 weights"""
    half_flops: float
    """FLOP/s of matrix products with fp16 or bf16 weights"""
    byte_flops: float
    """FLOP/s of matrix products with 8-bit weights"""
    attention_flops: float
    """FLOP/s of prefill attention"""
    weight_bytes: float
    """B/s at which weights are read"""
    kv_bytes: float
    """B/s at which attention reads, and a step writes, K and V"""
    copy_bytes: float
    """B/s of block copies within the device; each byte is read and written, and counted once"""
    host_bytes: float
    """B/s between device and host, one direction"""
    disk_bytes: float
    """B/s between host and disk, one direction"""
    step_s: float
    """Overhead of every step: scheduling, launch, sampling, the copy of the tokens"""
    layer_s: float
    """Overhead of every layer of a step: its kernel launches and what they cannot overlap"""
    sequence_s: float
    """Overhead per sequence of a step"""
    block_s: float
    """Overhead of following one block-table entry, per layer and KV head"""
    transfer_s: float
    """Overhead of each list of block copies"""


@dataclass(frozen=True, slots=True)
class NamedRates:
    """Rates with where they are from: `roofline`, or a file's name and digest."""

    rates: Rates
    label: str
    source: str

    @property
    def digest(self) -> str:
        """sha256 of the numbers."""
        return digest_of(asdict(self.rates))

    def facts(self) -> dict[str, Any]:
        """What a manifest keeps of it."""
        return {"rates": asdict(self.rates)}


_OVERHEADS = ("step_s", "layer_s", "sequence_s", "block_s", "transfer_s")


def write_rates(path: Path, rates: Rates, *, name: str, source: str) -> None:
    """A cost-model file that `read_rates` accepts."""
    content = {"format": FORMAT, "version": VERSION, "name": name, "source": source, "rates": asdict(rates)}
    path.write_text(json.dumps({**content, "digest": digest_of(content)}, indent=2) + "\n", encoding="utf-8")


def read_rates(path: str | Path) -> NamedRates:
    """Rates from a file. `UsageError` for what cannot be read or is no cost model, `DataError` for a wrong digest."""
    content = read_json_object(path, WHAT, HINT)
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise UsageError(f'{path} is not a "{FORMAT}" file of version {VERSION}', hint=HINT)
    problems = list(_problems(content))
    if problems:
        raise UsageError(f"{path}: {'; '.join(problems)}", hint=HINT)
    if content.get("digest") != digest_of(content):
        raise DataError(
            f"{path}: the digest does not match the content (it would be {digest_of(content)})",
            hint="the file was changed after it was written; put the right digest in if that was meant",
        )
    rates = Rates(**{key: float(value) for key, value in content["rates"].items()})
    return NamedRates(rates, f"{content['name']} ({content['digest'][:12]})", content["source"])


def _problems(content: dict[str, Any]) -> list[str]:
    found = [f"{key} is not a text" for key in ("name", "source") if not isinstance(content.get(key), str)]
    rates = content.get("rates")
    if not isinstance(rates, dict):
        return [*found, "rates is not an object"]
    known = [field.name for field in fields(Rates)]
    found += [f"rates.{key} is missing" for key in known if key not in rates]
    found += [f"rates.{key} is unknown" for key in rates if key not in known]
    return found + [text for key in known if key in rates and (text := _problem_of(key, rates[key]))]


def is_float(value: float) -> bool:
    """Whether a number of a JSON file is finite, as a float too: its whole numbers have no largest one."""
    return abs(value) <= sys.float_info.max


def _problem_of(key: str, value: Any) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not is_float(value):
        return f"rates.{key} is not a finite number"
    if value < 0 or (value == 0 and key not in _OVERHEADS):
        return f"rates.{key} is {value}, not {'from 0 up' if key in _OVERHEADS else 'above 0'}"
    return None
