"""Block copies between places, decided by the books and carried out by whoever holds the bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

COPY_KINDS = {
    "demote": ("host", "disk"),
    "offload": ("device", "host"),
    "swap_out": ("device", "swap"),
    "store": ("device", "host"),
    "promote": ("host", "device"),
    "load": ("disk", "device"),
    "swap_in": ("swap", "device"),
    "copy": ("source", "destination"),
}
"""Kind of block copy → from where to where, in the order in which copies of one `Transfers` begin."""

MUST_BE_DONE = ("demote", "offload", "swap_out", "copy")
"""Kinds whose source is free, or whose destination is read, as soon as the step computes."""

ARRIVALS = ("promote", "load", "swap_in")
"""Kinds that a sequence waits for before it may be scheduled."""


@dataclass(slots=True)
class Transfers:
    """Block copies, pairs of source and destination, kind by kind; they begin in the order of `COPY_KINDS`.

    `demote` host → disk: a block that the host tier gives up; its bytes leave the host block at once (they are
    staged), the file may be written later. `offload` device → host: an evicted block. `swap_out` device → swap area: a
    preempted sequence. `store` device → host: a block that is complete and stays on the device. `promote` host →
    device, `load` disk → device, `swap_in` swap area → device: blocks that a sequence waits for. `copy` device →
    device, on write; when its source arrives by the same transfers, it follows it.

    Kinds of `MUST_BE_DONE` are complete before the step computes anything, the others whenever they are reported.
    Within one kind no destination is also a source. `…_keys` are digests of what is to be in a file on disk (E75).
    """

    demote_host: list[int] = field(default_factory=list)
    demote_disk: list[int] = field(default_factory=list)
    demote_keys: list[bytes] = field(default_factory=list)
    offload_device: list[int] = field(default_factory=list)
    offload_host: list[int] = field(default_factory=list)
    swap_out_device: list[int] = field(default_factory=list)
    swap_out_swap: list[int] = field(default_factory=list)
    store_device: list[int] = field(default_factory=list)
    store_host: list[int] = field(default_factory=list)
    promote_host: list[int] = field(default_factory=list)
    promote_device: list[int] = field(default_factory=list)
    load_disk: list[int] = field(default_factory=list)
    load_device: list[int] = field(default_factory=list)
    load_keys: list[bytes] = field(default_factory=list)
    swap_in_swap: list[int] = field(default_factory=list)
    swap_in_device: list[int] = field(default_factory=list)
    copy_source: list[int] = field(default_factory=list)
    copy_destination: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __len__(self) -> int:
        """Blocks to copy, of all kinds."""
        return (
            len(self.demote_host) + len(self.offload_device) + len(self.swap_out_device) + len(self.store_device)
            + len(self.promote_host) + len(self.load_disk) + len(self.swap_in_swap) + len(self.copy_source)
        )  # fmt: skip

    def pairs(self, kind: str) -> tuple[list[int], list[int]]:
        """The lists of sources and destinations of one kind; append to both."""
        source, destination = COPY_KINDS[kind]
        return getattr(self, f"{kind}_{source}"), getattr(self, f"{kind}_{destination}")

    def keys(self, kind: str) -> list[bytes] | None:
        """The list of digests of a kind that goes to disk or comes from there, else None."""
        return {"demote": self.demote_keys, "load": self.load_keys}.get(kind)

    def add(self, kind: str, here: list[int], there: list[int]) -> None:
        """More copies of one kind, without digests."""
        sources, destinations = self.pairs(kind)
        sources += here
        destinations += there

    def extend(self, other: Transfers) -> None:
        """Add the copies of another."""
        for kind in COPY_KINDS:
            for mine, more in zip(self.pairs(kind), other.pairs(kind), strict=True):
                mine += more
            keys, more_keys = self.keys(kind), other.keys(kind)
            if keys is not None and more_keys is not None:
                keys += more_keys
