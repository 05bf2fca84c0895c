"""A scenario's settings as the engine and the cache take them."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kvbench.cache.types import CacheGroup, CacheSettings
from kvbench.engine.memory import decode_tokens, step_tokens, table_rows
from kvbench.errors import UsageError
from kvbench.spec.engine import EngineSettings
from kvbench.verify.weak_hash import WEAK, offer_weak_digest

if TYPE_CHECKING:
    from kvbench.verify.scenario import Scenario


def engine_settings(scenario: Scenario) -> EngineSettings:
    """`UsageError` for a combination that no suite could have."""
    try:
        return EngineSettings.model_validate(scenario.engine)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UsageError(f"the scenario's settings: {reason}", hint="give a file that `kvbench verify` wrote") from None


def cache_settings(scenario: Scenario, settings: EngineSettings) -> CacheSettings:
    """Whatever the cache takes from the engine's settings by the same name, and the scenario's sizes."""
    if scenario.weak_hash:
        offer_weak_digest()
    shared = {f.name for f in fields(CacheSettings)} & EngineSettings.model_fields.keys()
    chosen: dict[str, Any] = {name: getattr(settings, name) for name in shared}
    chosen |= {
        "num_blocks": scenario.num_blocks,
        "host_blocks": scenario.host_blocks,
        "disk_blocks": scenario.disk_blocks,
        "swap_blocks": scenario.swap_blocks,
        "max_sequences": table_rows(settings),
        "step_tokens": step_tokens(settings),
        "decode_tokens": decode_tokens(settings),
        "max_context": scenario.max_context,
        "groups": tuple(CacheGroup("full" if w is None else "window", w) for w in scenario.windows),
    }
    if scenario.weak_hash:
        chosen["hash_function"] = WEAK
    return CacheSettings(**chosen)
