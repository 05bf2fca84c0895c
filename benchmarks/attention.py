"""Paged decode attention on this CPU against SDPA on contiguous K and V of the same dtype, query heads grouped.

    python benchmarks/attention.py [--json] [--rounds 15] [--threads 2] [--only mla] [--quick]

One process; both sides are timed in turns and the figure is the median of the ratios of neighbours, so that a change
of the machine's speed meets both. `numba` reads the KV store through shuffled block tables; int8 and fp8 have no SDPA
of their own and are held against our fp32. Each row's KV is 32 to 256 MiB, far beyond the caches. Bars: what the
project promises. A window layer is held against SDPA over the window alone, a latent layer (MLA, absorbed queries)
against SDPA over its contiguous rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F

import kvbench_kernels
from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.batch import StepBatch
from kvbench.engine.kvstore.store import KVStore
from kvbench.geometry.dtypes import storage_dtype
from kvbench.geometry.model import GroupKind, LatentShape, LayerGroup, ModelGeometry

SEQUENCES, CONTEXT = 32, 1024


@dataclass(frozen=True)
class Shape:
    """One layer: `head_dim` of a K row, of which the first `rank` read as V in a latent layer."""

    query_heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    rank: int = 0

    @property
    def has_bars(self) -> bool:
        return self.window is None and not self.rank


SHAPES = {
    "gqa 32/8 × 64": Shape(32, 8, 64),
    "gqa 32/4 × 128": Shape(32, 4, 128),
    "mha 8/8 × 64": Shape(8, 8, 64),
    "gqa 32/8 × 64, last 256": Shape(32, 8, 64, window=256),
    "mla 16 × 512 + 64": Shape(16, 1, 576, rank=512),
}
BLOCK_SIZES = (4, 16, 64)
BARS = {("fp32", 16): 1.2, ("fp32", 4): 1.7, ("bf16", 16): 1.4, ("bf16", 4): 2.2, ("int8", 16): 0.9}
CONTIGUOUS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NARROW = ("int8", "fp8_e4m3", "fp8_e5m2")
Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Row:
    """One comparison; `ratio` < 1 means that the paged kernel is quicker."""

    shape: str
    kv_dtype: str
    block_size: int
    against: str
    kv_mib: float
    ours_ms: float
    theirs_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    bar: float | None
    max_error: float


def geometry(shape: Shape, layers: int = 1) -> ModelGeometry:
    kind: GroupKind = "latent" if shape.rank else "full" if shape.window is None else "window"
    v_dim = 0 if shape.rank else shape.head_dim
    group = LayerGroup(kind, tuple(range(layers)), shape.kv_heads, shape.head_dim, v_dim, shape.window)
    latent = LatentShape(None, shape.rank, 1, shape.head_dim - shape.rank, 1) if shape.rank else None
    heads = (shape.query_heads, shape.kv_heads, shape.head_dim)
    return ModelGeometry("bench", "llama", "benchmark", layers, 1, 1, *heads, 1, 1 << 20, (group,), latent=latent)


def decode_batch(tables: np.ndarray, context: int) -> StepBatch:
    count = len(tables)
    return StepBatch(
        token_ids=np.zeros(count, np.int64),
        positions=np.full(count, context - 1, np.int64),
        slots=np.full((1, count), 256, np.int64),
        block_tables=tables[None],
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lengths=np.full(count, context, np.int32),
        num_decodes=count,
        logit_rows=np.arange(count, dtype=np.int64),
    )


class Setup:
    """The same K and V contiguous and in a store of every dtype and block size that is asked for."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.k = torch.randn((SEQUENCES, CONTEXT, shape.kv_heads, shape.head_dim))
        self.v = self.k[..., :0] if shape.rank else torch.randn_like(self.k)
        self.q = torch.randn((SEQUENCES, shape.query_heads, shape.head_dim))

    @property
    def elements(self) -> int:
        """Of K and V that a step reads."""
        return (self.k.numel() + self.v.numel()) * min(CONTEXT, self.shape.window or CONTEXT) // CONTEXT

    def sdpa(self, dtype: torch.dtype) -> Call:
        first = CONTEXT - min(CONTEXT, self.shape.window or CONTEXT)
        k, v = (x[:, first:].transpose(1, 2).to(dtype).contiguous() for x in (self.k, self.v))
        v = k[..., : self.shape.rank] if self.shape.rank else v
        q = self.q.to(dtype).unflatten(1, (self.shape.kv_heads, -1))
        return lambda: F.scaled_dot_product_attention(q, k, v)

    def paged(self, kv_dtype: str, block_size: int) -> Call:
        per_sequence = CONTEXT // block_size
        store = KVStore(geometry(self.shape), kv_dtype, block_size, per_sequence * SEQUENCES)
        order = np.random.default_rng(0).permutation(store.num_blocks) + 1
        tables = order.astype(np.int32).reshape(SEQUENCES, -1)
        positions = np.arange(CONTEXT)
        for s, table in enumerate(tables):
            slots = table[positions // block_size].astype(np.int64) * block_size + positions % block_size
            store.write(0, self.k[s], self.v[s], torch.from_numpy(slots))
        backend = attention_backend("numba", "cpu")
        backend.prepare(decode_batch(tables, CONTEXT), store)
        return lambda: backend.attend(0, self.q, store)


def in_turns(ours: Call, theirs: Call, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of both, alternating; the first call of each is dropped."""
    ours(), theirs()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, kept in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            call()
            kept.append(time.perf_counter() - start)
    return times


def compare(shape: str, kv_dtype: str, block_size: int, setup: Setup, sides: tuple[Call, Call], rounds: int) -> Row:
    ours, theirs = in_turns(*sides, rounds)
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    exact = setup.sdpa(torch.float32)().flatten(1, 2)
    itemsize = int(storage_dtype(kv_dtype).bytes_per_element)
    return Row(
        shape=shape,
        kv_dtype=kv_dtype,
        block_size=block_size,
        against="our fp32" if kv_dtype in NARROW else "SDPA",
        kv_mib=setup.elements * itemsize / 2**20,
        ours_ms=median(ours) * 1e3,
        theirs_ms=median(theirs) * 1e3,
        ratio=median(ratios),
        ratio_low=ratios[len(ratios) // 4],
        ratio_high=ratios[-1 - len(ratios) // 4],
        bar=BARS.get((kv_dtype, block_size)) if setup.shape.has_bars else None,
        max_error=float((sides[0]() - exact).abs().max()),
    )


def comparisons(rounds: int, shapes: list[str]) -> Iterator[Row]:
    for shape in shapes:
        setup = Setup(SHAPES[shape])
        for block_size in BLOCK_SIZES:
            for kv_dtype, contiguous in CONTIGUOUS.items():
                sides = setup.paged(kv_dtype, block_size), setup.sdpa(contiguous)
                yield compare(shape, kv_dtype, block_size, setup, sides, rounds)
            for kv_dtype in NARROW:
                sides = setup.paged(kv_dtype, block_size), setup.paged("fp32", block_size)
                yield compare(shape, kv_dtype, block_size, setup, sides, rounds)


def call_overhead(calls: int = 300) -> dict[str, float]:
    """Microseconds of one small decode step's calls: 8 sequences of 100 tokens, 8 query and 2 KV heads of 32."""
    store = KVStore(geometry(Shape(8, 2, 32), layers=4), "fp32", 16, 80)
    tables = np.arange(1, 57, dtype=np.int32).reshape(8, 7)
    batch, backend = decode_batch(tables, 100), attention_backend("numba", "cpu")
    q, k = torch.randn((8, 8, 32)), torch.randn((8, 2, 32))
    slots = torch.from_numpy(tables[:, -1].astype(np.int64) * 16)
    return {
        "prepare_us": _median_us(lambda: backend.prepare(batch, store), calls),
        "write_us": _median_us(lambda: store.write(1, k, k, slots), calls),
        "attend_us": _median_us(lambda: backend.attend(1, q, store), calls),
    }


def _median_us(call: Callable[[], object], calls: int) -> float:
    call()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times) * 1e6


def print_table(rows: list[Row], overhead: dict[str, float]) -> None:
    print(f"{'heads':24} {'KV dtype':8} {'block':>5} {'MiB':>5} {'ours ms':>8} {'theirs':>8} {'against':>9}", end="")
    print(f" {'ratio':>6} {'quartiles':>11} {'bar':>5} {'max error':>10}")
    for r in rows:
        bar = "" if r.bar is None else f"{r.bar:.1f}"
        print(
            f"{r.shape:24} {r.kv_dtype:8} {r.block_size:5} {r.kv_mib:5.0f} {r.ours_ms:8.2f} {r.theirs_ms:8.2f}"
            f" {r.against:>9} {r.ratio:6.2f} {r.ratio_low:5.2f}–{r.ratio_high:.2f} {bar:>5} {r.max_error:10.1e}"
        )
    print("one small decode step, per layer: " + ", ".join(f"{name} {value:.0f}" for name, value in overhead.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--rounds", type=int, default=15, help="timed calls of each side")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="for torch and numba alike")
    parser.add_argument("--only", default="", help="head shapes with this in their name")
    parser.add_argument("--quick", action="store_true", help="the first head shape only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kvbench_kernels.set_threads(options.threads)
    shapes = [name for name in SHAPES if not options.only or options.only in name]
    shapes = shapes[:1] if options.quick else shapes
    rows, overhead = list(comparisons(options.rounds, shapes)), call_overhead()
    if options.json:
        facts = {"threads": options.threads, "sequences": SEQUENCES, "context": CONTEXT, "torch": torch.__version__}
        print(json.dumps({**facts, "rows": [asdict(row) for row in rows], "overhead": overhead}))
    else:
        print_table(rows, overhead)


if __name__ == "__main__":
    main()
