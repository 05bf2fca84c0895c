"""Settings of a workload: what requests arrive, when, and what they share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from kvbench.spec.fields import Settings


class Lengths(Settings):
    """A distribution of token counts."""

    kind: Literal["constant", "uniform", "lognormal", "empirical"] = "constant"
    """`constant` value · `uniform` low…high · `lognormal` by median and sigma · `empirical` drawn from `values` by
    `weights`."""

    value: int | None = Field(None, ge=1)
    """`constant`: tokens."""
    low: int | None = Field(None, ge=1)
    """`uniform`: smallest."""
    high: int | None = Field(None, ge=1)
    """`uniform`: largest, included."""
    median: float | None = Field(None, gt=0)
    """`lognormal`: median tokens."""
    sigma: float | None = Field(None, ge=0, le=5)
    """`lognormal`: standard deviation of the logarithm."""
    values: list[int] | None = None
    """`empirical`: token counts."""
    weights: list[float] | None = None
    """`empirical`: weight of each value; equal when left out."""
    min: int | None = Field(None, ge=1)
    """Draws below are clipped up to it, and counted."""
    max: int | None = Field(None, ge=1)
    """Draws above are clipped down to it, and counted."""

    @model_validator(mode="after")
    def _kind_has_its_numbers(self) -> Lengths:
        needed = {
            "constant": ("value",),
            "uniform": ("low", "high"),
            "lognormal": ("median", "sigma"),
            "empirical": ("values",),
        }
        missing = [name for name in needed[self.kind] if getattr(self, name) is None]
        if missing:
            raise ValueError(f"lengths of kind {self.kind!r} need {' and '.join(missing)}")
        if self.kind == "uniform" and (self.low or 0) > (self.high or 0):
            raise ValueError(f"low {self.low} is above high {self.high}")
        if self.values is not None and (not self.values or any(v < 1 for v in self.values)):
            raise ValueError("values must be one or more positive token counts")
        if self.weights is not None and (
            len(self.weights) != len(self.values or ()) or any(w < 0 for w in self.weights) or sum(self.weights) <= 0
        ):
            raise ValueError("weights must be as many as values, none negative, not all zero")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


def _lengths(value: Any) -> Any:
    """A bare number is a constant length."""
    return {"kind": "constant", "value": value} if isinstance(value, int) and not isinstance(value, bool) else value


LengthsField = Annotated[Lengths, BeforeValidator(_lengths)]


class Arrival(Settings):
    """When requests arrive."""

    kind: Literal["all-at-once", "poisson", "recorded"] = "all-at-once"
    """`recorded` uses the trace's timestamps."""
    rate: float | None = Field(None, gt=0)
    """`poisson`: requests (or sessions) per second."""

    @model_validator(mode="after")
    def _poisson_has_a_rate(self) -> Arrival:
        if self.kind == "poisson" and self.rate is None:
            raise ValueError('arrival.kind = "poisson" needs arrival.rate, requests per second')
        return self


class SharedPrefixes(Settings):
    """System prompts shared by groups of requests, drawn by a Zipf law."""

    groups: int = Field(0, ge=0)
    """Number of different prefixes; 0 turns sharing off."""
    tokens: int = Field(256, ge=1)
    """Length of each prefix; comes in front of `input_tokens`."""
    zipf: float = Field(1.0, ge=0)
    """Exponent of the popularity law; 0 makes all groups equally likely."""


class Sessions(Settings):
    """Multi-turn conversations: each turn's prompt is the whole conversation so far plus new tokens."""

    turns: int = Field(1, ge=1)
    """Turns per session; `requests` counts turns, not sessions."""
    think_time_s: float = Field(0.0, ge=0)
    """Seconds between an answer and the user's next turn."""


class Sampling(Settings):
    """How the next token is chosen."""

    temperature: float = Field(0.0, ge=0)
    """0 is greedy."""
    top_k: int = Field(0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the likeliest tokens up to this mass."""


class WorkloadSettings(Settings):
    """Where the requests come from."""

    source: Literal["synthetic", "trace"] = "synthetic"
    """`synthetic` draws them; `trace` reads a recorded file."""
    requests: int = Field(32, ge=1, le=100_000_000)
    """`synthetic`: how many."""
    input_tokens: LengthsField = Lengths(kind="constant", value=128)
    """`synthetic`: prompt lengths (of the new tokens in a turn, and beyond the shared prefix)."""
    output_tokens: LengthsField = Lengths(kind="constant", value=32)
    """Output lengths; used by a trace only when it records none."""
    arrival: Arrival = Arrival()
    """When they arrive."""
    prefix: SharedPrefixes = SharedPrefixes()
    """`synthetic`: shared system prompts."""
    sessions: Sessions = Sessions()
    """`synthetic`: conversations."""
    outputs: Literal["forced", "sampled"] = "forced"
    """`forced`: the model runs and samples, then the workload's own output ids are appended, so that every case
    serves the very same tokens; `sampled`: the model's tokens are kept."""
    sampling: Sampling = Sampling()
    """How the next token is chosen."""
    trace: str | None = None
    """`trace`: the file's path."""
    format: Literal["auto", "azure", "mooncake", "vidur", "jsonl"] = "auto"
    """`trace`: the file's format; `auto` looks at its first lines."""
    limit: int | None = Field(None, ge=1)
    """`trace`: only the first so many requests."""
    scale_time: float = Field(1.0, gt=0)
    """`trace`: arrival times are multiplied by this; 0.5 is twice the load."""
    scale_tokens: Annotated[float, BeforeValidator(lambda v: _ratio(v))] = Field(1.0, gt=0, le=1)
    """`trace`: lengths and hash blocks are multiplied by this together, as in `"1/16"`."""
    max_input_tokens: int | None = Field(None, ge=1)
    """Longer prompts are clipped, counted and reported."""
    max_output_tokens: int | None = Field(None, ge=1)
    """Longer outputs are clipped, counted and reported."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of lengths, arrivals and token ids."""

    @model_validator(mode="after")
    def _source_fits(self) -> WorkloadSettings:
        if self.source == "synthetic" and self.arrival.kind == "recorded":
            raise ValueError('arrival.kind = "recorded" needs source = "trace"')
        return self


def _ratio(value: Any) -> Any:
    if isinstance(value, str) and value.count("/") == 1:
        top, bottom = value.split("/")
        try:
            return float(top) / float(bottom)
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{value!r} is not a ratio such as 1/16") from None
    return value
