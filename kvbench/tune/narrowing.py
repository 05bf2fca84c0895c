"""A Triton kernel's space before anything is launched: what static pruning leaves, the most promising first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kvbench.tune.prune import Judged
from kvbench.tune.space import Space

if TYPE_CHECKING:
    from kvbench.devices.facts import Device
    from kvbench.tune.tunable import Tunable
    from kvbench_kernels.specs import KernelShape

Narrow = Callable[["Tunable", "KernelShape", Space], Space]


def narrower(device: Device, timeout_s: float, say: Callable[[str], None]) -> Narrow | None:
    """For a device whose architecture is known; None where there is nothing to compile for."""
    if device.compute_capability is None:
        return None
    capability = device.compute_capability

    def narrow(tunable: Tunable, shape: KernelShape, space: Space) -> Space:
        from kvbench.tune.static_report import static_report
        from kvbench.tune.targets import known_target

        report = static_report(tunable.name, shape, known_target(capability), timeout_s=timeout_s)
        say("compiled for pruning: " + ", ".join(f"{n} {status}" for status, n in report.counts.items()))
        return narrowed(space, report.judged, tunable.default(shape))

    return narrow


def narrowed(space: Space, judged: Sequence[Judged], default: dict[str, Any]) -> Space:
    """Configurations whose compiled part is worth timing, by its rank; the default stays in any case. Parameters that
    are not compiled in (splits) keep all their values."""
    ranks = {_key(one.candidate.configuration): one.rank or 0 for one in judged if one.status == "kept"}
    fields = list(judged[0].candidate.configuration) if judged else []
    rows = [space.as_dict(at) for at in range(len(space))]
    kept = [
        (ranks.get(_key({name: row[name] for name in fields}), 0), at)
        for at, row in enumerate(rows)
        if _key({name: row[name] for name in fields}) in ranks or row == default
    ]
    return Space(space.names, tuple(space.configurations[at] for _, at in sorted(kept)))


def _key(configuration: Any) -> tuple[Any, ...]:
    return tuple(sorted(configuration.items()))
