"""`kvbench gate run`: measure two revisions in turns and judge the candidate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.comparing import refusal_shown
from kvbench.cli.gate_output import deliver, verdict_options
from kvbench.cli.given import refuse_out_beside_resume
from kvbench.cli.output import format_option

if TYPE_CHECKING:
    from kvbench.analysis.gate.types import Inconclusive
    from kvbench.spec.load import LoadedSuite
    from kvbench.sweep.gate_run import GateSettings


@click.command(name="run")
@click.argument("suite", required=False)
@click.option("--base", metavar="REV|PATH", help="What to hold against: a git revision, or a checkout's folder.")
@click.option("--candidate", metavar="REV|PATH", help="What is judged.  [the current folder's checkout]")
@click.option("-a", "--axis", "overrides", multiple=True, metavar="KEY=V[,V…]", help="As for kvbench sweep.")
@click.option("--metric", "metrics", multiple=True, help="Column to judge; repeatable.  [the usual ones of each kind]")
@click.option("--blocks", type=click.IntRange(5, 1000), help="Blocks of the screen and of the self-test.  [10]")
@click.option("--confirm-blocks", type=click.IntRange(5, 1000), help="Fresh blocks for cases left open.  [24]")
@click.option("--vary", multiple=True, help="What the sides may differ in; repeatable.  [git_commit]")
@click.option(
    "--self-test",
    type=click.Choice(["auto", "fresh", "none"]),
    help="Base against base first; auto uses one of the last day under the same conditions. Without one a FAIL is "
    "only advice.  [auto]",
)
@click.option("--base-python", type=click.Path(exists=True, dir_okay=False), help="Interpreter of the base.")
@click.option("--candidate-python", type=click.Path(exists=True, dir_okay=False), help="Interpreter of the candidate.")
@click.option("--own-environments", is_flag=True, help="Install each side into a virtual environment of its own.")
@click.option("--seed", type=click.IntRange(min=0), help="Of every order.  [drawn]")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True, help="Where it goes."
)
@click.option("--resume", type=click.Path(path_type=Path), metavar="GATE", help="Go on with a stopped gate's folder.")
@verdict_options
@format_option
def run(
    suite: str | None,
    resume: Path | None,
    out: Path,
    overrides: tuple[str, ...],
    inconclusive: Inconclusive,
    paths: tuple[Path, ...],
    github: bool,
    form: str,
    **options: Any,
) -> int:
    """Measure --base and --candidate in turns on SUITE, every sample a fresh process, and judge the candidate.

    A suite is screened in 10 blocks of both sides; cases that do not pass there are judged on fresh blocks alone. PASS
    says that a slowdown of 3 % is ruled out, FAIL that at least 2 % is shown; what is neither is INCONCLUSIVE.

    Exits 0 for PASS and IMPROVED, 1 for FAIL, 3 for INCONCLUSIVE (see --inconclusive), 4 where the sides are not
    comparable or one does not run, 5 for missing data.

    \b
    Examples:
      kvbench gate run --base main smoke
      kvbench gate run --base v1.2 --candidate HEAD kernels.toml --write gate.xml
      kvbench gate run --resume results/gate-smoke-20260101T000000Z
    """
    from kvbench.report.ci.write import check_paths
    from kvbench.sweep.gate_run import resume_gate, run_gate

    refuse_out_beside_resume()
    check_paths(paths)
    with refusal_shown(form):
        if resume is None:
            result = run_gate(_loaded(suite, overrides), _settings(options), out=out)
        elif suite is not None or overrides or options["seed"] is not None or any(options.values()):
            raise click.UsageError("--resume goes on with what was asked: give nothing else but outputs")
        else:
            result = resume_gate(resume)
    return deliver(result.verdict, result.context(inconclusive), form, paths, github)


def _loaded(suite: str | None, overrides: tuple[str, ...]) -> LoadedSuite:
    from kvbench.spec.load import load_suite
    from kvbench.spec.overrides import apply_overrides

    if suite is None:
        raise click.UsageError("name a suite, as in `kvbench gate run --base main smoke`")
    loaded = load_suite(suite)
    return apply_overrides(loaded, list(overrides)) if overrides else loaded


def _settings(options: dict[str, Any]) -> GateSettings:
    from kvbench.analysis.gate.types import Rule
    from kvbench.store.comparability import DEFAULT_VARY
    from kvbench.sweep.gate_run import GateSettings, new_seed

    if not options["base"]:
        raise click.UsageError("--base is missing: a git revision, or the folder of a checkout")
    rule = Rule()
    blocks, confirm = options["blocks"] or rule.screen_blocks, options["confirm_blocks"] or rule.confirm_blocks
    changed = {"screen_blocks": blocks, "confirm_blocks": confirm}
    if confirm < rule.least_confirm_blocks:
        changed["least_confirm_blocks"] = confirm
    return GateSettings(
        base=options["base"],
        candidate=options["candidate"] or _this_checkout(),
        rule=Rule(**{**asdict(rule), **changed}),
        metrics=tuple(options["metrics"]),
        vary=tuple(options["vary"]) or DEFAULT_VARY,
        self_test=options["self_test"] or "auto",
        base_python=options["base_python"],
        candidate_python=options["candidate_python"],
        own_environments=options["own_environments"],
        seed=new_seed() if options["seed"] is None else options["seed"],
    )


def _this_checkout() -> str:
    from kvbench.sweep.sides import top_of_repository

    return top_of_repository() or "."
