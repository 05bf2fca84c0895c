"""The engine under the Triton backend (interpreted): greedy tokens of the torch backend, whatever moves, keeps or cuts
KV; the store writes and copies by the Triton kernels too. And padded decode steps, as CUDA graphs compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from typing import Any

import pytest
import torch

from kvbench.engine.engine import Engine
from kvbench.engine.kvstore.block_copies import TritonCopies
from kvbench.engine.kvstore.triton_io import TritonIO
from kvbench.engine.model import Model
from kvbench.engine.telemetry import StepRecord
from kvbench.errors import UsageError
from kvbench.geometry.memory import block_bytes
from kvbench.geometry.resolve import resolve_model
from kvbench.spec.engine import EngineSettings
from tests.checkpoints import prompts_of, write_checkpoint
from tests.engine.test_parity import answer

pytest.importorskip("triton")
from kvbench.engine.attention.triton_backend import TritonAttention
from kvbench.engine.graphs import GraphedDecode, run_eagerly

OUTPUT = 4
(STEM,), (ALONE,) = prompts_of([17], seed=1), prompts_of([21], seed=2)
PROMPTS = [ALONE, *(STEM + tail for tail in prompts_of([6, 3], seed=3))]
ROOMY = {"kv_memory": "1MiB"}
SETTINGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "llama fp32, offload": (
        {"block_size": 4, "offload": "host", "host_memory": "1MiB", "kv_memory": "30KiB"},
        ("prefix_cache_hits", "host_offload_bytes", "host_promotions"),
    ),
    "llama bf16, one token a block, radix": (
        {"block_size": 1, "kv_dtype": "bf16", "prefix_cache": "radix"},
        ("preemptions", "prefix_cache_hits"),
    ),
    "llama int8, swap": (
        {"block_size": 3, "kv_dtype": "int8", "preemption": "swap", "swap_memory": "1MiB"},
        ("swap_out_bytes", "swap_in_bytes", "prefix_cache_hits"),
    ),
    "llama fp8_e4m3, tokens first": (
        {"block_size": 4, "kv_dtype": "fp8_e4m3", "kv_layout": "nhd"},
        ("preemptions", "prefix_cache_hits"),
    ),
    "llama fp32, fronts of blocks": (
        {"block_size": 8, "batch_policy": "continuous", "partial_block_reuse": True, **ROOMY},
        ("prefix_cache_hits", "copy_on_write_copies"),
    ),
    "mistral fp32": ({"block_size": 4}, ("prefix_cache_hits",)),
    "gpt-oss fp32": ({"block_size": 8, **ROOMY}, ("prefix_cache_hits",)),
    "deepseek-v3 fp32": ({"block_size": 4}, ("preemptions", "prefix_cache_hits")),
}
"""By family and more: settings, and what must have happened."""
POOL_TOKENS = 56


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    @cache
    def of(family: str) -> Model:
        return Model.from_pretrained(write_checkpoint(family, tmp_path_factory.mktemp(family)))

    return of


def engine_of(model: Model, attention: str, **more: Any) -> Engine:
    """A pool of `POOL_TOKENS` tokens, prompts in chunks of up to 16 tokens a step."""
    size, dtype = more["block_size"], more.get("kv_dtype", "fp32")
    defaults = {
        "kv_memory": block_bytes(model.geometry, dtype, size) * (POOL_TOKENS // size),
        "prefix_cache": "hash",
        "max_batch_tokens": 16,
        "max_sequences": 4,
    }
    tuned = more.pop("tuned", None)
    settings = EngineSettings.model_validate({**defaults, **more, "attention": attention})
    return Engine(model, settings, max_context=48, check=True, tuned=tuned)


def answered(engine: Engine) -> tuple[list[list[int]], list[StepRecord]]:
    """All prompts, then two of them again."""
    first, steps = answer(engine, PROMPTS, OUTPUT)
    again, more = answer(engine, PROMPTS[:2], OUTPUT)
    engine.close()
    return first + again, steps + more


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_tokens_equal_those_of_the_torch_backend(models: Callable[[str], Model], name: str) -> None:
    """Small pools: sequences are preempted, blocks leave for the host and come back, prompts hit what is cached."""
    model, (more, events) = models(name.split()[0]), SETTINGS[name]
    engine = engine_of(model, "triton", **more)
    assert isinstance(engine.attention, TritonAttention)
    assert isinstance(engine.store._io, TritonIO)
    assert isinstance(engine.store._mover._copies, TritonCopies)
    tokens, steps = answered(engine)
    expected, _ = answered(engine_of(model, "torch", **more))
    assert tokens == expected
    assert {event: sum(getattr(step, event) for step in steps) > 0 for event in events} == dict.fromkeys(events, True)


TUNED: dict[str, dict[str, dict[str, Any]]] = {
    "mistral fp32": {
        "window 2x16+16": {"tile": 16, "warps": 2, "stages": 2, "head_rows": 16, "splits": 2},
        "prefill window 2x16+16": {"rows": 32, "tile": 16, "warps": 4, "stages": 3},
    },
    "deepseek-v3 fp32": {"latent 1x40+32": {"rows": 16, "tile": 32, "warps": 4, "stages": 3, "splits": 3}},
}


@pytest.mark.parametrize("name", TUNED)
def test_a_tuned_configuration_is_what_is_launched_and_changes_no_token(
    models: Callable[[str], Model], name: str
) -> None:
    """Every launch of decode, latent decode and prefill has the configuration, and the splits, of its layers' label."""
    model, (more, _) = models(name.split()[0]), SETTINGS[name]
    engine = engine_of(model, "triton", **more, tuned=TUNED[name])
    launched: dict[str, set[tuple[Any, ...]]] = {}
    backend: Any = engine.attention
    for kernel in ("_decode_heads", "_prefill_heads", "_latent"):
        setattr(backend, kernel, _noting(getattr(backend, kernel), kernel, launched))
    tokens, _ = answer(engine, PROMPTS[:1], OUTPUT)
    expected, _ = answer(engine_of(model, "torch", **more), PROMPTS[:1], OUTPUT)
    assert tokens == expected
    wanted = {tuple(fields.values()) for fields in TUNED[name].values()}
    assert set().union(*launched.values()) - {()} == wanted


def _noting(launch: Any, kernel: str, launched: dict[str, set[tuple[Any, ...]]]) -> Any:
    """The kernel, and its configurations with their splits (not for prefill, which has none) in `launched`."""

    def noted(*args: Any, **more: Any) -> None:
        fields = () if more.get("config") is None else tuple(asdict(more["config"]).values())
        splits = (more["splits"],) if "splits" in more else ()
        launched.setdefault(kernel, set()).add((*fields, *splits))
        launch(*args, **more)

    return noted


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"tile": 24}, "power of two"), ({"tiles": 16}, "tiles"), ({"splits": -1}, "splits"), ({"tile": 16.0}, "whole")],
)
def test_a_configuration_that_the_kernel_cannot_run_is_refused(
    models: Callable[[str], Model], fields: dict[str, Any], said: str
) -> None:
    engine = engine_of(models("mistral"), "triton", block_size=4, tuned={"window 2x16+16": fields})
    with pytest.raises(UsageError, match=said):
        answer(engine, PROMPTS[:1], 2)


def padding_engine(model: Model, **more: Any) -> tuple[Engine, GraphedDecode, list[int]]:
    """An engine whose decode steps are padded and run eagerly, and the padded sizes that it has run."""
    engine, sizes = engine_of(model, "triton", **more), list[int]()

    def noted(run: Any) -> Any:
        size = graphs.sizes[len(captured)]
        captured.append(size)

        def again() -> torch.Tensor:
            sizes.append(size)
            return run_eagerly(run)()

        return again

    captured: list[int] = []
    graphs = GraphedDecode(engine.model, engine.store, engine.attention, 8, 48, noted)  # type: ignore[arg-type]
    graphs.sizes = (2, 8)
    for size in graphs.sizes:
        graphs._replay_of(size)
    engine.runner.graphs = graphs  # type: ignore[attr-defined]
    return engine, graphs, sizes


@pytest.mark.parametrize(("family", "kv_dtype"), [("llama", "int8"), ("mistral", "fp32")])
def test_padded_decode_steps_give_the_tokens_of_unpadded_ones(
    models: Callable[[str], Model], family: str, kv_dtype: str
) -> None:
    """Steps of one and of three sequences in rows of 2 and 8; what pads them sees nothing and is written nowhere."""
    more = {"block_size": 4, "kv_dtype": kv_dtype, **ROOMY}
    engine, _, sizes = padding_engine(models(family), **more)
    engine.store.pool.bytes[:, 0] = 0x55
    tokens, _ = answer(engine, PROMPTS, OUTPUT)
    expected, _ = answer(engine_of(models(family), "torch", **more), PROMPTS, OUTPUT)
    assert tokens == expected
    assert set(sizes) == {2, 8}
    assert (engine.store.pool.bytes[:, 0] == 0x55).all(), "nothing went to the null block"


def test_a_step_computed_three_ways_is_one_step(models: Callable[[str], Model]) -> None:
    """`check`: replayed, padded and eager, and unpadded; after the pool is cut anew, the buffers are new ones."""
    engine, graphs, _ = padding_engine(models("llama"), block_size=4, **ROOMY)
    batches = []
    forward = graphs.forward

    def kept(batch: Any) -> torch.Tensor:
        batches.append(batch)
        return forward(batch)

    graphs.forward = kept  # type: ignore[method-assign]
    answer(engine, PROMPTS[:1], 2)
    graphs.forward = forward  # type: ignore[method-assign]
    found = graphs.check(batches[-1])
    assert found.from_padded == 0.0
    assert found.from_unpadded < 1e-3
    graphs.clear()
    assert graphs._buffers is None
    assert graphs.takes(batches[-1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_replayed_graph_equals_the_eager_step() -> None:
    """Every size that a batch of up to 12 needs, in bf16: the same bits as the padded step run eagerly."""
    model = Model.random(resolve_model("tiny-llama"), device="cuda")
    settings = EngineSettings(cuda_graphs=True, max_sequences=12, kv_dtype="bf16")
    engine = Engine(model, settings, kv_memory_bytes=1 << 26, max_context=256)
    graphs = engine.runner.graphs  # type: ignore[attr-defined]
    found: list[Any] = []
    forward = engine.runner.forward

    def checked(batch: Any) -> torch.Tensor:
        if graphs.takes(batch):
            found.append(graphs.check(batch))
        return forward(batch)

    engine.runner.forward = checked  # type: ignore[method-assign]
    answer(engine, prompts_of(list(range(5, 17)), seed=5), 8)
    assert found
    assert all(difference.from_padded == 0.0 for difference in found)
    assert all(difference.from_unpadded < 0.1 for difference in found)
