"""The engine on a device: greedy tokens against those of the CPU, and decode steps as CUDA graphs against eager ones,
in bits and in time. `gpu_check.py` runs it.

Without CUDA the Triton kernels run in the interpreter and the padded step runs eagerly in the graph's place: that
checks the script and the padding, not a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from paged import decode_batch

from kvbench.engine.attention.triton_backend import TritonAttention
from kvbench.engine.families import FAMILIES
from kvbench.engine.graphs import CudaCapture, GraphedDecode, run_eagerly
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.model import Model
from kvbench.engine.random_weights import RandomSource
from kvbench.engine.weights import assemble
from kvbench.geometry.memory import block_bytes
from kvbench.geometry.resolve import resolve_model
from kvbench.measure.timers import timer_for

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry

SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {"kv_dtype": "fp32"},
    "int8, chunks, prefix cache": {"kv_dtype": "int8", "prefix_cache": "hash", "max_batch_tokens": 24},
    "fp8_e4m3, small pool, nhd": {"kv_dtype": "fp8_e4m3", "block_size": 8, "kv_layout": "nhd"},
    "bf16, one token a block": {"kv_dtype": "bf16", "block_size": 1},
}
GRAPH_LOADS = {"cpu": ((2, 20),), "cuda": ((1, 1024), (8, 1024), (64, 2048))}
"""Sequences and tokens of the steps that are captured, by device"""
GRAPH_MODEL = {"cpu": "tiny-llama", "cuda": "llama-3.2-1b"}


def checks(device: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for name, settings in list(SETTINGS.items())[slice(None) if device == "cuda" else slice(1, 2)]:
        yield f"greedy tokens, {name}", lambda settings=settings: check_tokens(device, settings)
    for batch, context in GRAPH_LOADS[device]:
        yield f"graph {batch} × {context}", lambda load=(batch, context): check_graph(device, *load)


def check_tokens(device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """One model with the same float32 weights on both; outputs must be equal. Needs pydantic and platformdirs."""
    from kvbench.engine.engine import Engine
    from kvbench.spec.engine import EngineSettings

    geometry, outputs = resolve_model("tiny-llama"), 24 if device == "cuda" else 2
    rng = np.random.default_rng(5)
    lengths = (40, 3, 90, 17, 64, 33) if device == "cuda" else (9, 3)
    stem = rng.integers(0, geometry.vocab_size, 32 if device == "cuda" else 4)
    prompts = [[*map(int, stem), *map(int, rng.integers(0, geometry.vocab_size, n))] for n in lengths]
    answers = []
    for place, backend in (("cpu", "torch"), (device, "triton")):
        model = model_of(geometry, place)
        more = {"max_sequences": 4, **settings, "attention": backend}
        engine = Engine(model, EngineSettings(**more), kv_memory_bytes=_pool(geometry, more), max_context=160)
        answers.append(engine.generate(prompts, outputs) + engine.generate(prompts[:2], outputs))
        engine.close()
    first = [_first_difference(theirs, ours) for theirs, ours in zip(*answers, strict=True)]
    differing = {str(i): place for i, place in enumerate(first) if place is not None}
    return {"sequences": len(first), "first_differing_token": differing, "ok": not differing}


def _first_difference(theirs: list[int], ours: list[int]) -> int | None:
    if theirs == ours:
        return None
    return next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours)))


def model_of(geometry: ModelGeometry, device: str) -> Model:
    """float32 weights drawn on the CPU, so that every device has the same."""
    family = FAMILIES[geometry.family]
    draw = RandomSource(0, torch.device("cpu"), torch.float32, norm_offset=family.norm_offset)
    weights = assemble(geometry, lambda name, shape: draw(name, shape).to(device), torch.float32)
    return Model(geometry, weights, torch.device(device), "fp32")


def check_graph(device: str, batch: int, context: int) -> dict[str, Any]:
    """A replay must give the bits of the same padded step run eagerly; and how long both take."""
    geometry = resolve_model(GRAPH_MODEL[device])
    model = Model.random(geometry, device=device)
    size, dtype = 16, "bf16" if device == "cuda" else "fp32"
    width = -(-context // size)
    store = KVStore(geometry, dtype, size, batch * width, device=device, uses_triton=True)
    for view in store.layers:
        view.elements.normal_()
    tables = (np.random.default_rng(1).permutation(batch * width) + 1).astype(np.int32).reshape(batch, width)
    step = decode_batch(tables, context, size)
    attention = TritonAttention()
    graphs = GraphedDecode(model, store, attention, batch, context, CudaCapture() if device == "cuda" else run_eagerly)
    found = graphs.check(step)
    row: dict[str, Any] = {
        "model": geometry.name,
        "from_padded": found.from_padded,
        "from_unpadded": found.from_unpadded,
        "is_graph": device == "cuda",
        "ok": bool(found.from_padded == 0.0 and np.isfinite(found.from_unpadded)),
    }
    if device == "cuda":
        row |= _times(model, store, attention, graphs, step)
    return row


def _times(
    model: Any, store: Any, attention: Any, graphs: GraphedDecode, step: Any, rounds: int = 15
) -> dict[str, Any]:
    """Wall seconds of a step, logits included, in turns: what serving waits for."""
    timer = timer_for("cuda", "hot")
    eager, replayed = lambda: model.forward(step, store, attention), lambda: graphs.forward(step)
    times = [(timer(eager).host_s, timer(replayed).host_s) for _ in range(rounds)]
    eager_s, graph_s = (median(side) for side in zip(*times, strict=True))
    return {"eager_step_s": eager_s, "graph_step_s": graph_s, "eager_over_graph": eager_s / graph_s}


def _pool(geometry: ModelGeometry, settings: dict[str, Any]) -> int:
    """Room for 320 tokens, so that some sequences wait or are preempted."""
    size = settings.get("block_size", 16)
    return block_bytes(geometry, settings["kv_dtype"], size) * (320 // size)
