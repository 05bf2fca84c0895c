"""What the engine is asked to do: one prompt, and how its output is chosen and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbench.cache.content import Content
from kvbench.engine.sampling import GREEDY, SamplingParams
from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.cache.types import Int32s
    from kvbench.engine.beams import BeamParams


@dataclass(frozen=True, slots=True)
class Job:
    """One request for the engine.

    The output ends after `max_tokens` tokens or with the first of `stop_tokens`, which is kept. `forced` names the
    ids that are appended instead of the sampled ones, at least `max_tokens` of them; the model still runs and samples.
    `arrival_s` is the scheduled arrival by the engine's clock; latency counts from it. Higher `priority` is more
    important; what it decides is up to `order`, `victim` and `eviction`.

    `n` outputs are sampled, each with random numbers of its own: those of samples `sample` to `sample + n − 1` of the
    request. `beams` asks for a beam search instead.
    """

    request_id: int
    prompt: Int32s
    max_tokens: int
    forced: Int32s | None = None
    stop_tokens: frozenset[int] = frozenset()
    sampling: SamplingParams = GREEDY
    arrival_s: float = 0.0
    salt: str | None = None
    seed: int = 0
    n: int = 1
    sample: int = 0
    beams: BeamParams | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise UsageError(f"request {self.request_id}: {problem}", hint="give one or more prompt and output tokens")

    def _problem(self) -> str | None:
        if len(self.prompt) == 0:
            return "the prompt is empty"
        if self.max_tokens < 1:
            return f"max_tokens is {self.max_tokens}"
        if self.forced is not None and len(self.forced) < self.max_tokens:
            return f"{len(self.forced)} forced tokens for an output of {self.max_tokens}"
        if self.n < 1 or self.sample < 0:
            return f"n is {self.n} from sample {self.sample}"
        if self.beams is not None and (self.n > 1 or self.forced is not None or not self.sampling.is_greedy):
            return "a beam search has one best output: no samples, no temperature and no forced tokens go with it"
        return None

    def content(self) -> Content:
        """What the prefix cache sees of it: its prompt, with room for the output."""
        return Content(self.prompt, salt=self.salt, capacity=self.total_tokens, priority=self.priority)

    @property
    def width(self) -> int:
        """Sequences that serve it once its prompt is computed."""
        return self.n if self.beams is None else self.beams.width

    @property
    def total_tokens(self) -> int:
        """Prompt and longest output."""
        return len(self.prompt) + self.max_tokens

    @property
    def slots_needed(self) -> int:
        """Slots at its longest: the last output token is never fed back, so its K and V are never stored."""
        return self.total_tokens - 1
