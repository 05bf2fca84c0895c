"""Manifests as a real plan on a real machine makes them, without measuring anything."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from kvbench.measure.environment import capture
from kvbench.spec.load import from_effective
from kvbench.store.manifest import build_manifest
from kvbench.store.parts import clean
from kvbench.sweep.planner import make_plan
from tests.devices.fakes import FakeNvml, fake_host

SUITE: dict[str, Any] = {
    "name": "mini",
    "model": {"name": "tiny-llama"},
    "engine": {"kv_memory": "1MiB", "max_context": 256, "attention": "torch"},
    "workload": {"requests": 4, "input_tokens": 8, "output_tokens": 4},
    "axes": {"engine.block_size": [4, 16]},
    "kernel": {"context": 64},
}
HOST_FILES = {
    "proc/cpuinfo": "processor : 0\nmodel name : Testium 9000\ncpu family : 6\nmodel : 1\nstepping : 2\n"
    "microcode : 0x1\nflags : fpu avx2 ht\n",
    "proc/self/numa_maps": "5560842e0000 bind:0 file=/bin/x mapped=2 N0=2\n",
    "run/.containerenv": 'engine="podman"\nimageid="sha256:1"\n',
    "sys/devices/system/cpu/cpu0/cache/index0/level": "1",
    "sys/devices/system/cpu/cpu0/cache/index0/type": "Data",
    "sys/devices/system/cpu/cpu0/cache/index0/size": "32K",
}


@cache
def _plan() -> dict[str, Any]:
    suite = copy.deepcopy(SUITE)
    del suite["kernel"]
    found: dict[str, Any] = clean(make_plan(from_effective(suite)).to_dict())
    kernel = {"name": "k", "kernel": {"context": 64, "attention": "numba"}}
    found["cases"] += clean(make_plan(from_effective(kernel)).to_dict())["cases"]
    found["cases"][-1]["tuned"] = {"full 2x64+64": {"split": 512}}
    return found


def gpu_manifest(tmp_path: Path) -> dict[str, Any]:
    """A manifest with two engine cases and a kernel case, on a machine with two GPUs of our own making."""
    host, nvml = fake_host(tmp_path, files=HOST_FILES), FakeNvml(gpus=2, nvmlDeviceGetTopologyCommonAncestor=50)
    found = build_manifest(
        copy.deepcopy(_plan()) | {"run_id": "r", "created_at": "t", "kvbench_version": "1", "path": None},
        environment=clean(capture(host=host, nvml_module=nvml)),
    )
    found["controlled"].pop("path")
    found["controlled"]["models"]["tiny-llama"]["checkpoint"] = "0" * 64
    found["controlled"]["system"]["variables"]["OMP_NUM_THREADS"] = "2"
    return found


def this_machine() -> dict[str, Any]:
    """The same plan with the machine as it is at this moment."""
    return build_manifest(
        copy.deepcopy(_plan()) | {"run_id": "r", "kvbench_version": "1"}, environment=clean(capture())
    )


def mutated(manifest: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(dotted field, the manifest with that one field changed) for every leaf of the controlled class, lists of objects
    entered, and for the schema version."""
    for path in _leaves(manifest["controlled"]):
        changed = copy.deepcopy(manifest)
        place = changed["controlled"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = _other(place[path[-1]])
        yield ".".join(map(str, path)), changed
    yield "schema_version", {**manifest, "schema_version": 2}


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        for at, item in enumerate(value):
            yield from _leaves(item, (*path, at))
    else:
        yield path


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value} changed" if isinstance(value, str) else "something"
