"""A clock that the test winds, and a device that keeps token ids where K and V would be.

The fake model's next token is a hash of all tokens of the sequence *as read back through its block table*: a wrong
slot, table, position or hit gives wrong tokens, and `honest_output` says what is right without any engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvbench.cache.reblock import ReblockPlan
from kvbench.cache.transfers import Transfers
from kvbench.cache.types import CacheManager, CacheSettings, Int64s
from kvbench.engine.batch import StepBatch
from kvbench.engine.copies import Outcome
from kvbench.engine.job import Job
from kvbench.engine.keys import mix
from kvbench.engine.loop import EngineLoop
from kvbench.engine.reblocking import BlockSizes, Reblocked
from kvbench.engine.sampling import SamplingParams
from kvbench.engine.speculation.drafter import Drafter
from kvbench.engine.telemetry import RequestRecord, StepRecord
from kvbench.spec.engine import EngineSettings
from tests.engine.naive_manager import NaiveManager

VOCAB = 1000


class ManualClock:
    """Stands still until it is told otherwise; every wait ends at once, in the future."""

    def __init__(self) -> None:
        self.time = 0.0

    def restart(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait_until(self, t_s: float) -> None:
        self.time = max(self.time, t_s)


def next_token(tokens: list[int]) -> int:
    value: int = 0
    for token in tokens:
        value = mix(value ^ token)
    return value % VOCAB


def fake_candidates(token: int, count: int) -> tuple[list[int], list[float]]:
    """The likeliest next tokens where the fake model's best one is `token`: distinct, with uneven log-probabilities."""
    leads = [0.1 + (mix(token * 31 + rank) % 10**9) / 7e8 for rank in range(count)]
    return [(token + rank * 37) % VOCAB for rank in range(count)], (-np.cumsum(leads)).tolist()


def honest_output(job: Job) -> list[int]:
    """What the fake model answers to this prompt, one token after another, without any engine."""
    tokens: list[int] = job.prompt.tolist()
    for index in range(job.max_tokens):
        tokens.append(next_token(tokens) if job.forced is None else int(job.forced[index]))
        if tokens[-1] in job.stop_tokens:
            break
    return tokens[len(job.prompt) :]


@dataclass
class FakeRunner:
    """Each step takes `step_s` of the manual clock. `batches` keeps every batch that was run."""

    num_blocks: int
    block_size: int
    clock: ManualClock
    host_blocks: int = 0
    step_s: float = 1.0
    block_bytes: int = 64
    batches: list[StepBatch] = field(default_factory=list)
    keys: list[Int64s] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = np.full((self.num_blocks + 1, self.block_size), -1, np.int64)
        self.host = np.full((self.host_blocks + 1, self.block_size), -1, np.int64)

    def start(self, transfers: Transfers) -> Outcome:
        self.host[transfers.offload_host] = self.memory[transfers.offload_device]
        self.memory[transfers.promote_device] = self.host[transfers.promote_host]
        self.memory[transfers.copy_destination] = self.memory[transfers.copy_source]
        stall = 0.25 if transfers.promote_device else 0.0
        return Outcome(done=transfers, promotion_stall_s=stall)

    def poll(self, *, wait: bool = False) -> Outcome:
        return Outcome()

    def forward(self, batch: StepBatch) -> list[int]:
        self._check_shapes(batch)
        assert len(set(batch.slots[0].tolist())) == batch.num_tokens, "two tokens in one slot"
        assert batch.slots[0].min() >= self.block_size, "a token in the null block"
        self.memory.reshape(-1)[batch.slots[0]] = batch.token_ids
        sequence_of_row = np.repeat(np.arange(batch.num_sequences), batch.query_lengths)
        self.batches.append(batch)
        self.clock.time += self.step_s
        return [next_token(self._read(batch, sequence_of_row[row])) for row in batch.logit_rows]

    def _read(self, batch: StepBatch, sequence: int) -> list[int]:
        """The sequence's tokens through its block table."""
        tokens: list[int] = self.memory[batch.block_tables[0, sequence]].reshape(-1).tolist()
        return tokens[: batch.context_lengths[sequence]]

    def _check_shapes(self, batch: StepBatch) -> None:
        assert batch.query_starts[0] == 0
        assert batch.query_starts[-1] == batch.num_tokens == len(batch.positions) == batch.slots.shape[1]
        assert (batch.query_lengths[: batch.num_decodes] == 1).all()
        for index, (start, end) in enumerate(zip(batch.query_starts, batch.query_starts[1:], strict=False)):
            expected = np.arange(batch.context_lengths[index] - (end - start), batch.context_lengths[index])
            assert batch.positions[start:end].tolist() == expected.tolist()

    def sample(self, logits: list[int], params: list[SamplingParams], keys: Int64s) -> Int64s:
        assert len(logits) == len(params) == len(keys)
        self.keys.append(keys)
        return np.array(logits, np.int64)

    def candidates(self, logits: list[int], rows: Int64s, count: int) -> tuple[Int64s, np.ndarray]:  # type: ignore[type-arg]
        found = [fake_candidates(logits[row], count) for row in rows]
        return np.array([ids for ids, _ in found]), np.array([scores for _, scores in found])

    def sizes_at(self, block_size: int) -> BlockSizes:
        """Byte for byte as many blocks, with no thought of the null block."""
        per_token = self.block_bytes // self.block_size
        return BlockSizes(self.memory[1:].size // block_size, per_token * block_size)

    def reblock(self, plan: ReblockPlan) -> Reblocked:
        """Unit by unit, as the plan says; everything else is lost."""
        old = self.memory.reshape(len(self.memory), -1, plan.unit)
        new = np.full((plan.num_blocks + 1, plan.block_size // plan.unit, plan.unit), -1, np.int64)
        (moves,) = plan.moves
        new[moves.target, moves.target_unit] = old[moves.source, moves.source_unit]
        self.memory, self.block_bytes = (
            new.reshape(plan.num_blocks + 1, plan.block_size),
            self.sizes_at(plan.block_size).block_bytes,
        )
        self.num_blocks, self.block_size = plan.num_blocks, plan.block_size
        self.clock.time += 0.5
        return Reblocked(len(moves) * plan.unit, 0)

    def reset(self) -> None:
        self.memory[:] = -1


def cache_settings(settings: EngineSettings, num_blocks: int, max_context: int, host_blocks: int = 0) -> CacheSettings:
    return CacheSettings(
        block_size=settings.block_size,
        num_blocks=num_blocks,
        max_sequences=settings.max_sequences,
        max_context=max_context,
        allocator=settings.allocator,
        reservation=settings.reservation,
        prefix_cache=settings.prefix_cache,
        partial_block_reuse=settings.partial_block_reuse,
        eviction=settings.eviction,
        lrc_alpha=settings.lrc_alpha,
        lrc_beta=settings.lrc_beta,
        host_blocks=host_blocks,
        host_eviction=settings.host_eviction,
    )


def _real_manager(sizes: CacheSettings) -> CacheManager:
    from kvbench.cache.manager import make_manager

    return make_manager(sizes)


def fake_engine(
    pool: int,
    *,
    manager: str = "naive",
    max_context: int = 256,
    host_blocks: int = 0,
    drafter: Drafter | None = None,
    **settings: object,
) -> EngineLoop:
    """An engine of `pool` blocks over the fake device; `manager` is `naive` or `real`."""
    chosen = EngineSettings.model_validate({"block_size": 4, **settings})
    sizes = cache_settings(chosen, pool, max_context, host_blocks)
    books: CacheManager = NaiveManager(sizes) if manager == "naive" else _real_manager(sizes)
    clock = ManualClock()
    runner = FakeRunner(pool, chosen.block_size, clock, host_blocks)
    return EngineLoop(
        books,
        chosen,
        runner,
        block_bytes=runner.block_bytes,
        vocab_size=VOCAB,
        clock=clock,
        drafter=drafter,
        check=True,
    )


def job(request_id: int, prompt: int | list[int], output: int = 1, arrival_s: float = 0.0, **more: object) -> Job:
    """`prompt` tokens, or so many that no other request shares."""
    tokens = [(request_id * 97 + at * 31 + 7) % VOCAB for at in range(prompt)] if isinstance(prompt, int) else prompt
    return Job(request_id, np.array(tokens, np.int32), output, arrival_s=arrival_s, **more)  # type: ignore[arg-type]


def run(engine: EngineLoop, *jobs: Job) -> list[StepRecord]:
    """Add the jobs and step until nothing is left."""
    for one in jobs:
        engine.add(one)
    records = []
    while engine.has_work:
        record = engine.step()
        assert record is not None
        records.append(record)
    return records


def by_id(engine: EngineLoop) -> dict[int, RequestRecord]:
    return {record.request_id: record for record in engine.take_finished()}
