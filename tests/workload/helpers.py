"""Short ways to settings and workloads, and a naive account of cache hits that knows tokens only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvbench.spec.workload import WorkloadSettings
from kvbench.workload.build import Workload, build_workload
from kvbench.workload.request import Request
from kvbench.workload.tokens import token_ids

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "traces"


def synthetic(**changes: Any) -> Workload:
    return build_workload(WorkloadSettings.model_validate(changes))


def from_trace(path: Path | str, **changes: Any) -> Workload:
    base = {"source": "trace", "trace": str(path), "arrival": {"kind": "recorded"}}
    return build_workload(WorkloadSettings.model_validate(base | changes))


def prompt_ids(workload: Workload, request: Request, vocab_size: int = 50_000) -> list[int]:
    return token_ids(request.prompt, workload.seed, vocab_size).tolist()


def output_ids(workload: Workload, request: Request, vocab_size: int = 50_000) -> list[int]:
    return token_ids(request.output or (), workload.seed, vocab_size).tolist()


def naive_hit_tokens(workload: Workload, block_size: int, vocab_size: int) -> int:
    """Every prompt against every sequence before it, token by token."""
    held: list[tuple[str | None, list[int]]] = []
    hits = 0
    for request in workload.requests:
        prompt = prompt_ids(workload, request, vocab_size)
        best = max((_common(prompt, tokens) for salt, tokens in held if salt == request.salt), default=0)
        hits += best // block_size * block_size
        held.append((request.salt, prompt + output_ids(workload, request, vocab_size)))
    return hits


def _common(a: list[int], b: list[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
