"""What live metrics cost the worker: adding up a step, and telling the sums through a pipe.

    python benchmarks/live_metrics.py [--json]

Both happen between two steps of the engine, telling at most four times a second. `sweep --metrics` and
`--metrics-textfile` switch them on; without either nothing of this runs.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from statistics import median

from kvbench.engine.telemetry import StepRecord
from kvbench.measure.job import COUNTERS
from kvbench.measure.live import EVERY_S, LiveCounters
from kvbench.measure.worker import Outbox

STEPS, TELLS, ROUNDS = 20_000, 500, 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    figures = cost()
    print(json.dumps(figures, indent=2) if asked.json else text(figures))


def cost() -> dict[str, float]:
    """Medians over rounds: CPU seconds per step and per message, bytes of a message, and both as a share of time."""
    step = StepRecord(**{field.name: 123_456 for field in fields(StepRecord)})
    step.promotion_stall_s = 1.234e-4
    reading, writing = os.pipe()
    sent: list[int] = []
    threading.Thread(target=_drain, args=(reading, sent), daemon=True).start()
    outbox = Outbox(writing)
    counters = LiveCounters(lambda numbers: outbox.send(COUNTERS, "0123456789ab", **numbers), every_s=1e9)
    step_s = median(_seconds(lambda: counters(step), STEPS) for _ in range(ROUNDS))
    tell_s = median(_seconds(counters.flush, TELLS) for _ in range(ROUNDS))
    os.close(writing)
    return {
        "step_s": step_s,
        "tell_s": tell_s,
        "message_bytes": sum(sent) / (TELLS * ROUNDS) if sent else 0.0,
        "told_share": tell_s / EVERY_S,
        "share_of_1ms_steps": step_s / 1e-3 + tell_s / EVERY_S,
    }


def _seconds(act: Callable[[], None], times: int) -> float:
    """CPU time of this thread per call: what others on the machine do is not in it."""
    start = time.thread_time()
    for _ in range(times):
        act()
    return (time.thread_time() - start) / times


def _drain(descriptor: int, sent: list[int]) -> None:
    while data := os.read(descriptor, 1 << 16):
        sent.append(len(data))


def text(figures: dict[str, float]) -> str:
    return "\n".join(
        (
            f"adding up a step     {figures['step_s'] * 1e6:6.2f} µs",
            f"telling the sums     {figures['tell_s'] * 1e6:6.2f} µs, {figures['message_bytes']:.0f} bytes",
            f"telling, share       {figures['told_share']:8.4%} of the time",
            f"both, steps of 1 ms  {figures['share_of_1ms_steps']:8.4%} of the time",
        )
    )


if __name__ == "__main__":
    main()
