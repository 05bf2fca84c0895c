"""One layer's paged KV at any size, on any device, and the calls that are timed on it. Not a script: `kernels.py` and
`gpu_check.py` use it.

On CUDA the Triton kernels run, on a CPU numba's. Needs neither pydantic nor a terminal library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import median

import numpy as np
import torch

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.batch import StepBatch
from kvbench.engine.kvstore.block_copies import copy_blocks
from kvbench.engine.kvstore.store import KVStore
from kvbench.geometry.model import LayerGroup, ModelGeometry
from kvbench.measure.timers import Timer, timer_for

Call = Callable[[], object]
COPY_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}
"""Of the plain copy that everything is held against, by device."""
QUERY_DTYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}
_SCALE_BYTES = 4


@dataclass(frozen=True)
class Work:
    """One decode step of one layer: `batch` sequences of `context` tokens each."""

    kv_dtype: str
    block_size: int
    batch: int
    context: int
    query_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def blocks(self) -> int:
        return self.batch * -(-self.context // self.block_size)


@dataclass(frozen=True)
class Bytes:
    """What a call has to move: `data` is what a rate is made of; scales and the splits' scratch are counted apart."""

    data: int
    scales: int = 0
    scratch: int = 0


@dataclass(frozen=True)
class Rate:
    """A call against a plain copy, timed in turns. `share` is the median of the ratios of neighbours."""

    seconds: float
    bytes_per_s: float
    copy_bytes_per_s: float
    share: float


def geometry(work: Work) -> ModelGeometry:
    group = LayerGroup("full", (0,), work.kv_heads, work.head_dim, work.head_dim)
    heads = (work.query_heads, work.kv_heads, work.head_dim)
    return ModelGeometry("bench", "llama", "benchmark", 1, 1, 1, *heads, 1, 1 << 20, (group,))


def decode_batch(tables: np.ndarray, context: int, block_size: int) -> StepBatch:
    """The next token of every sequence, whose K and V are in place already. `tables` int32 `[S, width]`."""
    count = len(tables)
    slots = tables[:, (context - 1) // block_size].astype(np.int64) * block_size + (context - 1) % block_size
    return StepBatch(
        token_ids=np.zeros(count, np.int64),
        positions=np.full(count, context - 1, np.int64),
        slots=slots[None],
        block_tables=tables[None],
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lengths=np.full(count, context, np.int32),
        num_decodes=count,
        logit_rows=np.arange(count, dtype=np.int64),
    )


class Layer:
    """A filled layer; blocks are handed out in shuffled order, as in a pool that has been in use."""

    def __init__(self, work: Work, device: str, seed: int = 0) -> None:
        self.work, self.device = work, device
        self.backend = attention_backend("auto", device)
        is_triton = self.backend.stores_by_triton
        self.store = KVStore(
            geometry(work), work.kv_dtype, work.block_size, work.blocks, device=device, uses_triton=is_triton
        )
        rng = np.random.default_rng(seed)
        order = (rng.permutation(work.blocks) + 1).astype(np.int32)
        self.tables = order.reshape(work.batch, -1)
        generator = torch.Generator(device).manual_seed(seed)
        make = partial(torch.randn, generator=generator, device=device, dtype=QUERY_DTYPE[device])
        self.k, self.v = (make((work.context, work.kv_heads, work.head_dim)) for _ in range(2))
        self.q = make((work.batch, work.query_heads, work.head_dim))
        for sequence in range(work.batch):  # every sequence holds the same numbers, in blocks of its own
            self.store.write(0, self.k, self.v, self._slots(sequence))
        self.backend.prepare(decode_batch(self.tables, work.context, work.block_size), self.store)

    def decode(self) -> torch.Tensor:
        return self.backend.attend(0, self.q, self.store)

    def decode_bytes(self) -> Bytes:
        """K and V of every token, queries in and results out, as the project counts a decode."""
        work, size = self.work, self.store.layers[0].layout.element.itemsize
        rows = work.batch * work.context * work.kv_heads
        in_and_out = 2 * self.q.numel() * self.q.element_size()
        has_scales = self.store.layers[0].layout.has_scales
        scratch = work.batch * work.query_heads * self.splits * (work.head_dim + 1) * 4 if self.splits > 1 else 0
        return Bytes(2 * rows * work.head_dim * size + in_and_out, 2 * rows * _SCALE_BYTES * has_scales, 2 * scratch)

    def write(self) -> None:
        """One sequence's tokens anew."""
        self.store.write(0, self.k, self.v, self._first_slots)

    def write_bytes(self) -> Bytes:
        rows, layout = self.work.context * self.work.kv_heads, self.store.layers[0].layout
        read = (self.k.numel() + self.v.numel()) * self.k.element_size()
        stored = 2 * rows * self.work.head_dim * layout.element.itemsize
        return Bytes(read + stored, 2 * rows * _SCALE_BYTES * layout.has_scales)

    def copies(self) -> dict[str, tuple[Call, Bytes]]:
        """Half of the blocks onto the other half; on CUDA also into and out of one buffer."""
        half = self.work.blocks // 2
        here, there = np.split(self.tables.reshape(-1)[: 2 * half].astype(np.int64), 2)
        pool = self.store.pool.bytes.transpose(0, 1)
        moved = Bytes(2 * half * pool.shape[1] * pool.shape[2])
        if self.device == "cpu":
            pairs = (here.tolist(), there.tolist())
            return {"block_copy": (lambda: copy_blocks(pool, pool, *pairs, "within"), moved)}
        from kvbench_kernels import copy_triton

        sources, targets = (torch.from_numpy(part).to(self.device) for part in (here, there))
        staged = torch.empty((half, *pool.shape[1:]), dtype=pool.dtype, device=self.device)
        return {
            "block_copy": (lambda: copy_triton.block_copy(pool, sources, targets), moved),
            "block_gather": (lambda: copy_triton.block_gather(pool, sources, staged), moved),
            "block_scatter": (lambda: copy_triton.block_scatter(staged, pool, targets), moved),
        }

    @cached_property
    def splits(self) -> int:
        """Parts that each context is cut into by the Triton kernel; 1 where another kernel runs."""
        if self.device != "cuda":
            return 1
        from kvbench_kernels.decode_triton import splits_for

        work = self.work
        return splits_for(work.batch, work.query_heads, work.kv_heads, work.context, processors(self.device))

    @property
    def programs(self) -> int | None:
        """Programs of the decode kernel's grid, on CUDA."""
        if self.device != "cuda":
            return None
        from kvbench_kernels.decode_triton import DEFAULT

        group = self.work.query_heads // self.work.kv_heads
        return self.work.batch * self.work.kv_heads * -(-group // DEFAULT.head_rows) * self.splits

    @cached_property
    def _first_slots(self) -> torch.Tensor:
        return self._slots(0)

    def _slots(self, sequence: int) -> torch.Tensor:
        positions, size = np.arange(self.work.context), self.work.block_size
        blocks = self.tables[sequence, positions // size].astype(np.int64)
        return torch.from_numpy(blocks * size + positions % size).to(self.device)


def processors(device: str) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device == "cuda" else 1


class CopyRate:
    """The device's plain copy of a large buffer, bytes read and written both counted; caches flushed before each."""

    def __init__(self, device: str) -> None:
        self.device, self.timer = device, timer_for(device, "l2-flushed")
        self._source = torch.ones(COPY_BYTES[device], dtype=torch.uint8, device=device)
        self._target = torch.empty_like(self._source)
        self.seconds()

    def seconds(self) -> float:
        return self.timer(lambda: self._target.copy_(self._source)).device_s

    def against(self, call: Call, data_bytes: int, rounds: int) -> Rate:
        """The call and the copy in turns; the call's first run, which may compile, is dropped."""
        return _rate(self.timer, call, self.seconds, data_bytes, COPY_BYTES[self.device], rounds)


def _rate(timer: Timer, call: Call, copied: Callable[[], float], data: int, copy_bytes: int, rounds: int) -> Rate:
    timer(call)
    times = [(timer(call).device_s, copied()) for _ in range(rounds)]
    shares = [data / ours / (2 * copy_bytes / theirs) for ours, theirs in times]
    ours, theirs = (median(side) for side in zip(*times, strict=True))
    return Rate(ours, data / ours, 2 * copy_bytes / theirs, median(shares))
