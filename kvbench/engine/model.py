"""The model door: weights from a checkpoint or a seed, and one forward pass per step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvbench.engine.automatic import WEIGHT_DTYPE
from kvbench.engine.checkpoint import Checkpoint, check_not_quantised
from kvbench.engine.families import FAMILIES, check_runs
from kvbench.engine.memory import free_host_bytes
from kvbench.engine.random_weights import RandomSource
from kvbench.engine.rope import check_rotary
from kvbench.engine.tensor_shapes import tensor_shapes
from kvbench.engine.transformer import Transformer
from kvbench.engine.weights import assemble
from kvbench.errors import CannotRunError, UsageError
from kvbench.geometry.dtypes import canonical_dtype
from kvbench.geometry.huggingface import geometry_from_folder
from kvbench.geometry.weights import weight_bytes
from kvbench.units import format_bytes

if TYPE_CHECKING:
    from kvbench.engine.attention.registry import AttentionBackend
    from kvbench.engine.batch import StepBatch
    from kvbench.engine.kvstore.store import KVStore
    from kvbench.engine.transformer import StepInputs
    from kvbench.engine.weights import Weights
    from kvbench.geometry.model import ModelGeometry


WEIGHT_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_IGNORED_TENSORS = (".rotary_emb.inv_freq",)


class Model:
    """A decoder-only transformer of one of `engine/families.py`.

    `dtype` is that of the matrices; norms, rotary angles, the residual stream and logits are float32.
    `weight_dtype` is its short name: fp32, fp16 or bf16.
    """

    def __init__(self, geometry: ModelGeometry, weights: Weights, device: torch.device, weight_dtype: str) -> None:
        self.geometry = geometry
        self.device = device
        self.weight_dtype = weight_dtype
        self.dtype = WEIGHT_DTYPES[weight_dtype]
        self._transformer = Transformer(geometry, weights, device)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "cpu", dtype: str = "auto") -> Model:
        """A checkpoint: a folder with `config.json` and safetensors files.

        `dtype` is fp32, fp16, bf16 or `auto` (fp32 on a CPU, bf16 on CUDA); weights are cast to it.
        Raises `UsageError` for a folder that is incomplete, damaged or of an unknown kind.
        """
        folder = Path(folder)
        geometry = geometry_from_folder(folder)
        check_not_quantised(folder)
        place, name = _resolve(geometry, device, dtype)
        checkpoint = _checked(folder, geometry, place)
        return cls(geometry, assemble(geometry, checkpoint, WEIGHT_DTYPES[name]), place, name)

    @classmethod
    def random(cls, geometry: ModelGeometry, *, seed: int = 0, device: str = "cpu", dtype: str = "auto") -> Model:
        """Seeded random weights of the given geometry, drawn on the device."""
        place, name = _resolve(geometry, device, dtype)
        family = FAMILIES[geometry.family]
        scale = geometry.hidden_size**0.5 if family.scales_embedding and geometry.tie_word_embeddings else 1.0
        dtype_of = WEIGHT_DTYPES[name]
        source = RandomSource(seed, place, dtype_of, norm_offset=family.norm_offset, embedding_scale=scale)
        return cls(geometry, assemble(geometry, source, WEIGHT_DTYPES[name]), place, name)

    @torch.inference_mode()
    def forward(
        self, batch: StepBatch, store: KVStore, attention: AttentionBackend, *, layers: int | None = None
    ) -> Tensor:
        """One step: stage the batch with the attention backend, store K and V of every token, and return the logits
        `[n, vocab]` float32 of `batch.logit_rows`. `layers` computes the first layers only, then norm and head."""
        return self._transformer.step(batch, store, attention, layers)

    @torch.inference_mode()
    def compute(self, inputs: StepInputs, store: KVStore, attention: AttentionBackend) -> Tensor:
        """The device's part of `forward`, over inputs that are there already, for a backend that has been prepared."""
        return self._transformer.compute(inputs, store, attention)


def check_folder(folder: str | Path, *, has_weights: bool = True) -> None:
    """Raise the `UsageError` that making a model of this folder would raise, without reading a tensor.

    With `has_weights` it is to be loaded, else its config.json only gives the geometry of random weights.
    """
    folder = Path(folder)
    geometry = geometry_from_folder(folder)
    check_runs(geometry)
    check_rotary(geometry)
    if has_weights:
        check_not_quantised(folder)
        _checked(folder, geometry, torch.device("cpu"))


def _checked(folder: Path, geometry: ModelGeometry, place: torch.device) -> Checkpoint:
    checkpoint = Checkpoint(folder, place)
    checkpoint.check(tensor_shapes(geometry), _ignored(geometry))
    return checkpoint


def _resolve(geometry: ModelGeometry, device: str, dtype: str) -> tuple[torch.device, str]:
    check_runs(geometry)
    check_rotary(geometry)
    place = _device(device)
    name = WEIGHT_DTYPE[place.type] if dtype == "auto" else canonical_dtype(dtype)
    if name not in WEIGHT_DTYPES:
        raise UsageError(f"weight dtype {dtype!r} is not supported", hint=f"one of auto, {', '.join(WEIGHT_DTYPES)}")
    _check_memory(geometry, place, name)
    return place, name


def _device(name: str) -> torch.device:
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise UsageError(f"unknown device {name!r}", hint="cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise CannotRunError("no CUDA device that torch can use", hint="run with device cpu")
    return torch.device(name)


def _check_memory(geometry: ModelGeometry, place: torch.device, weight_dtype: str) -> None:
    """Linux hands out more memory than there is and kills the process later, so the sum comes first."""
    needed = weight_bytes(geometry, weight_dtype)
    free = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else free_host_bytes()
    if needed > free:
        raise CannotRunError(
            f"{geometry.name}: the weights take {format_bytes(needed)} in {weight_dtype}, "
            f"and {format_bytes(free)} of {place.type} memory are free",
            hint="choose a smaller model, or a dtype of 2 bytes",
        )


def _ignored(geometry: ModelGeometry) -> tuple[str, ...]:
    """Tensors that some writers add and that say nothing new."""
    return (*_IGNORED_TENSORS, "lm_head.weight") if geometry.tie_word_embeddings else _IGNORED_TENSORS
