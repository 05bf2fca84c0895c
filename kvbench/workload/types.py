"""A finished workload, and the account of how it came about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvbench.workload.request import Request

Sharing = Literal["none", "synthetic", "recorded"]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What was read, dropped, clipped and scaled; `rows_read == rows_kept + sum(dropped.values())` (M56)."""

    source: str
    """The trace's path, or "synthetic"."""
    format: str
    sha256: str | None = None
    """Of the file's bytes; None for a synthetic workload."""
    rows_read: int = 0
    rows_kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason → rows."""
    clipped_inputs: int = 0
    """Requests cut to `max_input_tokens`."""
    clipped_outputs: int = 0
    """Requests cut to `max_output_tokens`."""
    clipped_draws: dict[str, int] = field(default_factory=dict)
    """Drawn lengths moved to the `min` or `max` of their distribution."""
    drawn_outputs: int = 0
    """Requests whose trace records no output length, so that it was drawn."""
    out_of_order: int = 0
    """Rows that stood behind a later one in the file and were sorted."""
    over_context: int = 0
    """Requests longer than the model's context: they stay, and the engine rejects them."""
    limit: int | None = None
    scale_time: float = 1.0
    scale_tokens: str = "1"
    sharing: Sharing = "none"
    sharing_block_tokens: int | None = None
    """Size, after scaling, of the blocks by which a trace records its sharing."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival; a request's `after` always stands before it."""

    requests: tuple[Request, ...]
    report: ImportReport
    digest: str
    """sha256 over the seed and every field of every request."""
    seed: int
    clients: int | None = None
    """Closed loop: so many clients take the requests in this order, each its next one when its last has ended."""

    @property
    def last_arrival_s(self) -> float:
        """When the last request arrives, at the earliest; seconds from the start."""
        return max((request.arrival_s for request in self.requests), default=0.0)

    def sharing_label(self, block_size: int) -> Sharing:
        """How far the sharing seen at this block size was recorded (M55).

        A trace says which of its own blocks are equal and no more, so only multiples of them keep "recorded";
        any other size would see sharing that the importer made up.
        """
        unit = self.report.sharing_block_tokens
        if self.report.sharing == "recorded" and unit is not None and block_size % unit != 0:
            return "synthetic"
        return self.report.sharing
