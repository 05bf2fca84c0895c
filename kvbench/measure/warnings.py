"""Warnings as values: a name and the numbers behind it, stored with the row; the words are made when they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Numbers = Mapping[str, Any]


class RowWarning(NamedTuple):
    """What a reader of a row should know. `name` is a key of `TEXTS`."""

    name: str
    numbers: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The form in which rows carry it."""
        return {"name": self.name, "numbers": self.numbers}


def text(name: str, numbers: Numbers) -> str:
    """A warning in words; one of a newer kvbench, or with numbers missing, is shown by its name and numbers."""
    try:
        return TEXTS[name](numbers)
    except (KeyError, TypeError, ValueError):
        return name + "".join(f" {key}={value}" for key, value in numbers.items())


def _too_few_samples(numbers: Numbers) -> str:
    missing = ", ".join(f"{name} (needs {needed})" for name, needed in numbers["missing"].items())
    return f"not shown for {numbers['of']}: {missing} of {numbers['count']} values"


def _share(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.1%}"


TEXTS: dict[str, Callable[[Numbers], str]] = {
    "too_few_samples": _too_few_samples,
    "no_metrics": lambda n: f"no metric: {n['finished']} of {n['requests']} requests finished, {n['steps']} steps",
    "requests_rejected": lambda n: f"{n['rejected']} of {n['requests']} requests could never fit and were rejected",
    "requests_failed": lambda n: f"{n['failed']} of {n['requests']} requests ended in an error",
    "offload_never_used": lambda n: (
        f"host offload was on but nothing was promoted ({n['host_offload_bytes']:,} bytes offloaded): "
        "the working set fits in device memory, or nothing came back"
    ),
    "copies_failed": lambda n: (
        f"{n['failed_copies']} block copies between tiers failed; their tokens were computed again"
    ),
    "disk_tier_off": lambda n: f"the disk tier was switched off in the middle of the run: {n['reason']}",
    "preempted_heavily": lambda n: (
        f"{n['preemptions']} preemptions for {n['requests']} requests, {n['recomputed_share']:.0%} of computed "
        "tokens were recomputed"
    ),
    "identical_latency": lambda n: (
        f"hit rate differs from {n['hit_rate_min']:.1%} to {n['hit_rate_max']:.1%} between cases whose every latency "
        "is identical to the last digit"
    ),
    "modelled": lambda n: f"predicted by {n['by']}, which was never held against a measurement: no interval",
    "few_errors_known": lambda n: (
        f"intervals from the errors of {n['cases']} cases; {n['needed']} are needed for what they promise"
    ),
    "no_errors_known": lambda n: f"no interval for {', '.join(n['metrics'])}: no fitted case had it",
    "measured_slowed": lambda n: (
        f"{'the sample' if n['samples'] == 1 else 'all ' + str(n['samples']) + ' samples'} behind the measured value "
        "ran on a core or GPU that others slowed"
    ),
    "outside_domain": lambda n: (
        f"{n['what']} reaches {n['reached']:,.0f}, and the fitted runs had {n['low']:,.0f} to {n['high']:,.0f} "
        f"({n['share']:.0%} of the predicted time): the model reaches beyond them, and an interval is wider for it"
    ),
    "unseen_setting": lambda n: (
        f"{n['what']} = {n['value']}, and the fitted runs had {', '.join(n['seen'])}: the model does not know what it "
        "costs, and an interval is wider for it"
    ),
    "not_a_number": lambda n: f"not a finite number: {', '.join(n)}",
    "not_stationary": lambda n: f"still drifting after {n['warmup_s']:.3g} s of warm-up",
    "slo_value_missing": lambda n: (
        "objectives on what finished requests do not have: "
        + ", ".join(f"{name} (missing for {count} of {n['finished']})" for name, count in n["missing"].items())
        + "; such a request met nothing"
    ),
    "client_bound": lambda n: (
        f"{n['share']:.0%} of the time requests waited for the client loop between steps (limit {n['limit']:.0%}): "
        "the engine could do more than this shows"
    ),
    "contradiction": lambda n: f"columns contradict each other: {n['what']}: {n['left']:,} and {n['right']:,}",
    "throttled": lambda n: f"GPU clocks were held back in {n['share']:.0%} of the readings ({', '.join(n['reasons'])})",
    "foreign_process": lambda n: (
        f"{n['gpu_processes']} other processes used the GPU"
        if "gpu_processes" in n
        else f"others took {n['cpu_share']:.0%} of the CPU time (limit {n['limit']:.0%})"
    ),
    "cpu_stolen": lambda n: f"the hypervisor took {n['share']:.0%} of the CPU time (limit {n['limit']:.0%})",
    "core_shared": lambda n: (
        f"another tenant used the core {n['share']:.0%} of the time (limit {n['limit']:.0%})"
        + (f": those calls were set aside, {n['calls']} count" if "calls" in n else "")
    ),
    "descheduled": lambda n: f"threads were put aside {n['per_s']:.0f} times a second (limit {n['limit']:.0f})",
    "page_faults": lambda n: f"{n['per_s']:.0f} page faults a second waited for a disk (limit {n['limit']:.0f})",
    "swapped": lambda n: f"the machine swapped {n['bytes']:,} bytes",
    "not_redone": lambda n: f"disturbed ({', '.join(n['reasons'])}) and not measured again: the budget is spent",
    "sensor_lost": lambda n: f"the GPU answered {n['answered']} of {n['readings']} readings",
    "energy_counter_odd": lambda n: (
        f"the GPU's energy counter went from {n['before_j']:.1f} to {n['after_j']:.1f} J: not believed"
    ),
    "nothing_to_prime": lambda n: (
        f"declared {n['state']}, but no two conversations share a front: the cache was as cold as ever"
    ),
    "state_not_held": lambda n: (
        f"declared {n['state']}, but none of {n['prepared_tokens']:,} tokens served before the window was still cached"
    ),
    "imprecise": lambda n: (
        f"the median is known to ±{_share(n['reached'])}, not to ±{n['wanted']:.1%}, after {n['calls']} calls in "
        f"{n['window_s']:.3g} s"
    ),
    "bimodal": lambda n: (
        f"timings fall into two groups: {1 - n['high_share']:.0%} near {n['low']:.3g} s, {n['high_share']:.0%} near "
        f"{n['high']:.3g} s"
    ),
}
