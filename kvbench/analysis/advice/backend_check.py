"""What the attention backends of another server would object to in a block size and a KV dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.analysis.advice.servers import Backend, Server


@dataclass(frozen=True, slots=True)
class Asked:
    """`kv_dtype` by the server's own name, None where it has none; `capability` None is any GPU."""

    block_size: int
    kv_dtype: str | None
    kind: str
    capability: float | None

    def __str__(self) -> str:
        blocks = f"blocks of {self.block_size} tokens"
        return blocks if self.kv_dtype is None else f"{blocks} in {self.kv_dtype}"


def backend_warnings(server: Server, asked: Asked) -> list[str]:
    """Sentences; none where nothing that is known speaks against it."""
    here = [backend for backend in server.backends if backend.serves(asked.kind, asked.capability)]
    against = {name: _against(name, here, asked) for name in dict.fromkeys(backend.name for backend in here)}
    order = [name for name in _order(server, asked) if name in against]
    willing = [name for name, why in against.items() if why is None or why.endswith(_ONLY)]
    found = []
    if against and not willing:
        every = "; ".join(f"{name} {why}" for name, why in against.items())
        found.append(f"no attention backend of {server.title} is known to take {asked}: {every}")
    elif order and against[order[0]]:
        instead = next((f" and falls to {name}" for name in order if name in willing), "")
        found.append(
            f"{server.title} does not use its first choice for {asked}{instead}: {order[0]} {against[order[0]]}"
        )
    elif not order and any(against.values()):
        told = "; ".join(f"{name} {why}" for name, why in against.items() if why)
        found.append(f"not every attention backend of {server.title} takes {asked}: {told}")
    return found + _reading(here, willing, order)


_ONLY = "only"


def _against(name: str, here: list[Backend], asked: Asked) -> str | None:
    """Why a backend does not take what is asked; it may be known by several entries, one for each kind of GPU."""
    entries = [backend for backend in here if backend.name == name]
    whys = [backend.objection(asked.block_size, asked.kv_dtype) for backend in entries]
    if None not in whys:
        return whys[0]
    ranges = [f"{b.capability[0]:g}–{b.capability[1]:g}" for b, why in zip(entries, whys, strict=True) if why is None]
    return None if all(why is None for why in whys) else f"takes it on compute capability {', '.join(ranges)} {_ONLY}"


def _order(server: Server, asked: Asked) -> tuple[str, ...]:
    """The backends that the server tries on this GPU, none where the GPU or its order is not known."""
    capability = asked.capability
    if capability is None:
        return ()
    orders = (order for order in server.orders if order.kind == asked.kind)
    return next((o.backends for o in orders if o.capability[0] <= capability <= o.capability[1]), ())


def _reading(here: list[Backend], willing: list[str], order: list[str]) -> list[str]:
    first = next((name for name in order if name in willing), None)
    readers = [b.name for b in here if b.reads_token_by_token and b.name in willing and first in (None, b.name)]
    if not readers:
        return []
    return [
        f"KV is read token by token, whatever the block, by {' and '.join(readers)}: there the kernel times measured "
        "here do not carry over, only capacity and prefix hits do"
    ]
