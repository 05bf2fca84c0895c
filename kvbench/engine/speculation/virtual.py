"""Speculation under the virtual clock: what drafting costs is predicted, what is right is declared. Torch-free."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.engine.speculation.declared import DeclaredDrafter
from kvbench.engine.speculation.geometry import check_draft
from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.cache.types import CacheManager
    from kvbench.costmodel.cost import StepCost
    from kvbench.engine.clock import VirtualClock
    from kvbench.engine.schedule import Schedule
    from kvbench.geometry.model import ModelGeometry
    from kvbench.spec.engine import EngineSettings


class VirtualDrafter(DeclaredDrafter):
    """Every turn over the sequences that want a draft takes the time of a decode step of the draft."""

    def __init__(self, settings: EngineSettings, cost: StepCost | None, clock: VirtualClock) -> None:
        """`cost` None: drafting takes no time. Raises `UsageError` when no acceptance rate is declared."""
        super().__init__(_declared_rate(settings))
        self.cost, self.clock = cost, clock
        self.completes_kv = settings.speculation == "draft-model"

    def draft(self, step: Schedule, manager: CacheManager) -> None:
        if step.drafts is None or self.cost is None:
            return
        counts, starts = step.drafts.counts, step.starts[: step.num_decodes]
        for turn in range(int(counts.max(initial=0)) + self.completes_kv):
            active = counts >= turn if self.completes_kv else counts > turn
            places = starts[active] + np.int32(turn)
            sampled = int(np.count_nonzero(counts > turn))
            features = self.cost.features(places, np.ones(len(places), np.int32), len(places), sampled)
            self.clock.advance(self.cost.step_s(features))


def draft_geometry(target: ModelGeometry, settings: EngineSettings) -> ModelGeometry | None:
    """What drafts: the draft model, or the first layers as a model of their own; None when nothing is computed."""
    draft = check_draft(target, settings)
    if settings.speculation != "first-layers":
        return draft
    layers = int(settings.draft_layers or 1)
    kept = [replace(group, layers=tuple(at for at in group.layers if at < layers)) for group in target.groups]
    return replace(target, num_layers=layers, groups=tuple(group for group in kept if group.layers))


def _declared_rate(settings: EngineSettings) -> float:
    if settings.acceptance_rate is None:
        raise UsageError(
            "under the virtual clock nothing is computed, so nobody knows which drafts are right",
            hint="declare it, as in acceptance_rate = 0.7",
        )
    return settings.acceptance_rate
