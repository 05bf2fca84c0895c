"""`kvbench quality`: what KV dtypes and scales do to a checkpoint's text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import emit, format_option
from kvbench.errors import ExitCode
from kvbench.geometry.dtypes import KV_DTYPES, SCALES

if TYPE_CHECKING:
    from kvbench.analysis.quality import QualityFile

_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--model", "folder", type=_FILE, required=True, help="Folder with config.json and safetensors.")
@click.option("--text", "texts", type=_FILE, multiple=True, help="Text of yours; repeatable, a document each.")
@click.option("--tokens", "ids", type=_FILE, multiple=True, help="Token ids instead: text or .npy; repeatable.")
@click.option(
    "--kv-dtype", "kv_dtypes", type=click.Choice(KV_DTYPES), multiple=True, help="To judge; repeatable.  [all]"
)
@click.option(
    "--kv-scales", type=click.Choice(SCALES), multiple=True, help="Scales of fp8 and int8; repeatable.  [all]"
)
@click.option(
    "--kv-percentile",
    type=click.FloatRange(50, 100),
    default=99.9,
    show_default=True,
    help="Of the magnitudes, for tensor-percentile.",
)
@click.option(
    "--windows", type=click.IntRange(2, 1 << 20), default=16, show_default=True, help="Windows of text, at most."
)
@click.option(
    "--window-tokens",
    type=click.IntRange(2, 1 << 24),
    help="Tokens of a window.  [512, or the model's context if that is less]",
)
@click.option("--block-size", type=click.IntRange(1, 256), default=16, show_default=True, help="Tokens per block.")
@click.option(
    "--chunk-tokens",
    type=click.IntRange(1, 1 << 16),
    default=64,
    show_default=True,
    help="Tokens of a window computed at once; 1 takes the decode kernel.",
)
@click.option(
    "--calibration",
    type=click.Choice(("text", "foreign")),
    default="text",
    show_default=True,
    help="Static scales from windows of the text that are not measured, or from foreign tokens as in a sweep.",
)
@click.option(
    "--device", type=click.Choice(("auto", "cpu", "cuda")), default="auto", show_default=True, help="Where to compute."
)
@click.option(
    "--weight-dtype",
    type=click.Choice(("auto", "fp32", "fp16", "bf16")),
    default="auto",
    show_default=True,
    help="fp32 on a CPU, bf16 on CUDA.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the result here, as JSON.")
@format_option
@click.pass_context
def quality(
    ctx: click.Context,
    /,
    folder: Path,
    texts: tuple[Path, ...],
    ids: tuple[Path, ...],
    out: Path | None,
    form: str,
    **options: Any,
) -> None:
    """KL divergence, perplexity and top-1 agreement of a checkpoint on text of yours, for each KV dtype against KV in
    fp32.

    The text is cut into windows that the model reads from their first token on, by the engine's own paged path: K and
    V are stored in blocks, in the dtype that is judged, and read back. Each next token is compared with that under
    fp32 KV. Intervals are over windows. Exit 3 when the logits of some setting are not finite.
    """
    if bool(texts) == bool(ids):
        raise click.UsageError("give --text or --tokens, and not both", ctx)
    from kvbench.analysis.quality import FORMAT
    from kvbench.console import say
    from kvbench.store.files import to_json
    from kvbench.store.targets import check_target, json_target, writing
    from kvbench.sweep.quality import QualityAsked, measure_quality

    options["kv_dtypes"] = options["kv_dtypes"] or KV_DTYPES
    options["kv_scales"] = options["kv_scales"] or SCALES
    target = json_target(FORMAT)
    if out is not None:
        check_target(out, target)
    _use_kernel_cache()
    found = measure_quality(QualityAsked(folder, texts or ids, ids=bool(ids), **options), say)
    try:
        if out is not None:
            with writing(out, target) as file:
                file.write(to_json(found.to_json()))
            say(f"written to {out}")
    finally:
        _print(found, form)
    ctx.exit(ExitCode.PARTIAL if any(row.error for row in found.rows) else ExitCode.OK)


def _use_kernel_cache() -> None:
    """Compiled kernels stay where sweeps keep theirs, unless some were loaded from elsewhere already."""
    import sys

    import kvbench_kernels.cache
    from kvbench.paths import cache_dir

    if "kvbench_kernels.runtime" not in sys.modules:
        kvbench_kernels.cache.use_cache(cache_dir() / "numba")


def _print(found: QualityFile, form: str) -> None:
    from kvbench.analysis.quality import CSV_COLUMNS, flat_records
    from kvbench.cli.quality_tables import quality_tables

    emit(
        form,
        tables=quality_tables(found),
        columns=CSV_COLUMNS,
        records=flat_records(found.rows),
        document=found.to_json(),
    )
