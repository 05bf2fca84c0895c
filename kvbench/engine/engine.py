"""The reference engine: a model, its KV memory cut into blocks, and the loop over both."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvbench.cache.manager import make_manager
from kvbench.costmodel.features import layer_windows
from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.cache_settings import cache_settings
from kvbench.engine.calibration import calibrated
from kvbench.engine.interrupts import deferred_interrupts
from kvbench.engine.job import Job
from kvbench.engine.kvstore.block_file import identity_of
from kvbench.engine.kvstore.disk import DiskFiles
from kvbench.engine.kvstore.disk_folder import base_folder, check_disk, open_folder
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.loop import EngineLoop
from kvbench.engine.memory import Sizes, decode_tokens, free_host_bytes, plan_sizes
from kvbench.engine.padding import why_no_graphs
from kvbench.engine.runner import DeviceRunner
from kvbench.engine.sampling import GREEDY, SamplingParams
from kvbench.engine.speculation.build import with_drafter
from kvbench.errors import CannotRunError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvbench.engine.attention.registry import AttentionBackend, Tuned
    from kvbench.engine.beams import BeamParams
    from kvbench.engine.clock import Clock
    from kvbench.engine.graphs import GraphedDecode
    from kvbench.engine.kvstore.scales import TensorScales
    from kvbench.engine.model import Model
    from kvbench.spec.engine import EngineSettings


class Engine(EngineLoop):
    """`kv_memory_bytes` and `max_context` win over the settings; left out, `auto` KV memory is half of what is free,
    and no more than `max_sequences` of the longest sequences can use."""

    def __init__(
        self,
        model: Model,
        settings: EngineSettings,
        *,
        clock: Clock | None = None,
        kv_memory_bytes: int | None = None,
        max_context: int | None = None,
        tensor_scales: TensorScales | None = None,
        tuned: Tuned | None = None,
        check: bool = False,
    ) -> None:
        """Static scales (`kv_scales` other than `token-head`) that are not given are calibrated here. `tuned`: label of
        a layer group → a configuration of the attention kernel; left out, its default.

        Raises `CannotRunError` with the arithmetic when the memory cannot hold one sequence, `UsageError` when the
        settings do not fit the model. `check` verifies the invariants after every step."""
        _check_weight_dtype(model, settings)
        self.model = model
        self.sizes = plan_sizes(model.geometry, settings, kv_memory_bytes, max_context, _free_bytes(model.device))
        if tensor_scales is None:
            tensor_scales = calibrated(model, settings.kv_dtype, settings.kv_scales, settings.kv_percentile)
        self.attention = attention_backend(settings.attention, model.device, tuned)
        self.store = _make_store(model, settings, self.sizes, tensor_scales, self.attention.stores_by_triton)
        graphs = _graphs(model, self.store, self.attention, settings, self.sizes)
        runner = DeviceRunner(model, self.store, self.attention, graphs)
        runner, drafter = with_drafter(runner, settings, self.sizes)
        super().__init__(
            make_manager(
                cache_settings(model.geometry, settings, self.sizes, model.weight_dtype, _digest(tensor_scales))
            ),
            settings,
            runner,
            block_bytes=self.sizes.block_bytes,
            vocab_size=model.geometry.vocab_size,
            clock=clock,
            drafter=drafter,
            check=check,
            model=layer_windows(model.geometry),
        )

    @property
    def num_blocks(self) -> int:
        """Usable blocks on the device."""
        return self.store.num_blocks

    def close(self) -> None:
        """Give up everything: no copy is under way, no thread runs and no file is left. The engine is of no further
        use."""
        self.abort_all()
        self.store.close()

    def generate(
        self,
        prompts: Iterable[Sequence[int]],
        max_tokens: int,
        sampling: SamplingParams | None = None,
        stop_tokens: Iterable[int] = (),
        *,
        seed: int = 0,
        beams: BeamParams | None = None,
    ) -> list[list[int]]:
        """Output tokens per prompt; `sampling` None is greedy, `beams` asks for the best output of a beam search.
        Raises `UsageError` when a prompt cannot be served."""
        found = self._answer(prompts, max_tokens, sampling, stop_tokens, seed=seed, beams=beams)
        return [outputs[0] for outputs in found]

    def generate_samples(
        self,
        prompts: Iterable[Sequence[int]],
        max_tokens: int,
        n: int,
        sampling: SamplingParams,
        stop_tokens: Iterable[int] = (),
        *,
        seed: int = 0,
    ) -> list[list[list[int]]]:
        """`n` outputs per prompt, each with random numbers of its own; the prompt is computed once."""
        return self._answer(prompts, max_tokens, sampling, stop_tokens, seed=seed, n=n)

    def _answer(
        self,
        prompts: Iterable[Sequence[int]],
        max_tokens: int,
        sampling: SamplingParams | None,
        stop_tokens: Iterable[int],
        *,
        seed: int,
        n: int = 1,
        beams: BeamParams | None = None,
    ) -> list[list[list[int]]]:
        if self.has_work:
            raise UsageError("the engine is already serving", hint="let it finish, or use another Engine")
        self._drop_everything()
        job = partial(
            Job,
            max_tokens=max_tokens,
            stop_tokens=frozenset(stop_tokens),
            sampling=sampling or GREEDY,
            arrival_s=self.clock.now(),
            seed=seed,
            n=n,
            beams=beams,
        )
        try:
            for index, prompt in enumerate(prompts):
                self.add(job(index, _token_array(prompt)))
            self._raise_if_any_failed()
            self._run()
            self._raise_if_any_failed()
            return [outputs for _, outputs in sorted(self.take_all_outputs().items())]
        finally:
            self._drop_everything()

    def _run(self) -> None:
        with deferred_interrupts() as raise_if_interrupted:
            while self.has_work:
                raise_if_interrupted()
                self.step()

    def _raise_if_any_failed(self) -> None:
        for record in self.take_finished():
            if record.error is not None:
                raise UsageError(f"prompt {record.request_id}: {record.error}")

    def _drop_everything(self) -> None:
        self.abort_all()
        self.take_finished()
        self.take_outputs()


def _check_weight_dtype(model: Model, settings: EngineSettings) -> None:
    if settings.weight_dtype not in ("auto", model.weight_dtype):
        raise UsageError(
            f"weight_dtype is {settings.weight_dtype}, but the model was loaded as {model.weight_dtype}",
            hint=f"load the model with dtype={settings.weight_dtype!r}",
        )


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_host_bytes()


def _digest(tensor_scales: TensorScales | None) -> str:
    return "" if tensor_scales is None else tensor_scales.digest


def _graphs(
    model: Model, store: KVStore, attention: AttentionBackend, settings: EngineSettings, sizes: Sizes
) -> GraphedDecode | None:
    """All of them captured; None where nobody asks, `CannotRunError` where it cannot be."""
    if (reason := why_no_graphs(settings, model.geometry, model.device.type)) is not None:
        raise CannotRunError(reason, hint="set cuda_graphs = false")
    if not settings.cuda_graphs:
        return None
    from kvbench.engine.attention.triton_backend import TritonAttention
    from kvbench.engine.graphs import GraphedDecode

    if not isinstance(attention, TritonAttention):
        raise CannotRunError(
            f"cuda_graphs captures the triton backend, and this engine has {attention.name}",
            hint="install triton, or set cuda_graphs = false",
        )
    rows = settings.max_sequences * decode_tokens(settings)
    graphs = GraphedDecode(model, store, attention, rows, sizes.max_context)
    graphs.capture_all()
    return graphs


def _make_store(
    model: Model, settings: EngineSettings, sizes: Sizes, tensor_scales: TensorScales | None, uses_triton: bool
) -> KVStore:
    return KVStore(
        model.geometry,
        settings.kv_dtype,
        settings.block_size,
        sizes.num_blocks,
        host_blocks=sizes.host_blocks,
        swap_blocks=sizes.swap_blocks,
        disk=_disk_files(model, settings, sizes),
        disk_blocks=sizes.disk_blocks,
        overlaps=settings.promotion == "overlapped",
        device=model.device,
        kv_layout=settings.kv_layout,
        tensor_scales=tensor_scales,
        uses_triton=uses_triton,
    )


def _disk_files(model: Model, settings: EngineSettings, sizes: Sizes) -> DiskFiles | None:
    """The disk tier in a folder of its own; `CannotRunError` when there is no room for it."""
    if not sizes.disk_blocks:
        return None
    base = base_folder(settings.disk_path)
    check_disk(base, settings.disk_memory)
    identity = identity_of(asdict(model.geometry), model.weight_dtype, settings.kv_dtype, settings.block_size)
    return DiskFiles(open_folder(base), sizes.block_bytes, identity)


def _token_array(prompt: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Token ids as int32; what is not a list of integers is refused, not rounded."""
    given = np.asarray(prompt)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "iu":
        raise UsageError("a prompt is a list of one or more integer token ids", hint="as in generate([[1, 5, 9]], 32)")
    if given.min() < 0 or given.max() >= 1 << 31:
        raise UsageError("the prompt has token ids outside the vocabulary", hint="token ids are small integers from 0")
    return given.astype(np.int32)
