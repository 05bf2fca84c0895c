"""A request being served: its tokens, its row of the block table, and how far its KV is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvbench.engine.keys import request_key
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.cache.content import Content
    from kvbench.cache.swap import Swapped
    from kvbench.engine.group import Group
    from kvbench.engine.job import Job


class Mark(NamedTuple):
    """What a timeline wants to know of a request: a piece of its prompt was computed, or its blocks were taken away."""

    what: Literal["piece", "recompute", "swap"]
    at_s: float
    """Start of the schedule that decided it."""
    tokens: int = 0
    """Of a piece."""


@dataclass(slots=True, eq=False)
class Sequence:
    """Positions of one sequence, as half-open ranges:

        [0, input)        the prompt
        [input, length)   generated tokens; a preemption keeps them
        [0, computed)     K and V are in its blocks
        [0, held)         slots were asked for; computed ≤ held
        [0, high_water)   was computed once, before the last preemption: computing it again is recomputation

    While it decodes, exactly the last known token is not computed yet. A row is held from admission to release.
    """

    job: Job
    sample: int = 0
    group: Group | None = None
    """The request's other sequences, where it has several."""
    content: Content = field(init=False)
    random_key: int = field(init=False)
    forced: list[int] | None = field(init=False)
    row: int | None = None
    ticket: int | None = None
    """Its place in the queue by when it joined; kept over preemptions"""
    is_decoding: bool = False
    prefilled: int = 0
    """Computed tokens while the prefill runs."""
    held: int = 0
    high_water: int = 0
    first_scheduled_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    cached_tokens: int | None = None
    """Hits of the first admission; None before it."""
    preemptions: int = 0
    passed_over: int = 0
    """Admissions of requests that joined the queue behind it, while it waited"""
    recomputed_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    peak_blocks: int = 0
    is_loading: bool = False
    """Has a row, but not all of its blocks are there, or not yet a seat"""
    swapped: Swapped | None = None
    """Where its blocks are while it waits, if not nowhere"""
    finish_reason: str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        job = self.job
        self.content = job.content()
        self.random_key = request_key(job.seed, job.request_id, self.sample)
        self.forced = None if job.forced is None else job.forced.tolist()

    @property
    def request_id(self) -> int:
        return self.job.request_id

    @property
    def order(self) -> tuple[float, int, int]:
        """First come, first served; ties by request id (E41), then by sample."""
        return (self.job.arrival_s, self.job.request_id, self.sample)

    @property
    def seats(self) -> int:
        """Seats that it takes: those of its whole group while it stands for it."""
        return 1 if self.group is None else self.group.seats

    @property
    def together(self) -> list[Sequence]:
        """Those who lose their blocks when it does: all beams of a search."""
        group = self.group
        return [self] if group is None or group.search is None or not group.is_spread else group.members

    @property
    def samplers(self) -> list[Sequence]:
        """Who samples a first token after its prefill."""
        group = self.group
        return [self] if group is None or group.is_spread or group.search is not None else group.members

    @property
    def table_row(self) -> int:
        """The row of a seated sequence."""
        if self.row is None:
            raise InternalError(f"request {self.request_id} holds no blocks")
        return self.row

    @property
    def length(self) -> int:
        """Known tokens: prompt and generated."""
        return self.content.length

    @property
    def output_tokens(self) -> int:
        return len(self.token_times_s)

    @property
    def output(self) -> list[int]:
        """The generated tokens."""
        tokens: list[int] = self.content.tokens[len(self.job.prompt) :].tolist()
        return tokens

    @property
    def computed(self) -> int:
        return self.length - 1 if self.is_decoding else self.prefilled

    @property
    def missing(self) -> int:
        """Tokens whose K and V are still to be computed before the next one can be sampled."""
        return self.length - self.computed

    def sit_down(self, row: int, cached_tokens: int, held: int) -> None:
        """Admitted: a row, and what the prefix cache spares it."""
        self.row = row
        self.prefilled = cached_tokens
        self.held = max(held, cached_tokens)
        if self.cached_tokens is None:
            self.cached_tokens = cached_tokens

    def advance(self, count: int) -> None:
        """A prefill piece of `count` tokens is computed."""
        again = min(self.prefilled + count, self.high_water) - self.prefilled
        self.recomputed_tokens += max(again, 0)
        self.prefilled += count

    def append(self, token: int, now_s: float) -> None:
        """One output token, produced at `now_s`."""
        self.content.append(token)
        self.token_times_s.append(now_s)

    def append_several(self, tokens: list[int], now_s: float) -> int:
        """Output tokens of one step, which share its time; what comes after a stop token is dropped. How many stay."""
        if self.forced is not None:
            tokens = self.forced[self.output_tokens : self.output_tokens + len(tokens)]
        stops = self.job.stop_tokens
        if stops:
            ends = [at for at, token in enumerate(tokens) if token in stops]
            tokens = tokens[: ends[0] + 1] if ends else tokens
        self.content.extend(tokens)
        self.token_times_s += [now_s] * len(tokens)
        return len(tokens)

    def choose(self, sampled: int) -> int:
        """The token that is really appended: the forced one where there is one."""
        return sampled if self.forced is None else self.forced[len(self.token_times_s)]

    def end(self) -> bool:
        """Whether the newest token ends the output; notes why."""
        if int(self.content.tokens[-1]) in self.job.stop_tokens:
            self.finish_reason = "stop"
        elif self.output_tokens >= self.job.max_tokens:
            self.finish_reason = "length"
        return self.finish_reason is not None

    def join(self, row: int, root: Sequence) -> None:
        """Forked from the root, whose prompt is computed: a row, and all that the root has come to so far. What it hits
        when it is admitted after a preemption is no first look-up any more (E19)."""
        self.row = row
        self.prefilled, self.held = root.prefilled, root.held
        self.first_scheduled_s = root.first_scheduled_s
        self.cached_tokens = root.cached_tokens

    def forget_output(self) -> None:
        """Back to the prompt."""
        self.content.truncate(len(self.job.prompt))
        self.token_times_s.clear()

    def stand_up(self) -> None:
        """Preempted or finished: row and progress are gone, tokens stay (E17, E45)."""
        self.high_water = max(self.high_water, self.computed)
        self.row = None
        self.is_decoding = self.is_loading = False
        self.prefilled = 0
        self.held = 0
