"""Sides of a gate that measure nothing: they write the run that `speed.json` in their folder asks for."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path

from kvbench.errors import CannotRunError
from kvbench.store.run import Run, open_run
from kvbench.store.run_folder import RunFolder
from kvbench.sweep.sides import Side
from tests.store.samples import plan, sample


def measure(side: Side, suite: Path, out: Path, log: Path) -> Run:
    """In place of `gate_blocks.measure`."""
    told = json.loads((side.folder / "speed.json").read_text())
    log.write_text(told.get("says", ""))
    if told.get("fails"):
        raise CannotRunError(f"{side.name}: {told['fails']}")
    asked = tomllib.loads(suite.read_text())
    wanted = [size for entry in asked.get("only", []) for size in entry["engine.block_size"]]
    cases = len(told["factors"])
    rng = random.Random(f"{asked['measure']['seed']}/{out.name}")
    ours = {"engine_digest": told["name"], "order_seed": asked["measure"]["seed"]}
    facts = plan(cases, 1, **{**ours, **told.get("facts", {})})
    for case in facts["cases"]:
        case["label"] = (
            f"block_size={case['axes']['block_size']}" if len(wanted) != 1 else "engine"
        )  # as labels() has it
    with RunFolder.create(out, facts) as run:
        for number in range(cases):
            factor = told["factors"][number] * rng.lognormvariate(0.0, 0.004)
            warned = [{"name": told["warning"], "numbers": {}}] if told.get("warning") else []
            if not wanted or 8 * (number + 1) in wanted:
                run.add(sample(number, 0, output_tokens_per_s=1000.0 / factor, warnings=warned, **told.get("row", {})))
    return open_run(run.path)
