"""Search strategies on recorded spaces: ours, and Kernel Tuner's where it can be had. Same spaces, seeds and score.

    python benchmarks/search.py FILE… [--seeds 200] [--evaluations 200] [--json]
    python benchmarks/search.py FILE… --kernel-tuner kt/bin/python --kernel-tuner-seeds 25

FILE is a cache file of Kernel Tuner, plain or gzip. Kernel Tuner is no dependency; it is run by a Python that has it:
`python -m venv kt && kt/bin/pip install kernel_tuner`. Without --kernel-tuner only ours run.

P is the score of `kvbench tune replay` over N evaluations: what the score asks for, or --evaluations. The last columns:
the median over seeds of optimum / best of the first 25, 50, 100 and 200. A search that ends early keeps its best.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.tune.recorded import Recording, read_recording
from kvbench.tune.replay import SHOWN, played, replay
from kvbench.tune.score import best_so_far, budget

THEIR_SCRIPT = Path(__file__).with_name("search_kernel_tuner.py")


def ours(recording: Recording, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in options.strategies.split(","):
        yield _row(asdict(replay(recording, name, range(options.seeds), options.evaluations)))


def theirs(path: Path, recording: Recording, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Kernel Tuner reads plain JSON only."""
    evaluations = _evaluations(recording, options)
    longest = min(max(evaluations, max(SHOWN)), len(recording.space))
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, path.name.removesuffix(".gz"))
        raw = path.read_bytes()
        plain.write_bytes(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        command = [options.kernel_tuner, THEIR_SCRIPT, "--evaluations", longest, "--seeds", options.kernel_tuner_seeds]
        command += ["--strategies", options.kernel_tuner_strategies] if options.kernel_tuner_strategies else []
        found = subprocess.run([*map(str, command), str(plain)], stdout=subprocess.PIPE, text=True, check=True).stdout
    searches = [json.loads(line) for line in found.splitlines()]
    for name in dict.fromkeys(search["strategy"] for search in searches):
        mine = [search for search in searches if search["strategy"] == name]
        if errors := [search["error"] for search in mine if "error" in search]:
            yield {"space": recording.name, "strategy": f"KT {name}", "error": errors[0]}
            continue
        curves = np.array([_curve(search["times"], recording, longest) for search in mine])
        yield _row(asdict(played(recording, f"KT {name}", curves, evaluations)))


def _evaluations(recording: Recording, options: argparse.Namespace) -> int:
    return min(budget(recording) if options.evaluations is None else options.evaluations, len(recording.space))


def _curve(times: list[float | None], recording: Recording, longest: int) -> np.ndarray:
    slowest = float(recording.times[np.isfinite(recording.times)].max())
    known = [np.inf if time is None else time for time in times[:longest]]
    return best_so_far(np.array(known + [np.inf] * (longest - len(known))), slowest)


def _row(found: dict[str, Any]) -> dict[str, Any]:
    shares = found.pop("shares")
    return found | {f"share_{n}": shares.get(n) for n in SHOWN}


def _print(row: dict[str, Any]) -> None:
    line = f"{row['space']:<24}{row['strategy']:<28}"
    if "error" in row:
        print(f"{line}{row['error'][:70]}", flush=True)
        return
    shares = "".join("       –" if row[f"share_{n}"] is None else f"{row[f'share_{n}']:8.4f}" for n in SHOWN)
    print(
        f"{line}{row['seeds']:6}{row['evaluations']:6}{row['score']:8.3f} ±{row['score_error']:6.3f}{shares}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--strategies", default="guided,random", help="ours  [guided,random]")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--evaluations", type=int, help="evaluations scored  [what the score asks for]")
    parser.add_argument("--kernel-tuner", metavar="PYTHON", help="a Python in which kernel_tuner is installed")
    parser.add_argument("--kernel-tuner-seeds", type=int, default=25)
    parser.add_argument("--kernel-tuner-strategies", help="[all with one objective]")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    options = parser.parse_args()
    if not options.json:
        print(f"{'space':<24}{'strategy':<28}{'seeds':>6}{'N':>6}{'P':>8}{'':8}" + "".join(f"{n:8}" for n in SHOWN))
    for path in options.files:
        recording = read_recording(path)
        rows = [ours(recording, options)]
        if options.kernel_tuner:
            rows.append(theirs(path, recording, options))
        for row in (row for each in rows for row in each):
            print(json.dumps(row), flush=True) if options.json else _print(row)


if __name__ == "__main__":
    main()
