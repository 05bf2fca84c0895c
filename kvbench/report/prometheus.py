"""Metrics as Prometheus text, exposition format 0.0.4: what Prometheus scrapes and node_exporter's textfiles hold.

https://prometheus.io/docs/instrumenting/exposition_formats. OpenMetrics is not spoken: node_exporter reads 0.0.4 only,
and one text serves both. Names are the columns' under `kvbench_`; counters end in `_total`, seconds in `_seconds`. Two
names are those of their columns against custom: `kvbench_kv_bytes_used`, and `kvbench_kv_blocks_total`, a gauge.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SAMPLE_LABELS = ("suite", "case", "sample", "status", "clock")


class Family(NamedTuple):
    """One metric. `source`: the number of the live counters that it shows, "" for one of the sweep."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = SAMPLE_LABELS
    source: str = ""


class Point(NamedTuple):
    """A value of a metric under the labels that it declares, in their order."""

    name: str
    labels: tuple[str, ...]
    value: float


def _gauge(source: str, text: str) -> Family:
    return Family(f"kvbench_{source}", "gauge", text, source=source)


def _counter(source: str, text: str) -> Family:
    base = f"{source.removesuffix('_s')}_seconds" if source.endswith("_s") else source
    return Family(f"kvbench_{base}_total", "counter", text, source=source)


ENGINE_FAMILIES = (
    _gauge("kv_capacity_bytes", "Size of the block pool."),
    _gauge("kv_bytes_used", "Blocks that live sequences hold, in bytes."),
    _gauge("kv_blocks_total", "Blocks of the pool."),
    _gauge("kv_blocks_free", "Blocks that hold nothing."),
    _gauge("live_cached_tokens", "Tokens in the prefix cache that a look-up could hit."),
    _gauge("active_sequences", "Sequences being served, scheduled in the step or not."),
    _gauge("waiting_sequences", "Requests that have arrived and wait."),
    _gauge("batch_size", "Sequences that computed something in the step."),
    _gauge("host_bytes_used", "Blocks in the host tier, in bytes."),
    _gauge("disk_bytes_used", "Blocks in the disk tier, in bytes."),
    _gauge("swap_bytes_used", "Blocks in the swap area, in bytes."),
    _counter("steps", "Engine steps."),
    _counter("admissions", "Sequences admitted."),
    _counter("preemptions", "Sequences that lost their blocks while running."),
    _counter("evictions", "Cached blocks that lost their contents."),
    _counter("prefix_cache_queries", "Prompt tokens looked up, first admissions only."),
    _counter("prefix_cache_hits", "Prompt tokens found, first admissions only."),
    _counter("prefill_tokens", "Prompt tokens computed."),
    _counter("decode_tokens", "Decode tokens computed."),
    _counter("host_offload_bytes", "Bytes copied from device to host."),
    _counter("host_promotions", "Blocks copied back from host to device."),
    _counter("disk_offload_bytes", "Bytes written from host to disk."),
    _counter("disk_promotions", "Blocks read back from disk."),
    _counter("swap_out_bytes", "Bytes of preempted sequences copied to the swap area."),
    _counter("swap_in_bytes", "Bytes copied back from the swap area."),
    _counter("promotion_stall_s", "Time that steps waited for blocks from host, disk or swap area."),
    _counter("copy_on_write_copies", "Shared blocks copied before a write."),
)
_SWEEP = ("suite",)
SWEEP_FAMILIES = (
    Family(
        "kvbench_sweep_info",
        "gauge",
        "Always 1; labels `run`, `device`, `clock` and `version`.",
        ("suite", "run", "device", "clock", "version"),
    ),
    Family("kvbench_sweep_running", "gauge", "1 while the sweep runs, 0 when it has ended or was interrupted.", _SWEEP),
    Family("kvbench_sweep_cases_planned", "gauge", "Cases of the sweep.", _SWEEP),
    Family("kvbench_sweep_cases_done", "gauge", "Cases all of whose samples are taken.", _SWEEP),
    Family("kvbench_sweep_cases_failed", "gauge", "Cases with a sample that did not end ok.", _SWEEP),
    Family("kvbench_sweep_samples_planned", "gauge", "Samples of the sweep: cases times repetitions.", _SWEEP),
    Family(
        "kvbench_sweep_samples",
        "gauge",
        "Samples that were taken; label `status`: how they ended.",
        ("suite", "status"),
    ),
    Family(
        "kvbench_sweep_samples_redone_total",
        "counter",
        "Samples taken again because the machine disturbed them.",
        _SWEEP,
    ),
    Family("kvbench_sweep_start_time_seconds", "gauge", "When the sweep began, Unix time.", _SWEEP),
    Family("kvbench_sweep_last_event_time_seconds", "gauge", "When something was last heard of it, Unix time.", _SWEEP),
    Family("kvbench_sweep_elapsed_seconds", "gauge", "Since the sweep began.", _SWEEP),
    Family("kvbench_sample_progress_ratio", "gauge", "How far the sample is, 0 to 1, by tokens."),
)
FAMILIES = (*SWEEP_FAMILIES, *ENGINE_FAMILIES)


def exposition(points: Iterable[Point], families: Iterable[Family] = FAMILIES) -> str:
    """The points as text, families in their order, each under its HELP and TYPE; a family without points is left out.

    Raises `KeyError` for a point of no family."""
    known = {family.name: family for family in families}
    found: defaultdict[str, list[str]] = defaultdict(list)
    for point in points:
        labels = dict(zip(known[point.name].labels, point.labels, strict=True))
        found[point.name].append(f"{point.name}{_labels(labels)} {_number(point.value)}")
    lines: list[str] = []
    for name, family in known.items():
        if found[name]:
            lines += [f"# HELP {name} {_escaped(family.help)}", f"# TYPE {name} {family.kind}", *found[name]]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (f'{name}="{_escaped(value, quoted=True)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str, *, quoted: bool = False) -> str:
    """Backslash and line feed, between quotes the quote too; half a character, which is no UTF-8, is replaced."""
    text = text.encode(errors="replace").decode().replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
