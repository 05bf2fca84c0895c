"""The tables of `kvbench quality` for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbench.cli.output import Table
from kvbench.tabulate import MISSING
from kvbench.units import format_bytes, format_count

if TYPE_CHECKING:
    from kvbench.analysis.quality import QualityFile, QualityRow
    from kvbench.analysis.window_means import Estimate

_COLUMNS = ("kv dtype", "kv scales", "KV a token", "KL, nats", "perplexity", "perplexity change", "same top-1")
_NUMBERS = frozenset(range(2, len(_COLUMNS)))
_BEST = " *"
_FOOTER = (
    "* best of the settings with as many bits an element, or not told apart from it. KL: divergence of the next-token "
    "distribution from that under fp32 KV, mean over tokens. 0 is the same distribution; on average no event's "
    "probability differs by more than √(KL/2): 0.5 % at 5e-05, 5 % at 5e-03. same top-1: share of tokens whose "
    "likeliest successor is the same. ± and (…) are 95 % intervals over windows of text, none where all are alike."
)


def quality_tables(found: QualityFile) -> list[Table]:
    """Settings against the four numbers, settings against KL by position, and what failed."""
    tables = [_numbers(found), _positions(found)]
    failed = [(row.label, row.error) for row in found.rows if row.error is not None]
    if failed:
        tables.append(Table("Given up", ("setting", "reason"), [[name, reason or ""] for name, reason in failed]))
    return tables


def _numbers(found: QualityFile) -> Table:
    return Table(_title(found), _COLUMNS, [_row(row) for row in found.rows], _NUMBERS, _FOOTER)


def _title(found: QualityFile) -> str:
    method, model = found.method, found.model
    tokens = max((row.tokens for row in found.rows), default=0)
    return (
        f"{model['name']}: weights {model['weight_dtype']} · device {method['device']} · {method['windows']} windows "
        f"of {format_count(method['window_tokens'])} tokens, {format_count(tokens)} predicted · tokens by "
        f"{found.text['tokenizer']} · blocks of {method['block_size']} · chunks of {method['chunk_tokens']}"
    )


def _row(row: QualityRow) -> list[str]:
    cells = [row.kv_dtype, row.kv_scales or MISSING, format_bytes(row.kv_bytes_per_token)]
    if row.metrics is None:
        return [*cells, "not finite", MISSING, MISSING, MISSING]
    m, is_reference = row.metrics, row.kv_dtype == "fp32"
    found = [
        "0 (reference)" if is_reference and m.kl_nats.value == 0 else _scientific(m.kl_nats),
        _range(m.perplexity),
        MISSING if is_reference else _percent(m.perplexity_change, sign="+"),
        MISSING if is_reference else _percent(m.top1_agreement),
    ]
    names = ("kl_nats", "perplexity", "perplexity_change", "top1_agreement")
    return [*cells, *(cell + _BEST * (name in row.best) for name, cell in zip(names, found, strict=True))]


def _positions(found: QualityFile) -> Table:
    rows = [row for row in found.rows if row.metrics is not None and row.kv_dtype != "fp32"]
    buckets = next((row.buckets for row in rows), ())
    columns = ["kv dtype", "kv scales", *(f"{bucket.first}–{bucket.last}" for bucket in buckets)]
    cells = [
        [row.kv_dtype, row.kv_scales or MISSING, *(_scientific(bucket.metrics.kl_nats) for bucket in row.buckets)]
        for row in rows
    ]
    return Table("KL in nats by position in the window", columns, cells, frozenset(range(2, len(columns))))


def _scientific(estimate: Estimate) -> str:
    """`(2.13 ± 0.31)e-04`, both with the value's exponent; `2.13e-04 (0–5.2e-04)` where it is not symmetric."""
    value, half = estimate.value, estimate.half_width
    if value == 0:
        return "0"
    if half is not None and not estimate.is_symmetric:
        return f"{value:.2e} ({estimate.low:.2g}–{estimate.high:.2g})"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits}e{exponent}" if half is None else f"({digits} ± {half / 10 ** int(exponent):.2f})e{exponent}"


def _range(estimate: Estimate) -> str:
    value = f"{estimate.value:.3f}" if estimate.value < 1000 else f"{estimate.value:.4g}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({estimate.low:.3g}–{estimate.high:.3g})"


def _percent(estimate: Estimate, sign: str = "") -> str:
    """`97.39% ± 0.24%`, or with the ends of the interval where it is not symmetric."""
    value, half = estimate.value, estimate.half_width
    text = f"{value:{sign}.3%}" if abs(value) >= 5e-6 else f"{0:.3%}"
    if half is not None and not estimate.is_symmetric:
        return f"{text} ({estimate.low:{sign}.3%} to {estimate.high:{sign}.3%})"
    return text if half is None else f"{text} ± {half:.3%}"
