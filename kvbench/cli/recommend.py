"""`kvbench recommend`: settings for a length distribution, and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.given import was_given
from kvbench.cli.output import Table, emit, format_option
from kvbench.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from kvbench.analysis.advice.decide import Slo
    from kvbench.analysis.advice.lengths import LengthSample
    from kvbench.sweep.advice.question import Question
    from kvbench.sweep.advise import Advice

_PATH = click.Path(path_type=Path)
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|ms|us|µs)?")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, None: 1.0}
_ONLY_WITH = (
    ("trace_format", "--trace-format", "trace", "--trace"),
    ("limit", "--limit", "trace", "--trace"),
    ("workload", "--workload", "run_folder", "--run"),
    ("rounds", "--rounds", "measure", "--measure"),
    ("out", "--out", "measure", "--measure"),
)
"""Parameter, its option, and the parameter, with its option, without which it has no effect"""


@click.command()
@click.option("--trace", type=_PATH, metavar="FILE", help="Lengths of a recorded trace, or a CSV of your own.")
@click.option("--trace-format", default="auto", help="Format of the trace; recognised unless said.")
@click.option("--limit", type=click.IntRange(1), help="Only the first N requests of the trace.")
@click.option("--lengths", metavar="LAW", help="Prompts: a length or lognormal(p50,p95).")
@click.option("--outputs", metavar="LAW", help="Outputs, likewise: with --lengths, or a trace that records none.")
@click.option("--histogram", type=_PATH, metavar="FILE", help="Lengths of a histogram: a CSV with counts.")
@click.option("--run", "run_folder", type=_PATH, metavar="RUN", help="Lengths of a finished run.")
@click.option("--workload", metavar="DIGEST", help="Of a run with several workloads, as its digest begins.")
@click.option("--results", type=_PATH, multiple=True, metavar="RUN|FILE", help="Measured runs; repeatable.")
@click.option("--model", metavar="NAME|FOLDER", help="Whose KV cache.  [that of the results]")
@click.option("--gpu", metavar="NAME", help="On a known GPU, without results: h100, l4 …")
@click.option("--memory", metavar="BYTES", help="Memory of one device, as in 24GiB.")
@click.option("--kv-memory", metavar="BYTES", help="Memory for KV alone, as in 8GiB.")
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Devices that share each layer.")
@click.option("--weights", metavar="DTYPE", help="Dtype of the weights.  [bf16; fp32 on a CPU]")
@click.option("--quality", type=_PATH, metavar="FILE", help="What kvbench quality --out wrote of this model.")
@click.option("--slo", metavar="ttft=T,tpot=T", help="Medians that must be met, as in ttft=2s,tpot=50ms.")
@click.option("--axes", default="block_size", show_default=True, metavar="NAME,…", help="Settings to choose.")
@click.option("-a", "--axis", "overrides", multiple=True, metavar="KEY=V[,V…]", help="Values, as in sweep.")
@click.option("--allow-lossy", is_flag=True, help="KV dtypes below the weights' precision may be recommended.")
@click.option("--requests", type=click.IntRange(1), help="Requests that each candidate serves.  [about 400]")
@click.option("--measure", is_flag=True, help="Measure here what would decide between tied candidates.")
@click.option("--rounds", type=click.IntRange(2), default=5, show_default=True, help="With --measure: samples of each.")
@click.option("--out", type=_PATH, default=Path("results"), show_default=True, help="With --measure: where runs go.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the sample of requests.")
@click.option(
    "--emit", "server", type=click.Choice(["vllm", "sglang", "trtllm"]), help="Print that server's flags too."
)
@format_option
def recommend(form: str, server: str | None, measure: bool, rounds: int, out: Path, **options: Any) -> int:
    """Which block size (and, with --axes, KV dtype, batch policy, prefix cache, offload) for your lengths, and why.

    Every candidate serves the same requests on the virtual clock: by a cost model fitted from --results, else by tuned
    kernel times or the device's datasheet, and then everything is called modelled. Exits 1 where no candidate meets the
    objectives, 4 where the results are of another model or device.

    \b
    Examples:
      kvbench recommend --trace lengths.csv --results results/<run>
      kvbench recommend --lengths "lognormal(1000,4000)" --outputs "lognormal(200,800)" --model llama-3.1-8b --gpu h100
      kvbench recommend --trace requests.csv --results results/<run> --axes block_size,kv_dtype --slo ttft=2s
      kvbench recommend --trace lengths.csv --results results/<run> --measure
    """
    from kvbench.cli.recommend_tables import document_of, records_of, tables_of
    from kvbench.sweep.advise import advise

    found = advise(_question(options))
    if measure:
        from kvbench.sweep.advise_measure import measure_and_decide

        found = measure_and_decide(found, out, rounds)
    records, document, tables = records_of(found), document_of(found), tables_of(found)
    if server is not None and found.chosen is not None:
        flags = _flags(server, found)
        document["flags"], tables = flags[0], [*tables, flags[1]]
    emit(form, tables=tables, columns=list(records[0]), records=records, document=document)
    return ExitCode.OK if found.chosen is not None else ExitCode.NO


def _question(options: dict[str, Any]) -> Question:
    from kvbench.sweep.advice.question import Question
    from kvbench.units import parse_bytes

    _refuse_without_effect()

    def size(name: str) -> int | None:
        return None if options[name] is None else parse_bytes(options[name])

    return Question(
        sample=_sample(options),
        results=options["results"],
        model=options["model"],
        gpu=options["gpu"],
        memory_bytes=size("memory"),
        kv_memory_bytes=size("kv_memory"),
        weight_dtype=options["weights"],
        tp=options["tp"],
        slo=slo_of(options["slo"]),
        axes=tuple(name.strip() for name in options["axes"].split(",") if name.strip()),
        overrides=options["overrides"],
        allow_lossy=options["allow_lossy"],
        trace=options["trace"],
        run=options["run_folder"],
        quality=options["quality"],
        requests=options["requests"],
        seed=options["seed"],
    )


def _refuse_without_effect() -> None:
    for name, option, needed, its_option in _ONLY_WITH:
        if was_given(name) and not was_given(needed):
            raise UsageError(f"{option} is for {its_option}", hint="leave it out")
    if was_given("memory") and was_given("kv_memory"):
        raise UsageError("--memory and --kv-memory are two sizes of one pool", hint="give one of them")


def _sample(options: dict[str, Any]) -> LengthSample:
    """The lengths, from the one place that was named."""
    from kvbench.analysis.advice import sources

    names = {"trace": "--trace", "lengths": "--lengths", "histogram": "--histogram", "run_folder": "--run"}
    given = [option for name, option in names.items() if options[name] is not None]
    if len(given) != 1:
        told = " and ".join(given) + " are different lengths" if given else "nothing says how long requests are"
        raise UsageError(told, hint="give one of --trace, --lengths with --outputs, --histogram and --run")
    if options["trace"] is not None:
        return sources.from_trace(options["trace"], options["trace_format"], options["limit"], options["outputs"])
    if options["lengths"] is not None:
        return sources.from_sides(options["lengths"], options["outputs"])
    if options["histogram"] is not None:
        return sources.from_histogram(options["histogram"], options["outputs"])
    if options["outputs"] is not None:
        raise UsageError("--outputs beside --run: a run has outputs of its own", hint="leave one of them out")
    from kvbench.store.run import open_run

    return sources.from_run(open_run(options["run_folder"]), options["workload"])


def slo_of(text: str | None) -> Slo:
    """`ttft=2s,tpot=50ms`; seconds without a unit. `UsageError` for anything else."""
    from kvbench.analysis.advice.decide import Slo

    found: dict[str, float] = {}
    for part in (text or "").split(",") if text is not None else ():
        name, _, value = (word.strip() for word in part.partition("="))
        match = _SECONDS.fullmatch(value)
        if name not in ("ttft", "tpot") or match is None or name in found or float(match.group(1)) <= 0:
            raise UsageError(f"--slo {text!r} is not understood at {part!r}", hint="as in --slo ttft=2s,tpot=50ms")
        found[name] = float(match.group(1)) * _UNITS[match.group(2)]
    return Slo(found.get("ttft"), found.get("tpot"))


def _flags(server: str, advice: Advice) -> tuple[dict[str, Any], Table]:
    """The answer as a server's flags, as a record and as a table."""
    from dataclasses import asdict

    from kvbench.analysis.advice.flags import emit_flags
    from kvbench.sweep.advice.answer import answer_of

    found = emit_flags(server, answer_of(advice), str(advice.evidence.model["name"]))
    lines = [("command", found.command)]
    lines += [(found.config_file or "config", found.config)] if found.config else []
    lines += [("warning", text) for text in found.warnings] + [("no flag", text) for text in found.unknown]
    lines += [
        (setting, f"{text} [{', '.join(one.document for one in documents)}]")
        for setting, text, documents in found.facts
    ]
    return asdict(found), Table(f"{found.title}", ("", "flags"), lines)
