"""`kvbench tune show|diff|export|import`: what was tuned, here and elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import format_option
from kvbench.cli.tune_cells import emit_tuned
from kvbench.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from kvbench.tuned.winner import Winner

WINNER_COLUMNS = (
    "kernel", "shape", "device", "verdict", "configuration", "time_s", "default_time_s", "gain", "gain_low",
    "gain_high", "state", "tuned_at",
)  # fmt: skip
TRIAL_COLUMNS = ("shape", "trial", "configuration", "status", "time_s", "is_dropped", "error_rel", "error")
DIFF_COLUMNS = (
    "kernel", "shape", "device_a", "device_b", "state", "configuration_a", "configuration_b", "time_a_s", "time_b_s",
    "b_over_a", "differs_in",
)  # fmt: skip


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@format_option
def show(path: Path | None, form: str) -> None:
    """Winners of this user's cache; where PATH is a tuning's folder, all its trials, the quickest first; where it is an
    exported file, or a folder's winners.json, the winners in it.

    A winner's state is `current`, or `stale` with what has changed since.
    """
    if path is not None and not path.is_file():
        emit_tuned(form, TRIAL_COLUMNS, _trial_records(path))
    else:
        winners = _stored() if path is None else _winners_of(path)
        emit_tuned(form, WINNER_COLUMNS, [_winner_record(winner) for winner in winners])


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@format_option
def diff(a: Path, b: Path, form: str) -> int:
    """Winners of A and B side by side, each a tuning's folder, an exported file, or `store` for the user's cache.

    What was tuned on several devices is compared device by device; on one device each side, whichever they are.
    Exits 1 when some shape has another configuration, or is on one side only.
    """
    records = [_difference(*pair) for pair in paired(_winners_of(a), _winners_of(b))]
    emit_tuned(form, DIFF_COLUMNS, records)
    return ExitCode.OK if all(record["state"] == "same" for record in records) else ExitCode.NO


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--kernel", help="Only winners of this kernel.")
def export(file: Path, kernel: str | None) -> None:
    """Write winners of this user's cache to FILE, as one JSON document that `kvbench tune import` reads."""
    from kvbench.console import say
    from kvbench.store.targets import Target, begins_with, check_target
    from kvbench.tuned.files import DOCUMENT, write_document

    mark = f'"document": "{DOCUMENT}"'.encode()
    check_target(file, Target("document of tuned kernels", begins_with(mark, within=256), "FILE", makes_folder=True))
    winners = [w for w in _stored() if kernel in (None, w.key.kernel)]
    if not winners:
        raise UsageError(f"nothing was tuned here{f' of {kernel}' if kernel else ''}", hint="kvbench tune KERNEL tunes")
    write_document(file, winners)
    say(f"{_count(winners)} in {file}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
def import_(file: Path) -> None:
    """Take the winners of FILE into this user's cache.

    Those of another device, source or compiler version are kept and not used.
    """
    from kvbench.console import say
    from kvbench.tuned.files import keep, read_document

    winners = read_document(file)
    for winner in winners:
        keep(winner)
    states = [_state(winner) for winner in winners]
    say(f"{_count(winners)} taken in, {sum(state == 'current' for state in states)} of them of use here")
    for winner, state in zip(winners, states, strict=True):
        if state != "current":
            say(f"{winner.key.kernel} for {winner.key.label}: {state}; not used", style="yellow")


def _count(winners: list[Winner]) -> str:
    return f"{len(winners)} winner" + ("" if len(winners) == 1 else "s")


def _stored() -> list[Winner]:
    from kvbench.console import say
    from kvbench.tuned.files import read_store

    found = read_store()
    for problem in found.problems:
        say(problem, style="yellow")
    return found.table.winners


def _winners_of(side: Path) -> list[Winner]:
    from kvbench.tune.session import WINNERS
    from kvbench.tuned.files import read_document

    if str(side) == "store":
        return _stored()
    if side.is_dir() and not (side / WINNERS).is_file():
        raise UsageError(f"{side} holds no {WINNERS}", hint="is the tuning finished? go on with kvbench tune --resume")
    return read_document(side / WINNERS if side.is_dir() else side)


def _winner_record(winner: Winner) -> dict[str, Any]:
    names = ("verdict", "configuration", "time_s", "default_time_s", "gain", "gain_low", "gain_high", "tuned_at")
    key = {"kernel": winner.key.kernel, "shape": winner.key.label, "device": winner.key.device}
    return {**key, **{name: getattr(winner, name) for name in names}, "state": _state(winner)}


def _state(winner: Winner) -> str:
    """Whether the winner is for what is here; a CPU's number of threads is the sweep's choice."""
    from kvbench.devices.detect import detect
    from kvbench.tune.tunable import TUNABLES, make_tunable
    from kvbench.tuned.source import compiler_version, source_digest

    if winner.key.kernel not in TUNABLES:
        return "stale: no such kernel here"
    tunable = make_tunable(winner.key.kernel)
    changed = []
    if winner.key.source != source_digest(tunable.page):
        changed.append("kernel source")
    if winner.key.compiler != compiler_version(tunable.compiler):
        changed.append(f"compiler (now {compiler_version(tunable.compiler)})")
    device = detect("auto" if tunable.device == "cuda" else "cpu")
    if not winner.key.device.startswith(f"{device.name}, " if device.kind == "cpu" else device.name):
        changed.append("device")
    return f"stale: another {', '.join(changed)}" if changed else "current"


def _trial_records(folder: Path) -> list[dict[str, Any]]:
    from kvbench.tune.session import Session

    records = [
        {
            "shape": shape,
            "trial": number,
            **{name: getattr(trial, name) for name in TRIAL_COLUMNS if hasattr(trial, name)},
        }
        for shape, record in enumerate(Session.open(folder).records)
        for number, trial in enumerate(record.trials)
    ]
    return sorted(records, key=lambda r: (r["shape"], r["time_s"] is None, r["time_s"] or 0.0, r["trial"]))


Pair = tuple["Winner | None", "Winner | None"]


def paired(a: list[Winner], b: list[Winner]) -> list[Pair]:
    """Winners that are for the same: kernel, shape and device, the newest of each side; then, where a kernel and shape
    has one device left on each side, those two. A winner without the other is in a pair of its own."""
    sides = [{(_work(w), w.key.device): w for w in sorted(side, key=lambda w: w.tuned_at)} for side in (a, b)]
    pairs: list[Pair] = []
    for work in sorted({work for side in sides for work, _ in side}):
        one, other = ({device: w for (at, device), w in side.items() if at == work} for side in sides)
        both = sorted({*one} & {*other})
        pairs += [(one.pop(device), other.pop(device)) for device in both]
        if len(one) == len(other) == 1:
            pairs.append((one.popitem()[1], other.popitem()[1]))
        else:
            pairs += [(winner, None) for winner in one.values()] + [(None, winner) for winner in other.values()]
    return pairs


def _work(winner: Winner) -> tuple[str, str]:
    return winner.key.kernel, winner.key.label


def _difference(a: Winner | None, b: Winner | None) -> dict[str, Any]:
    if a is None or b is None:
        state = "only in A" if a else "only in B"
    else:
        state = "same" if a.configuration == b.configuration else "differs"
    kernel, shape = next(_work(winner) for winner in (a, b) if winner is not None)
    return {
        "kernel": kernel,
        "shape": shape,
        "device_a": a.key.device if a else None,
        "device_b": b.key.device if b else None,
        "state": state,
        "configuration_a": a.configuration if a else None,
        "configuration_b": b.configuration if b else None,
        "time_a_s": a.time_s if a else None,
        "time_b_s": b.time_s if b else None,
        "b_over_a": b.time_s / a.time_s if a and b else None,
        "differs_in": [
            n for n in ("source", "device", "compiler") if a and b and getattr(a.key, n) != getattr(b.key, n)
        ],
    }
