"""Achieved bytes a second of the attention, write and copy kernels against the device's own copy rate.

    python benchmarks/kernels.py [--device cpu|cuda] [--quick] [--rounds 9] [--kv-dtype bf16,int8] [--json]

numba on the CPU, Triton on CUDA where there is a device. Every call is timed in turns with a plain copy of a large
buffer (128 MiB, on CUDA 1 GiB), the last-level cache flushed before each; `of copy` is the median of the ratios of
neighbours. Bytes of a decode: K and V of all tokens, queries and results; scales and the splits' scratch are counted
apart. Also said: bandwidth that falls although there is more to do, what a narrow KV dtype makes of the bytes that it
saves (1: all of them; below 0: it is slower), and how many programs each multiprocessor gets.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from paged import Bytes, Call, CopyRate, Layer, Work, processors

FALL = 0.8
"""Bandwidth below this share of what less work reached is flagged."""
WIDE = {"cpu": "fp32", "cuda": "bf16"}
"""What narrow KV dtypes are held against, by device."""


@dataclass(frozen=True)
class Row:
    """`programs_per_processor` is the decode grid over the multiprocessors, None on a CPU. Seconds are medians."""

    kernel: str
    kv_dtype: str
    block_size: int
    batch: int
    context: int
    data_bytes: int
    scale_bytes: int
    scratch_bytes: int
    seconds: float
    bytes_per_s: float
    copy_bytes_per_s: float
    share: float
    splits: int
    programs_per_processor: float | None


@dataclass(frozen=True)
class Narrow:
    """A narrow KV dtype against the wide one at the same work: shares of the wide one's bytes (scales included) and
    time that it saves."""

    kv_dtype: str
    against: str
    block_size: int
    batch: int
    context: int
    bytes_saved: float
    time_saved: float

    @property
    def per_byte(self) -> float:
        return self.time_saved / self.bytes_saved


BASE = {"cpu": (16, 1024), "cuda": (64, 8192)}
"""Sequences and tokens at which block sizes are compared, and the write and copy kernels timed, by device."""


def works(device: str, quick: bool, dtypes: Sequence[str]) -> Iterator[Work]:
    """Block sizes at one load, loads at one block size."""
    if device == "cuda":
        heads, loads = (32, 8, 128), [(1, 1024), (1, 32768), (64, 1024), (64, 4096), (128, 8192)]
        blocks = (16, 64) if quick else (1, 16, 32, 64, 128, 256)
    else:
        heads, loads = (32, 8, 64), [(1, 1024), (4, 1024), (16, 256)]
        blocks = (4, 16) if quick else (1, 4, 16, 64, 256)
        loads += [] if quick else [(1, 16384), (4, 4096), (32, 2048)]
    for dtype in dtypes:
        for block in blocks:
            yield Work(dtype, block, *BASE[device], *heads)
        for load in loads:
            yield Work(dtype, 16, *load, *heads)


def measure(work: Work, copy: CopyRate, rounds: int) -> Iterator[Row]:
    """Decode at every load; write and copies at one."""
    layer = Layer(work, copy.device)
    calls: dict[str, tuple[Call, Bytes]] = {"decode": (layer.decode, layer.decode_bytes())}
    if (work.batch, work.context) == BASE[copy.device]:
        calls |= {"write": (layer.write, layer.write_bytes()), **layer.copies()}
    for kernel, (call, moved) in calls.items():
        rate = copy.against(call, moved.data, rounds)
        splits, programs = (layer.splits, layer.programs) if kernel == "decode" else (1, None)
        yield Row(
            kernel=kernel,
            kv_dtype=work.kv_dtype,
            block_size=work.block_size,
            batch=work.batch,
            context=work.context,
            data_bytes=moved.data,
            scale_bytes=moved.scales,
            scratch_bytes=moved.scratch if kernel == "decode" else 0,
            splits=splits,
            programs_per_processor=None if programs is None else programs / processors(copy.device),
            **asdict(rate),
        )


def falls(rows: Iterable[Row]) -> list[str]:
    """Decodes that do more work of one kind (a longer context, or more sequences) at clearly fewer bytes a second than
    less work reached: bandwidth should rise with the work and stay up."""
    decodes = [row for row in rows if row.kernel == "decode"]
    found = []
    for row in decodes:
        smaller = [
            other
            for other in decodes
            if (other.kv_dtype, other.block_size) == (row.kv_dtype, row.block_size)
            and other.batch <= row.batch
            and other.context <= row.context
            and (other.batch, other.context) != (row.batch, row.context)
            and row.bytes_per_s < FALL * other.bytes_per_s
        ]
        if smaller:
            best = max(smaller, key=lambda other: other.bytes_per_s)
            found.append(
                f"{row.kv_dtype}, block {row.block_size}: {row.batch} × {row.context} tokens reach "
                f"{row.bytes_per_s / best.bytes_per_s:.2f} of the bandwidth of {best.batch} × {best.context}"
            )
    return found


def narrow(rows: Iterable[Row], against: str) -> list[Narrow]:
    """Every narrow form next to the wide one at the same work."""
    decodes = {(r.kv_dtype, r.block_size, r.batch, r.context): r for r in rows if r.kernel == "decode"}
    found = []
    for (dtype, *work), row in decodes.items():
        wide = decodes.get((against, *work))
        if wide is None or dtype == against:
            continue
        ours, theirs = (x.data_bytes + x.scale_bytes for x in (row, wide))
        if ours < theirs:
            found.append(Narrow(dtype, against, *work, 1 - ours / theirs, 1 - row.seconds / wide.seconds))
    return found


def print_report(rows: list[Row], device: str) -> None:
    print(f"{'kernel':13} {'KV dtype':8} {'block':>5} {'batch':>5} {'context':>7} {'MiB':>7} {'ms':>9}", end="")
    print(f" {'GB/s':>7} {'copy GB/s':>9} {'of copy':>7} {'splits':>6} {'grid/SM':>7}")
    for r in rows:
        grid = "" if r.programs_per_processor is None else f"{r.programs_per_processor:.1f}"
        print(
            f"{r.kernel:13} {r.kv_dtype:8} {r.block_size:5} {r.batch:5} {r.context:7} {r.data_bytes / 2**20:7.1f}"
            f" {r.seconds * 1e3:9.3f} {r.bytes_per_s / 1e9:7.1f} {r.copy_bytes_per_s / 1e9:9.1f} {r.share:7.2f}"
            f" {r.splits:6} {grid:>7}"
        )
    for line in falls(rows):
        print(f"bandwidth falls: {line}")
    for n in narrow(rows, WIDE[device]):
        print(
            f"{n.kv_dtype} for {n.against}, block {n.block_size}, {n.batch} × {n.context}: bytes −{n.bytes_saved:.0%}, "
            f"time {-n.time_saved:+.0%}, {n.per_byte:.2f} of what the bytes promise"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=9, help="timed calls of each kernel")
    parser.add_argument("--kv-dtype", default="", help="some of fp32, bf16, fp16, fp8_e4m3, fp8_e5m2, int8")
    parser.add_argument("--quick", action="store_true", help="few block sizes and loads: seconds")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    options = parser.parse_args()
    device = options.device
    dtypes = options.kv_dtype.split(",") if options.kv_dtype else ["bf16", "fp8_e4m3", "int8"]
    if not options.kv_dtype and device == "cpu":
        dtypes.insert(0, "fp32")
    copy, rows = CopyRate(device), list[Row]()
    for work in dict.fromkeys(works(device, options.quick, dtypes)):
        rows += measure(work, copy, options.rounds)
    if options.json:
        facts = {"device": device, "threads": torch.get_num_threads(), "torch": torch.__version__}
        saved = [{**asdict(one), "per_byte": one.per_byte} for one in narrow(rows, WIDE[device])]
        print(json.dumps({**facts, "rows": [asdict(row) for row in rows], "falls": falls(rows), "narrow": saved}))
    else:
        print_report(rows, device)


if __name__ == "__main__":
    main()
