"""Settings of a workload: what requests arrive, when, and what they share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from kvbench.spec.fields import MAX_COUNT, Count, Ratio, Settings

MAX_ZIPF = 1 << 22
"""Values of a zipf distribution: each has a weight in memory."""


class Lengths(Settings):
    """A distribution of token counts."""

    kind: Literal["constant", "uniform", "lognormal", "zipf", "empirical"] = "constant"
    """`constant` value · `uniform` low…high · `lognormal` by median and sigma · `zipf` low…high, length low + r with
    weight (r + 1)^−exponent · `empirical` drawn from `values` by `weights`."""

    value: Count | None = None
    """`constant`: tokens."""
    low: Count | None = None
    """`uniform`, `zipf`: smallest."""
    high: Count | None = None
    """`uniform`, `zipf`: largest, included."""
    exponent: float | None = Field(default=None, ge=0, le=100)
    """`zipf`: how fast longer ones become rare; 0 is uniform."""
    median: float | None = Field(default=None, gt=0, le=MAX_COUNT)
    """`lognormal`: median tokens."""
    sigma: float | None = Field(default=None, ge=0, le=5)
    """`lognormal`: standard deviation of the logarithm."""
    values: list[Count] | None = Field(default=None, min_length=1)
    """`empirical`: token counts."""
    weights: list[Annotated[float, Field(ge=0)]] | None = None
    """`empirical`: weight of each value; equal when left out."""
    min: Count | None = None
    """Draws below are clipped up to it, and counted."""
    max: Count | None = None
    """Draws above are clipped down to it, and counted."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        for name in LENGTH_NUMBERS[self.kind]:
            if getattr(self, name) is None:
                yield name, f'lengths of kind "{self.kind}" need {" and ".join(LENGTH_NUMBERS[self.kind])}'
        if self.low is not None and self.high is not None and self.low > self.high:
            yield "low", f"low {self.low} is above high {self.high}"
        if self.kind == "zipf" and self.low and self.high and self.high - self.low >= MAX_ZIPF:
            yield "high", f"zipf lengths span {self.high - self.low + 1:,} values: use at most {MAX_ZIPF:,}"
        if self.min is not None and self.max is not None and self.min > self.max:
            yield "min", f"min {self.min} is above max {self.max}"
        if self.weights is not None:
            yield from self._weights_conflicts(self.weights)

    def _weights_conflicts(self, weights: list[float]) -> Iterator[tuple[str, str]]:
        if len(weights) != len(self.values or ()):
            yield "weights", f"{len(weights)} weights for {len(self.values or ())} values: give one weight per value"
        elif not 0 < sum(weights) < math.inf:
            yield "weights", "weights must have a positive, finite sum"


LENGTH_NUMBERS: dict[str, tuple[str, ...]] = {
    "constant": ("value",),
    "uniform": ("low", "high"),
    "lognormal": ("median", "sigma"),
    "zipf": ("low", "high", "exponent"),
    "empirical": ("values",),
}
"""The numbers that each kind of length distribution must have."""


def _lengths(value: Any) -> Any:
    """A bare number is a constant length."""
    return {"kind": "constant", "value": value} if isinstance(value, int) and not isinstance(value, bool) else value


LengthsField = Annotated[
    Lengths,
    BeforeValidator(_lengths),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_COUNT}, Lengths.model_json_schema()],
            "$comment": 'a token count, or a table such as { kind = "lognormal", median = 150, sigma = 0.6 }',
        }
    ),
]


OPEN_LOOP = ("poisson", "gamma", "constant")
"""Kinds of arrival that have a rate."""

MAX_THINK_S = 1e6


class Arrival(Settings):
    """When requests arrive."""

    kind: Literal["all-at-once", "poisson", "gamma", "constant", "closed-loop", "recorded"] = "all-at-once"
    """`gamma` is Poisson with a burstiness. `closed-loop`: `clients` clients, each of which sends its next request (or
    begins its next session) `think_time_s` after the end of the one before. `recorded` uses the trace's timestamps."""
    rate: float | None = Field(default=None, gt=0)
    """`poisson`, `gamma`, `constant`: requests (or sessions) per second."""
    burstiness: float = Field(default=1.0, ge=0.05, le=20)
    """`gamma`: coefficient of variation of the gaps; 1 is Poisson, above it requests come in bursts."""
    clients: Count | None = None
    """`closed-loop`: how many."""
    think_time_s: float = Field(default=0.0, ge=0, le=MAX_THINK_S)
    """`closed-loop`: mean seconds between an answer and the client's next request."""
    think: Literal["constant", "exponential"] = "constant"
    """`closed-loop`: how think times are spread around their mean."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        if self.kind in OPEN_LOOP and self.rate is None:
            yield "kind", f'kind = "{self.kind}" needs rate, requests per second'
        if self.kind == "closed-loop" and self.clients is None:
            yield "kind", 'kind = "closed-loop" needs clients, how many send requests'


class SharedPrefixes(Settings):
    """System prompts shared by groups of requests, drawn by a Zipf law."""

    groups: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Number of different prefixes; 0 turns sharing off."""
    tokens: Count = 256
    """Length of each prefix; comes in front of `input_tokens`."""
    zipf: float = Field(default=1.0, ge=0, le=100)
    """Exponent of the popularity law; 0 makes all groups equally likely."""
    shots: int = Field(default=0, ge=0, le=10_000)
    """Few-shot examples that follow the prefix: each session takes the first k of its
    group's, k drawn from 0 to this."""
    shot_tokens: Count = 64
    """Length of each example."""
    tenants: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Sessions are dealt to so many tenants, whose requests share nothing with each other's (a salt each); 0: one."""


class Documents(Settings):
    """Retrieved documents (RAG): each session's first prompt quotes some of a corpus, in an order of its own."""

    corpus: int = Field(default=0, ge=0, le=MAX_COUNT)
    """How many different documents there are; 0 turns it off."""
    per_request: int = Field(default=4, ge=1, le=1_000)
    """How many a prompt quotes."""
    tokens: Count = 256
    """Length of each."""
    zipf: float = Field(default=1.0, ge=0, le=100)
    """Exponent of their popularity."""


class Sessions(Settings):
    """Multi-turn conversations: each turn's prompt is the whole conversation so far plus new tokens."""

    turns: Count = 1
    """Turns per session; `requests` counts turns, not sessions."""
    think_time_s: float = Field(default=0.0, ge=0, le=MAX_THINK_S)
    """Mean seconds between an answer and the user's next turn."""
    think: Literal["constant", "exponential"] = "constant"
    """How think times are spread around their mean."""


class Sampling(Settings):
    """How the next token is chosen."""

    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    top_k: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the likeliest tokens up to this mass."""
    n: int = Field(default=1, ge=1, le=65_536)
    """Outputs per request, each with random numbers of its own; the prompt is computed and held once."""
    beams: int = Field(default=1, ge=1, le=1024)
    """Beam search with so many beams, which share their blocks until they part; 1 is none."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        if self.n > 1 and self.temperature == 0:
            yield "n", "n greedy outputs are n times the same: set temperature above 0"
        if self.beams > 1 and self.temperature > 0:
            yield "beams", "beam search keeps the likeliest outputs and draws none: set temperature = 0"


class WorkloadSettings(Settings):
    """Where the requests come from."""

    source: Literal["synthetic", "trace"] = "synthetic"
    """`synthetic` draws them; `trace` reads a recorded file."""
    requests: int = Field(default=32, ge=1, le=100_000_000)
    """`synthetic`: how many."""
    input_tokens: LengthsField = Lengths(kind="constant", value=128)
    """`synthetic`: prompt lengths (of the new tokens in a turn, and beyond the shared prefix)."""
    output_tokens: LengthsField = Lengths(kind="constant", value=32)
    """Output lengths; used by a trace only when it records none."""
    arrival: Arrival = Arrival()
    """When they arrive."""
    prefix: SharedPrefixes = SharedPrefixes()
    """`synthetic`: shared system prompts."""
    documents: Documents = Documents()
    """`synthetic`: retrieved documents, between shared prefix and new tokens."""
    sessions: Sessions = Sessions()
    """`synthetic`: conversations."""
    outputs: Literal["forced", "sampled"] = "forced"
    """`forced`: the model runs and samples, then the workload's own output ids are appended, so that every case
    serves the very same tokens; `sampled`: the model's tokens are kept."""
    sampling: Sampling = Sampling()
    """How the next token is chosen."""
    priorities: list[Annotated[float, Field(ge=0)]] = Field(default=[1.0], min_length=1, max_length=1000)
    """Shares of requests in priority class 0, 1, 2 …; higher classes are more important. Turns of a session share
    theirs; a trace's own priorities win."""
    trace: str | None = None
    """`trace`: the file's path."""
    format: Literal["auto", "azure", "mooncake", "bailian", "burstgpt", "vidur", "jsonl"] = "auto"
    """`trace`: the file's format; `auto` looks at its first lines."""
    limit: Count | None = None
    """`trace`: only the first so many requests."""
    scale_time: float = Field(default=1.0, gt=0)
    """`trace`: arrival times are multiplied by this; 0.5 is twice the load."""
    scale_tokens: Ratio = 1.0
    """`trace`: lengths and hash blocks are multiplied by this together, as in `"1/16"`."""
    max_input_tokens: Count | None = None
    """Longer prompts are clipped, counted and reported."""
    max_output_tokens: Count | None = None
    """Longer outputs are clipped, counted and reported."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of lengths, arrivals and token ids."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        if self.source == "synthetic" and self.arrival.kind == "recorded":
            yield "arrival", 'arrival.kind = "recorded" needs source = "trace"'
        if not 0 < sum(self.priorities) < math.inf:
            yield "priorities", "priorities must have a positive, finite sum"
        if self.source == "synthetic" and self.trace is not None:
            yield "trace", 'a trace file needs source = "trace"'
        if self.outputs == "forced" and (self.sampling.n > 1 or self.sampling.beams > 1):
            several = "n samples" if self.sampling.n > 1 else "beams"
            yield "outputs", f'forced outputs leave {several} nothing to choose: set outputs = "sampled"'
