"""Which tuned kernel configurations a case gets: looked up when it is planned, so that the engine receives values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError
from kvbench.geometry.dtypes import scales_per_token, storage_dtype
from kvbench.geometry.memory import kv_bytes_per_token
from kvbench.measure.kernel_geometry import query_dtype
from kvbench.tuned.files import read_store
from kvbench.tuned.kernels import KERNELS, PREFILL, TunedKernel, kernel_of
from kvbench.tuned.key import device_label, key_of, layer_label, prefill_label
from kvbench.tuned.table import Match, TunedTable, retune_hint
from kvbench.tuned.winner import Winner, table_digest
from kvbench_kernels import decode_config
from kvbench_kernels.specs import KernelShape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.geometry.model import LayerGroup, ModelGeometry
    from kvbench.spec.engine import EngineSettings
    from kvbench.spec.suite import KernelSettings
    from kvbench.sweep.machine import Machine
    from kvbench.workload.build import Workload


class TunedConfigurations:
    """Looks up what cases ask for, and remembers what was used and what was stale.

    `is_on` False (`measure.tuned`, `--no-tuned`, a virtual clock): nothing is looked up."""

    def __init__(self, machine: Machine, threads: int, *, is_on: bool) -> None:
        self.is_on = is_on and not machine.is_virtual
        found = read_store() if self.is_on else None
        self._table = found.table if found else TunedTable()
        self._kind = machine.device.kind
        self._device = device_label(machine.device.kind, machine.device.name, threads)
        self._used: dict[str, Winner] = {}
        self._notes: dict[str, None] = dict.fromkeys(found.problems if found else ())

    def of_kernel(self, kernel: KernelSettings, geometry: ModelGeometry) -> dict[str, dict[str, Any]]:
        """Group label → configuration, of a kernel case; empty where the defaults run."""
        shapes = {_label(geometry.groups[0]): kernel_case_shape(kernel, self._kind)}
        return self._of(kernel.attention, shapes)

    def of_engine(
        self, engine: EngineSettings, geometry: ModelGeometry, workload: Workload
    ) -> dict[str, dict[str, Any]]:
        """The same of an engine case, one for each of its layer groups, and of prefill where it has a kernel."""
        return self._of(engine.attention, engine_case_shapes(engine, geometry, workload))

    def facts(self) -> dict[str, Any]:
        """For the plan and the manifest: whether winners may be used, which were, and one digest of them."""
        used = [self._used[key] for key in sorted(self._used)]
        return {
            "is_on": self.is_on,
            "digest": table_digest(used),
            "configurations": [
                {"kernel": w.key.kernel, "shape": w.key.label, "configuration": w.configuration} for w in used
            ],
        }

    def foreword(self) -> Iterable[str]:
        """What was used and what could not be, a line each."""
        yield from self._notes
        for fact in self.facts()["configurations"]:
            values = ", ".join(f"{name} {value}" for name, value in fact["configuration"].items())
            yield f"tuned: {fact['kernel']} tuned for {fact['shape']} runs with {values}"

    def _of(self, backend: str, shapes: dict[str, KernelShape]) -> dict[str, dict[str, Any]]:
        found = {}
        for label, shape in shapes.items():
            kernel = kernel_of(backend, shape)
            if kernel is None:
                continue
            key = key_of(kernel.name, kernel.page, kernel.compiler, self._device, shape)
            match = self._table.look_up(key)
            if match is not None and self._can_run(match.winner, kernel, shape):
                found[label] = self._use(match)
            for text in self._table.stale(key) if match is None else ():
                self._notes[f"{text}; not used. Re-tune with {retune_hint(key)}"] = None
        return found

    def _can_run(self, winner: Winner, kernel: TunedKernel, shape: KernelShape) -> bool:
        """Whether the kernel takes the configuration for this shape; noted where it does not (the store's files can be
        edited)."""
        why = _refusal(winner.configuration, kernel, shape)
        if why is not None:
            self._notes[f"{kernel.name} for {winner.key.label}: {why}; not used, the default runs"] = None
        return why is None

    def _use(self, match: Match) -> dict[str, Any]:
        self._used[match.winner.key.digest] = match.winner
        return dict(match.winner.configuration)


def _refusal(configuration: dict[str, Any], kernel: TunedKernel, shape: KernelShape) -> str | None:
    """Why the kernel cannot run a stored configuration, None when it can."""
    if kernel.compiler == "numba":
        return decode_config.allowed(configuration)
    from kvbench.engine.attention.triton_configs import launch_of

    try:
        launch_of(kernel.page, configuration, shape)
    except UsageError as error:
        return error.message
    return None


def kernel_case_shape(kernel: KernelSettings, device: str) -> KernelShape:
    """The shape of a kernel case on a kind of device, its `attention` resolved."""
    return KernelShape(
        query_dtype=query_dtype(kernel, device),
        kv_dtype=kernel.kv_dtype,
        has_block_scales=_has_block_scales(kernel.kv_dtype, kernel.kv_scales),
        block_size=kernel.block_size,
        query_heads=kernel.query_heads,
        kv_heads=kernel.kv_heads,
        k_dim=kernel.head_dim,
        v_dim=kernel.head_dim,
        layout=kernel.kv_layout,
        batch=kernel.batch,
        context=kernel.context,
    )


def engine_case_shapes(engine: EngineSettings, geometry: ModelGeometry, workload: Workload) -> dict[str, KernelShape]:
    """Group label → the decode that an engine case spends its time on, `kv_memory` and `attention` resolved; and the
    same groups' prefill where it has a kernel that can be tuned.

    Decode: the mean context over decoded tokens, as many sequences as the settings, the requests and the pool allow.
    Prefill: prompts of the mean length, in chunks of what a step may take."""
    batch, context = _typical(engine, geometry, workload)
    rank = geometry.latent.kv_lora_rank if geometry.latent else 0
    found = {
        _label(group, rank): _group_shape(engine, geometry, group, rank, batch, context) for group in geometry.groups
    }
    if PREFILL in KERNELS.get(engine.attention, {}) and workload.requests:
        prompt = round(sum(r.input_tokens for r in workload.requests) / len(workload.requests))
        tokens = max(2, min(prompt, engine.max_batch_tokens))
        count = max(1, min(engine.max_sequences, engine.max_batch_tokens // tokens))
        found |= {
            prefill_label(_label(group, rank)): replace(
                found[_label(group, rank)], batch=count, context=max(prompt, tokens), query_tokens=tokens
            )
            for group in geometry.groups
            if group.kind != "latent"
        }
    return found


def _group_shape(
    engine: EngineSettings, geometry: ModelGeometry, group: LayerGroup, rank: int, batch: int, context: int
) -> KernelShape:
    return KernelShape(
        query_dtype=engine.weight_dtype if engine.attention == "triton" else "fp32",
        kv_dtype=engine.kv_dtype,
        has_block_scales=_has_block_scales(engine.kv_dtype, engine.kv_scales),
        block_size=engine.block_size,
        query_heads=geometry.query_heads,
        kv_heads=group.kv_heads,
        k_dim=group.k_head_dim,
        v_dim=rank if group.kind == "latent" else group.v_head_dim,
        layout=engine.kv_layout,
        batch=batch,
        context=context,
        has_window=group.kind == "window",
        has_sinks=geometry.attention_sinks,
        has_cap=geometry.score_cap is not None,
    )


def _typical(engine: EngineSettings, geometry: ModelGeometry, workload: Workload) -> tuple[int, int]:
    decoded = sum(r.output_tokens for r in workload.requests)
    weighted = sum(r.output_tokens * (r.input_tokens + r.output_tokens / 2) for r in workload.requests)
    context = max(1, round(weighted / decoded)) if decoded else 1
    held = int(engine.kv_memory) / float(kv_bytes_per_token(geometry, engine.kv_dtype, engine.kv_scales))
    batch = min(engine.max_sequences, len(workload.requests), int(held / context))
    return max(1, batch), context


def _label(group: LayerGroup, latent_rank: int = 0) -> str:
    v_dim = latent_rank if group.kind == "latent" else group.v_head_dim
    return layer_label(group.kind, group.kv_heads, group.k_head_dim, v_dim)


def _has_block_scales(kv_dtype: str, kv_scales: str) -> bool:
    return scales_per_token(kv_scales) and storage_dtype(kv_dtype).scale_bytes > 0
