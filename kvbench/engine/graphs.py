"""Decode steps as CUDA graphs: one per padded batch size, captured once, replayed in every step of that size.

A graph reads fixed buffers, which are filled before it is replayed, and its logits are valid until the next step. The
grid of a launch is part of the graph, so a captured step cuts every context into as many splits as the longest that
there can be would get. Nothing here depends on capturing: `run_eagerly` in its place runs the same padded step over the
same buffers, which is how the CPU tests check it. Graphs themselves have never been run: there was no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kvbench.engine.attention.staging import stage
from kvbench.engine.attention.triton_backend import Rows, TritonAttention
from kvbench.engine.batch import PAD_SLOT
from kvbench.engine.padding import batch_sizes, is_decode, padded, size_for
from kvbench.engine.transformer import StepInputs
from kvbench.errors import InternalError

if TYPE_CHECKING:
    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.store import KVStore
    from kvbench.engine.model import Model

Run = Callable[[], Tensor]
Capture = Callable[[Run], Run]
"""What makes of a step that reads fixed buffers one that does the same by replaying."""
_WARM_UP_RUNS = 2


def run_eagerly(run: Run) -> Run:
    """No capture."""
    return run


class CudaCapture:
    """Captures on a stream of its own, after runs that compile what is to be captured; all graphs share one memory
    pool, for only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Run) -> Run:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            logits = run()
        self._pool = self._pool or graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay


@dataclass(frozen=True, slots=True)
class GraphCheck:
    """Largest differences of logits: of a replay from the same padded step run eagerly, which must be 0, and from the
    step without padding, whose sums are taken in another order."""

    from_padded: float
    from_unpadded: float


@dataclass(slots=True)
class _Buffers:
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    lengths: Tensor
    tables: list[Tensor]


class GraphedDecode:
    """Decode steps of one engine up to `most_rows` rows and `max_context` tokens a sequence."""

    def __init__(
        self,
        model: Model,
        store: KVStore,
        attention: TritonAttention,
        most_rows: int,
        max_context: int,
        capture: Capture | None = None,
    ) -> None:
        """`capture` is `CudaCapture()` unless given."""
        self._model, self._store, self._attention = model, store, attention
        self._max_context = max_context
        self._capture = capture or CudaCapture()
        self.sizes = batch_sizes(most_rows)
        self._replays: dict[int, Run] = {}
        self._buffers: _Buffers | None = None

    def takes(self, batch: StepBatch) -> bool:
        """Whether this step is one that is captured."""
        return is_decode(batch) and size_for(batch.num_sequences, self.sizes) is not None

    @torch.inference_mode()
    def capture_all(self) -> None:
        """All sizes now, the largest first: it has room for the others' memory."""
        for size in reversed(self.sizes):
            self._replay_of(size)

    @torch.inference_mode()
    def forward(self, batch: StepBatch) -> Tensor:
        """As `Model.forward`; the logits are overwritten by the next step. `InternalError` for a block that does not
        exist."""
        return self._wanted(self._replay_of(self._fill(batch))(), batch)

    @torch.inference_mode()
    def check(self, batch: StepBatch) -> GraphCheck:
        """Compute a step three ways; its K and V are written thrice, alike."""
        replayed = self.forward(batch).clone()
        eager = self._wanted(self._step(self._fill(batch))(), batch)
        unpadded = self._model.forward(batch, self._store, self._attention)
        return GraphCheck(_difference(replayed, eager), _difference(replayed, unpadded))

    def clear(self) -> None:
        """Forget all graphs: the store's memory means something else now. They are captured again as they are used."""
        self._replays, self._buffers = {}, None

    def _replay_of(self, size: int) -> Run:
        if size not in self._replays:
            self._replays[size] = self._capture(self._step(size))
        return self._replays[size]

    def _step(self, size: int) -> Run:
        """The step over the first `size` rows of the buffers."""
        buffers = self._allocated()
        rows = Rows([table[:size] for table in buffers.tables], buffers.lengths[:size], self._max_context)
        inputs = StepInputs(
            token_ids=buffers.token_ids[:size],
            positions=buffers.positions[:size],
            longest=self._max_context - 1,
            slots=buffers.slots[:, :size],
            logit_rows=torch.arange(size, device=buffers.lengths.device),
        )

        def run() -> Tensor:
            self._attention.use(self._store, rows)
            return self._model.compute(inputs, self._store, self._attention)

        return run

    def _fill(self, batch: StepBatch) -> int:
        """Check the batch and put it into the buffers; returns the padded size."""
        stage(batch, self._store)
        size = size_for(batch.num_sequences, self.sizes)
        if size is None or not is_decode(batch):
            raise InternalError(f"a step of {batch.num_tokens} tokens is not one that is captured")
        step, buffers = padded(batch, size), self._allocated()
        _put(buffers.token_ids[:size], step.token_ids)
        _put(buffers.positions[:size], step.positions)
        _put(buffers.slots[:, :size], step.slots)
        _put(buffers.lengths[:size], step.context_lengths)
        for table, values in zip(buffers.tables, step.block_tables, strict=True):
            _put(table[:size, : values.shape[1]], values)
        return size

    def _wanted(self, logits: Tensor, batch: StepBatch) -> Tensor:
        rows = batch.logit_rows
        if np.array_equal(rows, np.arange(len(rows))):
            return logits[: len(rows)]
        return logits[torch.from_numpy(rows).to(logits.device)]

    def _allocated(self) -> _Buffers:
        """Every row a padding row at first."""
        if self._buffers is None:
            device, groups, most = self._store.device, len(self._store.pieces), self.sizes[-1]
            width = -(-self._max_context // self._store.block_size)
            self._buffers = _Buffers(
                token_ids=torch.zeros(most, dtype=torch.int64, device=device),
                positions=torch.zeros(most, dtype=torch.int64, device=device),
                slots=torch.full((groups, most), PAD_SLOT, dtype=torch.int64, device=device),
                lengths=torch.zeros(most, dtype=torch.int32, device=device),
                tables=[torch.zeros((most, width), dtype=torch.int32, device=device) for _ in range(groups)],
            )
        return self._buffers


def _put(target: Tensor, values: np.ndarray) -> None:
    target.copy_(torch.from_numpy(np.ascontiguousarray(values)), non_blocking=True)


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max()) if a.numel() else 0.0
