"""What is known of other servers' flags: facts and their documents, as data in `server_flags/*.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from kvbench.errors import UsageError

SERVERS = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True, slots=True)
class Document:
    """Where a fact was read."""

    document: str
    url: str
    version: str


@dataclass(frozen=True, slots=True)
class Setting:
    """How a server is told one setting: by a flag, by `on`/`off` flags, or by a key of its configuration file.

    `values` translates KV dtypes ("bf16", or "fp8_e4m3 tensor" and "… token-head" by their scales). `needs` (`with`
    in the files) are flags that the setting takes beside its own. A size is given in `unit_bytes`; `counts` says of how
    many ranks.
    """

    sources: tuple[str, ...]
    flag: str | None = None
    key: str | None = None
    on: tuple[str, ...] | None = None
    off: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    least_capability: Mapping[str, float] = field(default_factory=dict)
    unit_bytes: int = 1
    is_whole: bool = True
    counts: str = ""
    unless_chunked: str | None = None
    power_of_two_above: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Backend:
    """An attention backend, and what it takes. Empty `block_sizes` and `kv_dtypes` mean that no limit is known."""

    name: str
    kind: str
    capability: tuple[float, float]
    source: str
    block_sizes: tuple[int, ...] = ()
    multiple_of: int = 1
    kv_dtypes: tuple[str, ...] = ()
    reads_token_by_token: bool = False

    def serves(self, kind: str, capability: float | None) -> bool:
        """Whether it is for this kind of attention ("standard" or "latent") and GPU; None is any GPU."""
        low, high = self.capability
        return self.kind in (kind, "any") and (capability is None or low <= capability <= high)

    def objection(self, block_size: int, kv_dtype: str | None) -> str | None:
        """Why it does not take these settings; None where nothing is known against them."""
        if self.block_sizes and block_size not in self.block_sizes:
            return f"takes blocks of {', '.join(map(str, self.block_sizes))}"
        if block_size % self.multiple_of:
            return f"takes multiples of {self.multiple_of}"
        if kv_dtype is not None and self.kv_dtypes and kv_dtype not in self.kv_dtypes:
            return f"takes KV in {', '.join(self.kv_dtypes)}"
        return None


@dataclass(frozen=True, slots=True)
class Order:
    """The backends that a server tries, first to last, on GPUs of these capabilities."""

    kind: str
    capability: tuple[float, float]
    backends: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Server:
    """One server's facts. `rules` names what it checks → the document, `without` says why a setting has no flag."""

    name: str
    title: str
    command: str
    sources: Mapping[str, Document]
    settings: Mapping[str, Setting]
    backends: tuple[Backend, ...] = ()
    orders: tuple[Order, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    config_flag: str | None = None
    config_file: str | None = None


@cache
def server(name: str) -> Server:
    """The facts of one of `SERVERS`; `UsageError` for another name."""
    if name not in SERVERS:
        raise UsageError(f"no flags are known for {name!r}", hint=f"one of {', '.join(SERVERS)}")
    text = files("kvbench.analysis.advice").joinpath("server_flags", f"{name}.toml").read_text(encoding="utf-8")
    facts = tomllib.loads(text)
    return Server(
        name=name,
        sources={key: Document(**found) for key, found in facts.pop("sources").items()},
        settings={key: Setting(**_frozen(found)) for key, found in facts.pop("settings").items()},
        backends=tuple(Backend(**_frozen(found)) for found in facts.pop("backends", [])),
        orders=tuple(Order(**_frozen(found)) for found in facts.pop("orders", [])),
        **facts,
    )


def _frozen(found: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {"needs" if key == "with" else key: value for key, value in found.items()}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in renamed.items()}
