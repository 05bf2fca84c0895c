"""Which format a trace is in, told by its first line."""

from __future__ import annotations

from kvbench.errors import UsageError
from kvbench.workload.importers.files import TraceFile
from kvbench.workload.importers.json_lines import parse_object
from kvbench.workload.importers.rows import MalformedError, shown

FORMATS = {
    "azure": "kvbench.workload.importers.azure:rows",
    "mooncake": "kvbench.workload.importers.mooncake:rows",
    "bailian": "kvbench.workload.importers.bailian:rows",
    "burstgpt": "kvbench.workload.importers.burstgpt:rows",
    "vidur": "kvbench.workload.importers.vidur:rows",
    "jsonl": "kvbench.workload.importers.jsonl:rows",
}
_CSV_SIGNS = {
    "azure": {"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
    "burstgpt": {"Timestamp", "Request tokens", "Response tokens"},
    "vidur": {"num_prefill_tokens", "num_decode_tokens"},
}
_JSON_SIGNS = {
    "mooncake": {"input_length", "output_length"},
    "bailian": {"input_length", "output_length", "chat_id"},
    "jsonl": {"input_tokens"},
}


def detect_format(file: TraceFile) -> str:
    """The format that shares most names with the first line; a file that shares none is refused."""
    line = file.first_line()
    is_json = line.lstrip().startswith(("{", "["))
    try:
        names = set(parse_object(line)) if is_json else {name.strip().strip('"') for name in line.split(",")}
    except MalformedError as error:
        raise file.error(str(error)) from None
    signs = _JSON_SIGNS if is_json else _CSV_SIGNS
    shared = {name: len(sign & names) for name, sign in signs.items()}
    best = max(shared, key=lambda name: shared[name])
    if shared[best] == 0:
        raise (None if is_json else _other_separator(file, line)) or _unknown(file, names, is_json=is_json)
    return best


def _other_separator(file: TraceFile, line: str) -> UsageError | None:
    """The refusal of a header whose names are known and whose separator is not the comma."""
    known = set().union(*_CSV_SIGNS.values())
    for separator, word in ((";", "semicolons"), ("\t", "tabs")):
        if known & {name.strip().strip('"') for name in line.split(separator)}:
            return file.error(f"columns are separated by {word}", hint="save the file with commas between columns")
    return None


def _unknown(file: TraceFile, names: set[str], *, is_json: bool) -> UsageError:
    known = "; ".join(f"{kind}, {_listed(signs)}" for kind, signs in (("CSV", _CSV_SIGNS), ("JSON lines", _JSON_SIGNS)))
    found = ", ".join(shown(name) for name in sorted(names)[:8])
    hint = f"rename yours to those of a known format: {known} (docs/workloads.md)"
    return file.error(f"no known {'JSON lines' if is_json else 'CSV'} trace has {found}", hint=hint)


def _listed(signs: dict[str, set[str]]) -> str:
    return "; ".join(f"{name}: {', '.join(sorted(sign))}" for name, sign in signs.items())
