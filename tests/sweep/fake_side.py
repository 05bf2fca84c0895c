"""A side of a gate that measures nothing: it writes the run that `speed.json` in its folder asks for.

Started as `python … -m kvbench sweep SUITE --out OUT …`; kvbench itself is on the path behind the side's folder.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tomllib
from pathlib import Path


def main() -> int:
    folder = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    told = json.loads((folder / "speed.json").read_text())
    sys.path[:0] = [os.environ["FAKE_SIDE_REPOSITORY"]]
    if told.get("says"):
        print(told["says"], file=sys.stderr)
    if told.get("exit"):
        return int(told["exit"])
    from kvbench.store.run import RunFolder
    from tests.store.samples import plan, sample

    suite = tomllib.loads(Path(sys.argv[sys.argv.index("sweep") + 1]).read_text())
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    wanted = [entry["engine.block_size"] for entry in suite.get("only", [])]
    cases = int(told.get("cases", 2))
    rng = random.Random(f"{suite['measure']['seed']}/{told['name']}")
    facts = plan(cases, 1, engine_digest=told["name"], order_seed=suite["measure"]["seed"], **told.get("facts", {}))
    for case in facts["cases"]:
        case["axes"] = {"engine.block_size": case["axes"]["block_size"]}
    with RunFolder.create(out, facts) as run:
        for number in range(cases):
            if not wanted or 8 * (number + 1) in wanted:
                factor = told["factors"][number] * rng.lognormvariate(0.0, told.get("noise", 0.004))
                warned = [{"name": told["warning"], "numbers": {}}] if told.get("warning") else []
                run.add(sample(number, 0, output_tokens_per_s=1000.0 / factor, warnings=warned))
        run.seal()
    return 0


sys.exit(main())
