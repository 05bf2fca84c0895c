"""From the settings to a drafter over tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.engine.attention.registry import attention_backend
from kvbench.engine.kvstore.store import KVStore
from kvbench.engine.model import Model
from kvbench.engine.speculation.draft_model import DraftedRunner, DraftModel
from kvbench.engine.speculation.first_layers import FirstLayers
from kvbench.engine.speculation.geometry import check_draft, draft_kv_dtype
from kvbench.engine.speculation.prompt_lookup import PromptLookup
from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.engine.memory import Sizes
    from kvbench.engine.runner import DeviceRunner
    from kvbench.engine.speculation.drafter import Drafter
    from kvbench.geometry.model import ModelGeometry
    from kvbench.spec.engine import EngineSettings


def with_drafter(runner: DeviceRunner, settings: EngineSettings, sizes: Sizes) -> tuple[DeviceRunner, Drafter | None]:
    """The runner that the loop gets, and the drafter; `UsageError` when the draft does not suit the model."""
    if settings.acceptance_rate is not None and settings.speculation != "none":
        raise UsageError(
            "acceptance_rate is declared, and this engine finds out which drafts are right",
            hint="leave it out, or use the virtual clock",
        )
    draft = check_draft(runner.model.geometry, settings)
    if settings.speculation == "prompt-lookup":
        return runner, PromptLookup()
    if settings.speculation == "first-layers":
        return runner, FirstLayers(runner.model, runner.store, runner.attention, int(settings.draft_layers or 1))
    if draft is None:
        return runner, None
    drafter = _draft_model(runner.model, draft, settings, sizes)
    return DraftedRunner(runner, drafter), drafter


def _draft_model(target: Model, geometry: ModelGeometry, settings: EngineSettings, sizes: Sizes) -> DraftModel:
    name, device = settings.draft_model or "", str(target.device)
    if Path(name).is_dir():
        model = Model.from_pretrained(name, device=device, dtype=target.weight_dtype)
    else:
        model = Model.random(geometry, device=device, dtype=target.weight_dtype)
    kv_dtype = draft_kv_dtype(settings)
    attention = attention_backend(settings.attention, target.device)
    store = KVStore(
        geometry,
        kv_dtype,
        settings.block_size,
        sizes.num_blocks,
        device=target.device,
        uses_triton=attention.stores_by_triton,
    )
    return DraftModel(model, store, attention)
