"""What a KV dtype does to a model's text: rows of `kvbench quality`, and the file that keeps them.

`read_quality(path)` gives what `--out` wrote; `QualityFile.row(kv_dtype, kv_scales)` is the row of a setting, and
`why_not(geometry)` says why it is of another model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.analysis.window_means import Estimate
from kvbench.digested import digest_of, read_json_object
from kvbench.errors import DataError, UsageError
from kvbench.geometry.dtypes import canonical_dtype

if TYPE_CHECKING:
    from kvbench.geometry.model import ModelGeometry

FORMAT, VERSION = "kvbench quality", 1
REFERENCE = "fp32"
METRICS = ("kl_nats", "perplexity", "perplexity_change", "top1_agreement")
CSV_COLUMNS = (
    "kv_dtype",
    "kv_scales",
    "kv_bytes_per_token",
    "positions",
    "tokens",
    *(f"{name}{end}" for name in METRICS for end in ("", "_low", "_high")),
    "error",
)
_SHAPE = ("family", "num_layers", "hidden_size", "query_heads", "kv_heads", "head_dim", "vocab_size", "parameters")
_HINT = "give a file that `kvbench quality --out` wrote"


@dataclass(frozen=True, slots=True)
class Metrics:
    """Of some predicted tokens. `kl_nats` from full-precision KV to the setting; `perplexity` under the setting;
    `perplexity_change` from full precision, a share; `top1_agreement` the share of tokens with the same likeliest
    next token."""

    kl_nats: Estimate
    perplexity: Estimate
    perplexity_change: Estimate
    top1_agreement: Estimate


@dataclass(frozen=True, slots=True)
class Bucket:
    """Predicted tokens at positions `first` … `last` of their windows."""

    first: int
    last: int
    tokens: int
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class QualityRow:
    """One setting. `kv_scales` None: the dtype needs none. `metrics` None: `error` says why there are no numbers.
    `best`: the metrics in which no setting of as many bits an element is better, or can be told apart from it.
    `by_window`: each window's mean of the numbers, so that settings can be compared in pairs."""

    kv_dtype: str
    kv_scales: str | None
    kv_bytes_per_token: float
    metrics: Metrics | None
    buckets: tuple[Bucket, ...] = ()
    tokens: int = 0
    error: str | None = None
    scales: dict[str, Any] | None = None
    by_window: dict[str, list[float]] = field(default_factory=dict)
    best: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.kv_dtype if self.kv_scales is None else f"{self.kv_dtype} {self.kv_scales}"


@dataclass(frozen=True, slots=True)
class QualityFile:
    """A result of `kvbench quality` as it was written: what was asked of which model and text, and the rows."""

    model: dict[str, Any]
    text: dict[str, Any]
    method: dict[str, Any]
    versions: dict[str, Any]
    rows: tuple[QualityRow, ...]

    def row(self, kv_dtype: str, kv_scales: str = "token-head") -> QualityRow | None:
        """The row of a setting, None where it was not measured. A wide dtype has one row, whatever the scales."""
        name = canonical_dtype(kv_dtype)
        return next((r for r in self.rows if r.kv_dtype == name and r.kv_scales in (None, kv_scales)), None)

    def why_not(self, geometry: ModelGeometry) -> str | None:
        """Why these numbers are not those of a model with this geometry; None when they may be. Weights of one shape
        cannot be told apart."""
        theirs = model_facts(geometry)
        different = [name for name in _SHAPE if self.model.get(name) != theirs[name]]
        shown = ", ".join(f"{name} {self.model.get(name)} and not {theirs[name]}" for name in different)
        return f"the quality file is of {self.model.get('name')}: {shown}" if different else None

    def to_json(self) -> dict[str, Any]:
        """The file's object, its digest last."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return {**content, "digest": digest_of(content)}


def model_facts(geometry: ModelGeometry) -> dict[str, Any]:
    """What identifies a model's shape."""
    return {"name": geometry.name, **{name: getattr(geometry, name) for name in _SHAPE}}


def read_quality(path: str | Path) -> QualityFile:
    """What `kvbench quality --out` wrote. `UsageError` for a file that is none of these or of a newer kvbench,
    `DataError` for one that is damaged or was edited."""
    content = read_json_object(path, "quality file", _HINT)
    if content.get("format") != FORMAT:
        raise UsageError(f'{path} is not a "{FORMAT}" file', hint=_HINT)
    if content.get("version") != VERSION:
        raise UsageError(
            f"{path} has version {content.get('version')}, this kvbench reads {VERSION}",
            hint="it was written by a newer kvbench: update, or measure again",
        )
    if content.get("digest") != digest_of(content):
        raise DataError(f"{path}: the digest does not match the content", hint="the file was changed: measure again")
    try:
        rows = tuple(map(_row, content["rows"]))
        parts = {name: dict(content[name]) for name in ("model", "text", "method", "versions")}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error!r}", hint="measure again") from None
    return QualityFile(**parts, rows=rows)


def _row(found: Mapping[str, Any]) -> QualityRow:
    buckets = tuple(Bucket(**{**bucket, "metrics": _metrics(bucket["metrics"])}) for bucket in found["buckets"])
    metrics = None if found["metrics"] is None else _metrics(found["metrics"])
    return QualityRow(**{**found, "metrics": metrics, "buckets": buckets, "best": tuple(found["best"])})


def _metrics(found: Mapping[str, Any]) -> Metrics:
    return Metrics(**{name: Estimate(**found[name]) for name in METRICS})


def flat_records(rows: Iterable[QualityRow]) -> list[dict[str, Any]]:
    """One record for all tokens of a setting and one for each bucket of positions, for a table of numbers."""
    return [record for row in rows for record in _records_of(row)]


def _records_of(row: QualityRow) -> list[dict[str, Any]]:
    own = {"kv_dtype": row.kv_dtype, "kv_scales": row.kv_scales, "kv_bytes_per_token": row.kv_bytes_per_token}
    if row.metrics is None:
        return [{**own, "positions": "all", "tokens": 0, "error": row.error}]
    parts = [("all", row.tokens, row.metrics)]
    parts += [(f"{bucket.first}-{bucket.last}", bucket.tokens, bucket.metrics) for bucket in row.buckets]
    return [{**own, "positions": name, "tokens": tokens, **flat_metrics(metrics)} for name, tokens, metrics in parts]


def flat_metrics(metrics: Metrics) -> dict[str, float | None]:
    """Every number with the ends of its interval."""
    found: dict[str, float | None] = {}
    for name in METRICS:
        estimate: Estimate = getattr(metrics, name)
        found |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return found
