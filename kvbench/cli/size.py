"""`kvbench size`: the memory arithmetic for a model on a device, line by line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import Table, emit, format_option
from kvbench.errors import UsageError
from kvbench.units import format_bytes, format_count, parse_bytes

if TYPE_CHECKING:
    from kvbench.devices.facts import Device
    from kvbench.geometry.lengths import Lengths
    from kvbench.geometry.model import ModelGeometry
    from kvbench.geometry.sizing import Question

DEFAULT_LENGTHS = "1k,8k,32k"
LARGEST_BLOCK = 1024


@click.command()
@click.option("--model", required=True, metavar="NAME|FOLDER", help="A preset, or a folder with a config.json.")
@click.option("--gpu", metavar="NAME|SIZE", help="A known GPU (h100, h200, a100-80gb …), or its memory, as in 24GiB.")
@click.option("--memory", metavar="BYTES", help="Memory of one device. Without this and --gpu: the device at hand.")
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Devices that share each layer.")
@click.option("--weights", metavar="DTYPE", default="bf16", show_default=True, help="Dtype of the weights.")
@click.option("--kv-dtype", metavar="DTYPE,…", default="bf16", show_default=True, help="One or several KV dtypes.")
@click.option("--block-size", metavar="N,…", default="16", show_default=True, help="One or several block sizes.")
@click.option("--lengths", metavar="N,…", help="Tokens per sequence: 1500, 8k, lognormal(p50,p95).  [1k,8k,32k]")
@click.option("--utilization", type=click.FloatRange(0, 1, min_open=True), help="Share of memory to use.  [0.9]")
@click.option("--headroom", metavar="BYTES", help="Memory to leave free, instead of --utilization.")
@click.option("--runtime", metavar="BYTES", help="Memory of context and activations; estimated when left out.")
@click.option("--max-sequences", type=click.IntRange(1, 2**20), default=256, show_default=True, help="Served at once.")
@click.option("--max-batch-tokens", type=click.IntRange(1, 2**24), default=2048, show_default=True, help="In one step.")
@click.option("--max-context", type=click.IntRange(1, 2**30), help="Longest sequence.  [the model's own]")
@format_option
def size(form: str, model: str, gpu: str | None, memory: str | None, **options: Any) -> None:
    """The memory arithmetic: what weights, runtime and headroom leave for KV, and what fits into it.

    Exit 4 with the arithmetic when the model does not fit. Everything is per device; --tp says how many share it.
    """
    from kvbench.geometry.resolve import resolve_model
    from kvbench.geometry.sizing import answer

    device = _device(gpu, memory)
    question = _question(resolve_model(model), device, options)
    found = answer(question)
    found["device"] = {"name": device.name, "datasheet": device.datasheet or None, **found["device"]}
    tables = [_budget_table(found, question), _pool_table(found), _length_table(found)]
    records = _records(found)
    emit(form, tables=tables, columns=list(records[0]), records=records, document=found)


def _device(gpu: str | None, memory: str | None) -> Device:
    from kvbench.devices.detect import detect
    from kvbench.devices.lookup import anonymous_device, known_device

    if gpu is not None and memory is not None:
        raise UsageError("--gpu and --memory are two ways to say one thing", hint="give one of them")
    if memory is not None:
        return anonymous_device(parse_bytes(memory))
    return known_device(gpu) if gpu is not None else detect()


def _question(model: ModelGeometry, device: Device, options: dict[str, Any]) -> Question:
    from kvbench.geometry.budget import Load
    from kvbench.geometry.dtypes import storage_dtype
    from kvbench.geometry.sizing import Question

    context = options["max_context"] or model.max_context
    return Question(
        model=model,
        memory_bytes=device.memory_bytes,
        lengths=_lengths(options["lengths"], context),
        tp=options["tp"],
        weight_dtype=storage_dtype(options["weights"]).name,
        kv_dtypes=tuple(dict.fromkeys(storage_dtype(name).name for name in _parts(options["kv_dtype"], "--kv-dtype"))),
        block_sizes=tuple(dict.fromkeys(map(_block_size, _parts(options["block_size"], "--block-size")))),
        headroom_bytes=_headroom(options["headroom"], options["utilization"], device.memory_bytes),
        runtime_bytes=None if options["runtime"] is None else parse_bytes(options["runtime"]),
        load=Load(options["max_sequences"], options["max_batch_tokens"], context),
    )


def _lengths(text: str | None, context: int) -> tuple[Lengths, ...]:
    """The default ones stop at the longest context; those that someone typed must fit it."""
    from kvbench.geometry.lengths import parse_lengths

    if text is None:
        found = [x for x in parse_lengths(DEFAULT_LENGTHS) if x.mean <= context]
        return tuple(found or parse_lengths(str(context)))
    found = parse_lengths(text)
    for lengths in found:
        if len(lengths.tokens) == 1 and lengths.mean > context:
            raise UsageError(
                f"--lengths {lengths.label}: longer than the longest context of {format_count(context)} tokens",
                hint="raise --max-context if the model is served beyond what its config says",
            )
    return tuple(lengths.up_to(context) for lengths in found)


def _headroom(headroom: str | None, utilization: float | None, memory_bytes: int) -> int:
    if headroom is not None and utilization is not None:
        raise UsageError("--headroom and --utilization are two ways to say one thing", hint="give one of them")
    if headroom is not None:
        return parse_bytes(headroom)
    if utilization is not None and math.isnan(utilization):
        raise UsageError("--utilization is not a number", hint="give a share, as in 0.9")
    return memory_bytes - int(memory_bytes * (0.9 if utilization is None else utilization))


def _parts(text: str, option: str) -> list[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise UsageError(f"{option} is empty", hint="leave it out, or give values separated by commas")
    return found


def _block_size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= LARGEST_BLOCK:
        raise UsageError(
            f"block size {text!r} is not a whole number from 1 to {LARGEST_BLOCK}", hint="as in --block-size 16,32"
        )
    return int(text)


def _budget_table(found: dict[str, Any], question: Question) -> Table:
    model, device = found["model"], found["device"]
    by_part = " + ".join(f"{part} {format_bytes(n)}" for part, n in device["weights_bytes_by_part"].items())
    weights = f"{format_count(device['parameters'])} as {model['weight_dtype']}: {by_part}"
    rows = [
        ("memory of one device", device["memory_bytes"], device["name"]),
        ("− weights", device["weights_bytes"], weights),
        ("− runtime", device["runtime_bytes"], _runtime(device)),
        ("− headroom", device["headroom_bytes"], f"{device['headroom_bytes'] / device['memory_bytes']:.1%} of memory"),
        ("= for KV and block tables", _for_kv(device), ""),
    ]  # fmt: skip
    shown = [(label, format_bytes(count), format_count(count), how) for label, count, how in rows]
    title = (
        f"{model['name']} ({model['attention_mode']}, {format_count(model['parameters'])} weights) on {_places(device)}"
    )
    columns = ("", "size", "bytes", "how")
    return Table(title, columns, shown, numbers=frozenset({1, 2}), footer=_split_note(question, device))


def _runtime(device: dict[str, Any]) -> str:
    if not device["runtime_is_estimated"]:
        return "as given"
    tokens = format_count(device["max_batch_tokens"])
    return (
        f"estimate: context {format_bytes(device['device_context_bytes'])}"
        f" + activations of {tokens} tokens {format_bytes(device['activation_bytes'])}"
        f" + logits of {device['max_sequences']} sequences {format_bytes(device['logit_bytes'])}"
    )


def _for_kv(device: dict[str, Any]) -> int:
    spent = device["weights_bytes"] + device["runtime_bytes"] + device["headroom_bytes"]
    return int(device["memory_bytes"] - spent)


def _places(device: dict[str, Any]) -> str:
    return device["name"] if device["tensor_parallel"] == 1 else f"{device['tensor_parallel']} × {device['name']}"


def _split_note(question: Question, device: dict[str, Any]) -> str:
    if question.tp == 1:
        return f"source of the model: {question.model.source}"
    copies = device["kv_replication"]
    kv = f"each KV head is on {copies} ranks" if copies > 1 else "KV is divided without copies"
    if question.model.latent is not None:
        kv = "the latent cache is whole on every rank"
    return (
        f"tensor parallel {question.tp}: {device['query_heads']} of {question.model.query_heads} query heads and "
        f"{device['kv_heads']} of {question.model.kv_heads} KV heads a rank; {kv}"
    )


def _pool_table(found: dict[str, Any]) -> Table:
    columns = (
        "KV dtype", "block", "bytes/token", "block bytes", "tables", "padding", "table bytes", "blocks", "KV pool",
        "longest sequence",
    )  # fmt: skip
    rows = [
        (
            p["kv_dtype"], str(p["block_size"]), _exact(p["kv_bytes_per_token"]), format_count(p["block_bytes"]),
            str(p["block_tables"]), f"{p['padding_share']:.1%}", format_bytes(p["table_bytes"]),
            format_count(p["num_blocks"]), format_bytes(p["pool_bytes"]), _longest(p["longest_sequence_tokens"]),
        )
        for p in found["pools"]
    ]  # fmt: skip
    return Table("Blocks of one device", columns, rows, frozenset(range(1, 10)), _how(found))


def _how(found: dict[str, Any]) -> str:
    """Σ layers of heads × dims × bytes, with the numbers of this model."""
    groups = found["model"]["layer_groups"]
    kv_heads = found["device"]["kv_heads"]
    per_token = " + ".join(
        f"{x['layers']} {x['kind']}{'' if x['window'] is None else ' ' + format_count(x['window'])} layers"
        f" × {kv_heads} heads × ({x['k_head_dim']} + {x['v_head_dim']})"
        for x in groups
    )
    return (
        f"bytes/token = ({per_token}) × bytes per element + scales · blocks = ⌊(for KV − tables − null block) / "
        "(block bytes + 48)⌋ · longest sequence: one alone"
    )


def _length_table(found: dict[str, Any]) -> Table:
    columns = (
        "KV dtype",
        "block",
        "length",
        "sequences",
        "tokens",
        "blocks each",
        "KV each",
        "tail waste",
        "near it",
    )
    rows = [
        (
            p["kv_dtype"], str(p["block_size"]), x["length"], format_count(x["sequences"]), format_count(x["tokens"]),
            _exact(x["blocks_per_sequence"]), format_bytes(x["bytes_per_sequence"]), f"{x['tail_waste_slots']:g} slots",
            f"{x['mean_tail_share']:.2%}",
        )
        for p in found["pools"]
        for x in p["lengths"]
    ]  # fmt: skip
    most = found["device"]["max_sequences"]
    note = (
        "sequences = ⌊blocks / blocks each⌋, by memory alone · tail waste: slots of the last block at this length; "
        "near it: their mean share for lengths around it, (B − 1) / 2T"
    )
    if any(x["sequences"] > most for p in found["pools"] for x in p["lengths"]):
        note += f" · more than --max-sequences {most} would need a larger limit"
    cut = {x["length"]: x["clipped_share"] for p in found["pools"] for x in p["lengths"] if x["clipped_share"]}
    for label, share in cut.items():
        note += f" · {share:.1%} of {label} are cut to the longest context"
    return Table("What fits at once", columns, rows, frozenset(range(1, 9)), note)


def _longest(tokens: int | None) -> str:
    return "any (window)" if tokens is None else format_count(tokens)


def _exact(value: float) -> str:
    return format_count(value) if float(value).is_integer() else f"{value:,.2f}"


def _records(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per KV dtype, block size and length."""
    model, device = found["model"], found["device"]
    shared = {
        "model": model["name"],
        "device": device["name"],
        **{
            k: device[k]
            for k in ("tensor_parallel", "memory_bytes", "weights_bytes", "runtime_bytes", "headroom_bytes")
        },
    }
    nested = ("lengths", "layer_block_bytes")
    return [
        {**shared, **{k: v for k, v in p.items() if k not in nested}, **x} for p in found["pools"] for x in p["lengths"]
    ]
