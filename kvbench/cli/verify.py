"""`kvbench verify`: does the cache keep every byte where it says, under random load and injected faults?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import Table, emit, format_option

if TYPE_CHECKING:
    from kvbench.verify.campaign import Tally
    from kvbench.verify.scenario import Scenario


@click.command()
@click.option("--steps", type=click.IntRange(min=1), help="Engine steps to play.  [20000, unless --seconds is given]")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Time to play.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="First seed.")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes.")
@click.option(
    "--fault-rate", type=click.FloatRange(0, 1), default=0.02, show_default=True, help="Faults of each kind per turn."
)
@click.option(
    "--replay", type=click.Path(path_type=Path, dir_okay=False), help="Play one scenario file and nothing else."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Folder for a failing scenario.  [.]",
)
@format_option
@click.pass_context
def verify(
    ctx: click.Context,
    steps: int | None,
    seconds: float | None,
    seed: int,
    jobs: int,
    fault_rate: float,
    replay: Path | None,
    out: Path,
    form: str,
) -> None:
    """Play random workloads under random settings through the real scheduler and cache, on a device that knows what
    every slot must hold; evict, refuse, abort, collide and damage on the way; check all invariants after every step.

    Exit 1 when something is found: the scenario is shrunk and written to a file that --replay plays again. The same
    seed is the same scenario in every process of one version. No model, no GPU, no torch.
    """
    if replay is not None:
        ctx.exit(_replay(replay, form))
    tally = _run(seed, steps, seconds, jobs, fault_rate)
    failing = _keep(tally, out, fault_rate) if tally.findings else None
    _print(form, tally, failing)
    ctx.exit(1 if failing else 0)


def _run(seed: int, steps: int | None, seconds: float | None, jobs: int, fault_rate: float) -> Tally:
    import time

    from kvbench.console import say
    from kvbench.verify.campaign import Budget, Tally, campaign

    budget = Budget(20_000 if steps is None and seconds is None else steps, seconds)
    tally, told = Tally(), time.monotonic()
    try:
        for tally in campaign(seed, budget, jobs=jobs, fault_rate=fault_rate):
            if time.monotonic() - told > 10:
                told = time.monotonic()
                say(f"{tally.steps:,} steps, {tally.scenarios:,} scenarios, {tally.seconds:.0f} s: nothing found")
    except KeyboardInterrupt:
        say(f"interrupted after {tally.steps:,} steps in {tally.scenarios:,} scenarios: nothing was found until then")
        raise
    return tally


def _keep(tally: Tally, out: Path, fault_rate: float) -> dict[str, Any]:
    """Shrink the first finding and write it down; what the report says of it."""
    from kvbench.verify.draw import draw_scenario
    from kvbench.verify.shrink import shrink

    finding = tally.findings[0]
    scenario = shrink(draw_scenario(finding.seed, fault_rate), finding.failure)
    written = _write(out / f"verify-{finding.seed}.json", scenario)
    return _report(finding.seed, finding.failure, written, scenario)


def _report(seed: int | None, failure: str, path: str | None, scenario: Scenario) -> dict[str, Any]:
    return {
        "seed": seed,
        "failure": failure,
        "scenario_file": path,
        "requests": len(scenario.asks),
        "faults": len(scenario.faults),
        "settings": scenario.engine,
    }


def _write(path: Path, scenario: Scenario) -> str | None:
    """Where the scenario went; None, with a word, when it cannot be written: the seed still names it."""
    from kvbench.console import say
    from kvbench.errors import KvbenchError
    from kvbench.store.targets import Target, begins_with, writing

    try:
        with writing(path, Target("scenario", begins_with(b'{"asks": ', within=9), makes_folder=True)) as file:
            file.write(f"{scenario.to_json()}\n".encode())
    except KvbenchError as error:
        say(f"warning: the scenario cannot be written: {error.message}")
        return None
    return str(path)


def _replay(path: Path, form: str) -> int:
    from kvbench.errors import UsageError
    from kvbench.verify.campaign import Tally
    from kvbench.verify.play import play
    from kvbench.verify.scenario import Scenario

    try:
        scenario = Scenario.from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="give a file that `kvbench verify` wrote") from None
    outcome, tally = play(scenario), Tally()
    tally.add(0, outcome)
    failing = None
    if outcome.failure is not None:
        failing = _report(None, outcome.failure, str(path), scenario)
    _print(form, tally, failing)
    return 1 if failing else 0


def _print(form: str, tally: Tally, failing: dict[str, Any] | None) -> None:
    record: dict[str, Any] = {
        "scenarios": tally.scenarios,
        "steps": tally.steps,
        "faults": tally.faults,
        "seconds": round(tally.seconds, 3),
        "failures": len(tally.findings),
    }
    tables = [Table("Verified", list(record), [[f"{value:,}" for value in record.values()]], frozenset(range(5)))]
    if failing is not None:
        tables.append(Table("Found", ("", ""), [[name, str(value)] for name, value in failing.items()]))
    document = {**record, "found": failing}
    emit(form, tables=tables, columns=list(record), records=[record], document=document)
