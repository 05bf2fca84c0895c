"""Reading a Hugging Face folder: `config.json` with `model.safetensors`, whole or sharded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from kvbench.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
_SHOWN = 12
_REFETCH = "the file is damaged: fetch it again"


def check_not_quantised(folder: Path) -> None:
    """Refuse a quantised checkpoint by what `config.json` says."""
    config = read_json(folder / "config.json")
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        raise UsageError(
            f"{folder}: the weights are quantised ({method})",
            hint="use a checkpoint in fp32, fp16 or bf16; the engine does not dequantise",
        )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; `UsageError` when it is missing, unreadable or something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", hint="give a folder with a Hugging Face config.json") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="check the file's permissions") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", hint=_REFETCH) from None
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no JSON object", hint=_REFETCH)
    return value


class Checkpoint:
    """The tensors of a folder by name. Files are opened, and headers read, when it is made; tensors when asked for."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder, self._device = folder, device
        self._files = {name: _open(folder / name, device) for name in _file_names(folder)}
        self._file_of = {tensor: file for file in self._files.values() for tensor in file.keys()}  # noqa: SIM118

    def check(self, shapes: dict[str, tuple[int, ...]], ignored: tuple[str, ...] = ()) -> None:
        """Compare with what the model needs; one `UsageError` names every tensor that is missing, unexpected,
        of another shape or of a dtype that is no float. Names that end in one of `ignored` may be there."""
        problems = [f"missing {name} {list(shape)}" for name, shape in shapes.items() if name not in self._file_of]
        for name, file in self._file_of.items():
            if name in shapes:
                problems += _differences(name, file.get_slice(name), shapes[name])
            elif not name.endswith(ignored):
                problems.append(f"unexpected {name}")
        if problems:
            more = [f"… and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
            raise UsageError(
                f"{self._folder}: the tensors do not fit config.json:\n  " + "\n  ".join(problems[:_SHOWN] + more),
                hint="is config.json of this very checkpoint, and are all its shards there?",
            )

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor on the wanted device, in the dtype of the file."""
        try:
            tensor: Tensor = self._file_of[name].get_tensor(name)
        except SafetensorError as error:
            raise UsageError(f"{self._folder}: cannot read {name}: {error}", hint=_REFETCH) from None
        return tensor


def _differences(name: str, part: Any, shape: tuple[int, ...]) -> list[str]:
    found, dtype = tuple(part.get_shape()), part.get_dtype()
    problems = [f"{name} is {list(found)}, not {list(shape)}"] if found != shape else []
    return problems + ([f"{name} has dtype {dtype}, not one of {', '.join(_FLOATS)}"] if dtype not in _FLOATS else [])


def _file_names(folder: Path) -> list[str]:
    if (folder / INDEX_FILE).is_file():
        shards = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(v, str) for v in shards.values()):
            raise UsageError(f"{folder / INDEX_FILE} has no weight_map of tensor names to file names", hint=_REFETCH)
        return sorted({Path(name).name for name in shards.values()})
    if (folder / SINGLE_FILE).is_file():
        return [SINGLE_FILE]
    raise UsageError(
        f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}",
        hint="only safetensors checkpoints are read; for speed and memory alone, random weights will do",
    )


def _open(path: Path, device: torch.device) -> Any:
    try:
        return safe_open(path, framework="pt", device=str(device))
    except FileNotFoundError:
        raise UsageError(
            f"{path} is named by {INDEX_FILE} but does not exist", hint="is the download complete?"
        ) from None
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is not a whole safetensors file: {error}", hint=_REFETCH) from None
