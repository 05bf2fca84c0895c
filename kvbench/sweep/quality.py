"""The story of `kvbench quality`: geometry → text → windows → scales → every setting through the text → rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.analysis.quality import QualityFile, QualityRow, model_facts
from kvbench.analysis.quality_rows import buckets_of, metrics_of, window_means, with_best
from kvbench.devices.detect import detect
from kvbench.errors import UsageError
from kvbench.geometry.dtypes import DTYPES, KV_DTYPES, SCALES
from kvbench.geometry.huggingface import geometry_from_folder
from kvbench.geometry.memory import TOKEN_HEAD, kv_bytes_per_token
from kvbench.measure.software import checkout, versions
from kvbench.store.files import digest_of
from kvbench.workload.text import TokenText, Windows, read_ids, read_text, windows_of

if TYPE_CHECKING:
    from kvbench.engine.kvstore.scales import TensorScales
    from kvbench.engine.model import Model
    from kvbench.geometry.model import ModelGeometry
    from kvbench.measure.quality import Setting, Taken

DEFAULT_WINDOW_TOKENS = 512
CALIBRATION_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class QualityAsked:
    """What `kvbench quality` was asked. `ids`: the files hold token ids. `window_tokens` None: 512, or the model's
    context where that is shorter. `calibration` is "text" (windows that are not measured) or "foreign"."""

    folder: Path
    files: tuple[Path, ...]
    ids: bool = False
    kv_dtypes: tuple[str, ...] = KV_DTYPES
    kv_scales: tuple[str, ...] = SCALES
    kv_percentile: float = 99.9
    windows: int = 16
    window_tokens: int | None = None
    block_size: int = 16
    chunk_tokens: int = 64
    calibration: str = "text"
    device: str = "auto"
    weight_dtype: str = "auto"


def measure_quality(asked: QualityAsked, say: Callable[[str], None] = lambda line: None) -> QualityFile:
    """Everything that is cheap is checked before the weights are read; `say` hears of progress."""
    geometry = _geometry(asked.folder)
    tokens = _window_tokens(asked, geometry)
    read = read_ids if asked.ids else _text_reader(asked.folder)
    text = read(asked.files, geometry.vocab_size)
    windows = windows_of(text, tokens, asked.windows, CALIBRATION_TOKENS // tokens)
    model = _load(asked)
    say(f"{geometry.name}: {len(windows.measured)} windows of {tokens} tokens, of {windows.available} in the text")
    scales = _scales(asked, model, windows)
    taken = _take(asked, model, text, windows, scales, say)
    rows = [_row(geometry, setting, taken, scales, len(text.prefix)) for setting in scales]
    return QualityFile(
        model={**model_facts(geometry), "weight_dtype": model.weight_dtype, "files": _digests(asked.folder)},
        text={
            "tokenizer": text.tokenizer,
            "files": list(text.files),
            "tokens": text.tokens,
            "prefix": list(text.prefix),
            "windows_available": windows.available,
        },
        method=_method(asked, windows, model),
        versions={**versions(), **checkout()},
        rows=tuple(with_best(rows)),
    )


def _geometry(folder: Path) -> ModelGeometry:
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", hint="give the folder of a checkpoint: config.json and safetensors")
    return geometry_from_folder(folder)


def settings_of(asked: QualityAsked) -> list[Setting]:
    """Full precision first, then every dtype with every kind of scales that changes something for it."""
    wanted = [name for name in KV_DTYPES if name in asked.kv_dtypes or name == "fp32"]
    found: list[Setting] = []
    for name in wanted:
        found += [(name, kind) for kind in SCALES if kind in asked.kv_scales] if _is_narrow(name) else [(name, None)]
    return found


def _is_narrow(kv_dtype: str) -> bool:
    return DTYPES[kv_dtype].scale_bytes > 0


def _window_tokens(asked: QualityAsked, geometry: ModelGeometry) -> int:
    tokens = asked.window_tokens or min(DEFAULT_WINDOW_TOKENS, geometry.max_context)
    if tokens > geometry.max_context:
        raise UsageError(
            f"windows of {tokens:,} tokens are longer than the context of {geometry.name}, {geometry.max_context:,}",
            hint=f"--window-tokens {geometry.max_context} at most",
        )
    return tokens


def _text_reader(folder: Path) -> Callable[[tuple[Path, ...], int], TokenText]:
    return lambda files, vocab_size: read_text(folder, files, vocab_size)


def _load(asked: QualityAsked) -> Model:
    from kvbench.engine.model import Model

    device = detect().kind if asked.device == "auto" else asked.device
    return Model.from_pretrained(asked.folder, device=device, dtype=asked.weight_dtype)


def _scales(asked: QualityAsked, model: Model, windows: Windows) -> dict[Setting, TensorScales | None]:
    from kvbench.measure.quality import scales_of

    prompts = windows.held_out if asked.calibration == "text" else None
    return scales_of(model, settings_of(asked), asked.kv_percentile, prompts)


def _take(
    asked: QualityAsked,
    model: Model,
    text: TokenText,
    windows: Windows,
    scales: Mapping[Setting, TensorScales | None],
    say: Callable[[str], None],
) -> dict[Setting, Taken]:
    from kvbench.measure.quality import Walk, take_quality

    walk = Walk(asked.block_size, asked.chunk_tokens, max(1, len(text.prefix)), _Progress(say).tell)
    return take_quality(model, windows.measured, scales, walk)


class _Progress:
    """A line with elapsed and remaining time, every ten seconds at most."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._start = say, time.monotonic()
        self._told = self._start

    def tell(self, share: float) -> None:
        from kvbench.units import format_duration

        now = time.monotonic()
        if now - self._told >= 10 and share < 1:
            self._told = now
            elapsed = now - self._start
            left = format_duration(elapsed * (1 - share) / share)
            self._say(f"{share:.0%} of the text, {format_duration(elapsed)} elapsed, {left} left")


def _row(
    geometry: ModelGeometry,
    setting: Setting,
    taken: Mapping[Setting, Taken],
    scales: Mapping[Setting, TensorScales | None],
    prefix_tokens: int,
) -> QualityRow:
    kv_dtype, kv_scales = setting
    size = float(kv_bytes_per_token(geometry, kv_dtype, kv_scales or TOKEN_HEAD))
    found, reference, static = taken[setting], taken["fp32", None].numbers, scales[setting]
    facts = None if static is None else {"digest": static.digest, "tokens": static.tokens}
    if found.numbers is None or reference is None:
        return QualityRow(kv_dtype, kv_scales, size, None, error=found.error, scales=facts)
    numbers = found.numbers
    return QualityRow(
        kv_dtype,
        kv_scales,
        size,
        metrics_of(numbers, reference.nll_nats, slice(None)),
        buckets=buckets_of(numbers, reference.nll_nats, max(1, prefix_tokens)),
        tokens=int(np.size(numbers.kl_nats)),
        scales=facts,
        by_window=window_means(numbers),
    )


def _method(asked: QualityAsked, windows: Windows, model: Model) -> dict[str, Any]:
    count, tokens = windows.measured.shape
    needs = any(kind not in (None, TOKEN_HEAD) for _, kind in settings_of(asked))
    return {
        "reference": "fp32 KV",
        "windows": count,
        "window_tokens": tokens,
        "chunk_tokens": asked.chunk_tokens,
        "block_size": asked.block_size,
        "interval": "95 %, Student's t over windows",
        "device": model.device.type,
        "calibration": asked.calibration if needs else None,
        "calibration_windows": len(windows.held_out) if needs and asked.calibration == "text" else None,
        "kv_percentile": asked.kv_percentile if "tensor-percentile" in asked.kv_scales and needs else None,
    }


def _digests(folder: Path) -> dict[str, str]:
    """sha256 of the files that decide what the model says."""
    names = sorted([*folder.glob("*.safetensors"), *folder.glob("config.json"), *folder.glob("tokenizer.json")])
    return {path.name: digest_of(path) for path in names}
