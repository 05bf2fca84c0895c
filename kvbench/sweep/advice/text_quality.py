"""What `kvbench quality` measured of a candidate's KV dtype, beside its speed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.analysis.quality import QualityFile, QualityRow, read_quality
from kvbench.errors import CannotRunError

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry
    from kvbench.spec.engine import EngineSettings


@dataclass(frozen=True, slots=True)
class TextQuality:
    """A quality file that is of the question's model; None where none was given: then nothing is known of any
    setting."""

    file: QualityFile | None = None

    def of(self, settings: EngineSettings) -> QualityRow | None:
        """The row of these settings' KV dtype and scales."""
        return None if self.file is None else self.file.row(settings.kv_dtype, settings.kv_scales)

    def refusal(self, settings: EngineSettings) -> str | None:
        """That the model's logits were not finite, whatever the precision that is allowed."""
        row = self.of(settings)
        return None if row is None or row.error is None else f"with {row.label} KV the model's {row.error}"

    def lost(self, settings: EngineSettings, error: float | None) -> float:
        """Precision that is lost, for an order: KL on the text where there is one, else the runs' error of the logits;
        infinite where it is not known."""
        if self.file is None:
            return math.inf if error is None else error
        row = self.of(settings)
        return math.inf if row is None or row.metrics is None else row.metrics.kl_nats.value

    def notes(self, settings: EngineSettings) -> tuple[str, ...]:
        """That the file lacks the setting, or has it under weights of another dtype."""
        if self.file is None:
            return ()
        if self.of(settings) is None:
            return (f"the quality file has no {settings.kv_dtype} with {settings.kv_scales} scales",)
        weights = self.file.model.get("weight_dtype")
        if weights != settings.weight_dtype:
            return (f"the quality file is of weights in {weights}, these are {settings.weight_dtype}",)
        return ()


def text_quality(path: Path | None, geometry: ModelGeometry) -> TextQuality:
    """The file at `path`. `CannotRunError` for one of another model, and the errors of `read_quality`."""
    if path is None:
        return TextQuality()
    found = read_quality(path)
    if (reason := found.why_not(geometry)) is not None:
        raise CannotRunError(reason, hint="run kvbench quality on a checkpoint of this model")
    return TextQuality(found)


def precision_lost(row: QualityRow | None, error: float | None) -> str:
    """What is known of a setting's loss, in words: by the text, else by the runs' own check of the logits."""
    if row is not None and row.metrics is not None:
        kl, top1 = row.metrics.kl_nats.value, row.metrics.top1_agreement.value
        return f"KL {kl:.2g} nats and {1 - top1:.2%} other top-1 tokens on the text"
    return "its error was not measured" if error is None else f"relative error {error:.2g} of the logits"
