"""Kernel Tuner's searches on recorded spaces, for `benchmarks/search.py`; needs `kernel_tuner` and no kvbench.

    python -m venv kt && kt/bin/pip install kernel_tuner
    kt/bin/python benchmarks/search_kernel_tuner.py --strategies pso --seeds 25 --evaluations 200 cache.json

prints a JSON object per search: strategy, seed and `times`, the recorded times of the distinct configurations in the
order in which they were asked for (null: a failed one). Simulation mode, default options of every strategy; allowed
are the configurations that the file holds. Every search has a process of its own, so none inherits another's state.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import warnings
from typing import Any

import kernel_tuner
from constraint import FunctionConstraint
from kernel_tuner import interface, util

STRATEGIES = tuple(name for name in interface.strategy_map if name not in ("brute_force", "nsga2", "nsga3"))
"""Not: trying everything, and those for several objectives"""


class Space:
    """A file read once, its search space built once; both are handed to every search."""

    def __init__(self, path: str) -> None:
        self.cache = util.read_cache(path, open_cache=False)
        names = self.cache["tune_params_keys"]
        allowed = {tuple(row[name] for name in names) for row in self.cache["cache"].values()}
        self.parameters = {
            name: [value for value in values if any(value == row[at] for row in allowed)]
            for at, (name, values) in enumerate((name, self.cache["tune_params"][name]) for name in names)
        }
        self._path = path
        self._restrictions = [FunctionConstraint(lambda *values: values in allowed)]
        built = interface.Searchspace(self.parameters, self._restrictions, 1_000_000_000)
        if built.size != len(allowed):
            raise SystemExit(f"{path}: {built.size} configurations instead of {len(allowed)}")
        interface.Searchspace = lambda *args, **options: built
        util.process_cache = lambda *args, **options: self.cache["cache"]

    def search(self, strategy: str, seed: int, evaluations: int) -> list[float | None]:
        results, _ = kernel_tuner.tune_kernel(
            self.cache["kernel_name"],
            "",
            self.cache["problem_size"],
            [],
            self.parameters,
            restrictions=self._restrictions,
            lang="C",
            quiet=True,
            cache=self._path,
            simulation_mode=True,
            strategy=strategy,
            strategy_options={"max_fevals": evaluations},
            seed=seed,
        )
        return self._times(results)[:evaluations]

    def _times(self, results: list[dict[str, Any]]) -> list[float | None]:
        rows = {}
        for result in results:
            key = ",".join(str(result[name]) for name in self.parameters)
            if key in self.cache["cache"]:
                rows.setdefault(key, self.cache["cache"][key][self.cache["objective"]])
        return [float(time) if isinstance(time, int | float) else None for time in rows.values()]


def _answer(space: Space, strategy: str, seed: int, evaluations: int, pipe: Any) -> None:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        try:
            pipe.send({"times": space.search(strategy, seed, evaluations)})
        except Exception as error:  # any library of any strategy: the row says so
            pipe.send({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="cache file of Kernel Tuner, plain JSON")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds per search")
    options = parser.parse_args()
    space, fork = Space(options.file), multiprocessing.get_context("fork")
    for strategy in options.strategies.split(","):
        for seed in range(options.seeds):
            ours, theirs = fork.Pipe()
            child = fork.Process(target=_answer, args=(space, strategy, seed, options.evaluations, theirs))
            child.start()
            theirs.close()
            try:
                found = ours.recv() if ours.poll(options.limit) else {"error": f"still busy after {options.limit} s"}
            except EOFError:
                found = {"error": "the process died"}
            child.kill()
            child.join()
            print(json.dumps({"strategy": strategy, "seed": seed, **found}), flush=True)
            if "error" in found:
                break


if __name__ == "__main__":
    main()
