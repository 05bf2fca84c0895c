"""Why a case cannot be served as it asks, before anything runs: model, workload and settings against each other."""

from __future__ import annotations

from kvbench.cache.reservations import largest_piece
from kvbench.costmodel.fitted import FittedFile, prices_copies
from kvbench.engine.memory import reserves_maximum, step_tokens
from kvbench.engine.padding import why_no_graphs
from kvbench.engine.speculation.geometry import draft_block_bytes
from kvbench.geometry.memory import pool_layout
from kvbench.geometry.model import ModelGeometry
from kvbench.spec.engine import EngineSettings
from kvbench.spec.workload import WorkloadSettings
from kvbench.sweep.machine import Machine
from kvbench.sweep.resolve import context_limit
from kvbench.units import format_bytes, format_duration
from kvbench.workload.build import Workload


def cannot_serve(engine: EngineSettings, geometry: ModelGeometry) -> str | None:
    """Why these settings do not go with this model; None when they do."""
    if all(group.window is None for group in geometry.groups):
        return None
    tails = f"the sliding-window layers of {geometry.name} keep only the tails of prefixes"
    if engine.offload != "none":
        return f'offload = "{engine.offload}" keeps whole prefixes, and {tails}; use offload = "none" with this model'
    if engine.preemption != "recompute":
        return (
            f'preemption = "{engine.preemption}" copies whole sequences, and {tails}; use "recompute" with this model'
        )
    if engine.partial_block_reuse and engine.prefix_cache != "none":
        return f"partial_block_reuse goes by whole prefixes, and {tails}; switch it off for this model"
    return None


def too_long(workload: Workload, engine: EngineSettings, geometry: ModelGeometry) -> tuple[int, str]:
    """How many requests can never be served (longer than the model, or than an empty pool), and the arithmetic."""
    limit = context_limit(engine, geometry)
    layout = pool_layout(geometry, engine.kv_dtype, engine.block_size, engine.kv_scales)
    blocks = int(engine.kv_memory) // (layout.block_bytes + draft_block_bytes(geometry, engine))
    piece = largest_piece(engine.allocator, blocks)
    slides = engine.allocator == "paged"
    endless = layout.longest_sequence(piece, step_tokens(engine) if slides else None)
    pool = limit if endless is None else endless
    if engine.reblock_to != "none":
        pool = min(pool, _tokens_after_reblocking(engine, geometry, layout.block_bytes * (blocks + 1)))
    if reserves_maximum(engine) and pool < limit:
        pool = 0  # every sequence reserves the longest, and not even one of those fits
    most = min(limit, pool)
    count = sum(r.input_tokens + r.output_tokens > most for r in workload.requests)
    held = f"{format_bytes(int(engine.kv_memory))} = {blocks} blocks of {engine.block_size} tokens hold {pool}"
    if reserves_maximum(engine) and not pool:
        held = f"{format_bytes(int(engine.kv_memory))} cannot hold one reservation of {limit} tokens"
    elif piece < blocks:
        held = f"{held} in the largest piece of {piece} blocks"
    return count, f"the longest sequence that can be served is {most} tokens (context limit {limit}; {held})"


def _tokens_after_reblocking(engine: EngineSettings, geometry: ModelGeometry, pool_bytes: int) -> int:
    """Longest sequence in blocks of the other size in the same bytes, the null block among them."""
    layout = pool_layout(geometry, engine.kv_dtype, int(engine.reblock_to), engine.kv_scales)
    return layout.longest_sequence(pool_bytes // layout.block_bytes - 1) or 0


def arrives_too_late(workload: Workload, machine: Machine, timeout_s: float) -> str | None:
    """Why such a case would be stopped before its last request has arrived."""
    if machine.is_virtual or (last_s := workload.last_arrival_s) < timeout_s:
        return None
    return (
        f"its requests arrive over {format_duration(last_s)}, and a case is stopped after timeout_s = {timeout_s:g}; "
        "take fewer requests (a trace: --limit), a faster pace (a trace: --scale-time 0.1; else a higher rate), all at "
        "once (-a arrival.kind=all-at-once), or more time (-a timeout_s=…)"
    )


def cannot_speculate(workload: WorkloadSettings, engine: EngineSettings, machine: Machine) -> str | None:
    """Why these requests cannot be speculated on here; None when they can, or nobody speculates."""
    if engine.speculation == "none":
        return None
    if workload.sampling.beams > 1:
        return 'beams are several, and speculation drafts one: set speculation = "none" or sampling.beams = 1'
    if machine.is_virtual:
        is_declared = engine.acceptance_rate is not None
        return None if is_declared else "under the virtual clock speculation needs acceptance_rate, as in 0.7"
    if engine.acceptance_rate is not None:
        return "acceptance_rate is declared for the virtual clock; here the model finds out which drafts are right"
    if workload.outputs == "forced":
        return 'no draft can guess forced outputs: set workload.outputs = "sampled", or use the virtual clock'
    return None


def cannot_reblock(workload: Workload, engine: EngineSettings, geometry: ModelGeometry, machine: Machine) -> str | None:
    """Why the pool could never be re-blocked as `reblock_to` asks; None when it can, or nobody asks."""
    if engine.reblock_to == "none":
        return None
    if machine.is_virtual:
        return "reblock_to moves real contents, which the virtual clock does not have"
    if any(group.kind == "window" for group in geometry.groups):
        return f"reblock_to keeps whole sequences, and {geometry.name} has sliding-window layers"
    if engine.reblock_after >= len(workload.requests):
        return f"reblock_after is {engine.reblock_after}, and the workload has {len(workload.requests)} requests"
    return None


def cannot_capture(engine: EngineSettings, geometry: ModelGeometry, machine: Machine) -> str | None:
    """Why decode steps cannot be captured as CUDA graphs; None when they can, or nobody asks."""
    if engine.cuda_graphs and machine.is_virtual:
        return "cuda_graphs makes launches cheaper, and the virtual clock launches nothing"
    return why_no_graphs(engine, geometry, machine.device.kind)


def cannot_price(engine: EngineSettings, geometry: ModelGeometry, machine: Machine) -> str | None:
    """Why a fitted cost model says nothing about these settings; None when it does, or there is none."""
    cost = machine.cost
    if not isinstance(cost, FittedFile):
        return None
    if engine.attention not in ("auto", cost.attention):
        return f"{cost.label} was fitted with attention = {cost.attention!r}, not {engine.attention!r}"
    if engine.speculation != "none":
        return f'{cost.label} prices no drafts: set speculation = "none"'
    stored = (engine.weight_dtype, engine.kv_dtype, engine.kv_scales, engine.kv_layout)
    return cost.why_not(geometry, *stored) or _no_price_for_copies(engine, cost)


def _no_price_for_copies(engine: EngineSettings, cost: FittedFile) -> str | None:
    fit = cost.configuration(engine.kv_dtype, engine.kv_scales, engine.kv_layout)
    wanted = {"host_bytes"} if engine.offload != "none" or engine.preemption != "recompute" else set()
    wanted |= {"disk_bytes"} if engine.offload == "host+disk" else set()
    if fit is None or wanted <= prices_copies(fit):
        return None
    return f"{cost.label} has no price for block copies to and from host or disk: fit it with a run that makes them"


def cannot_price_kernels(machine: Machine) -> str | None:
    """Why kernel cases have no predicted time; None when they have, or are measured."""
    is_fitted = isinstance(machine.cost, FittedFile)
    return "a fitted cost model knows steps of an engine, and no kernel calls" if is_fitted else None
