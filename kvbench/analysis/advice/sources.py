"""Where length distributions come from: a recorded trace, a law or a histogram for each side, a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvbench.analysis.advice.block_fronts import block_fronts
from kvbench.analysis.advice.histogram import Pairs, read_histogram
from kvbench.analysis.advice.lengths import Ints, LengthSample, Shared, noted
from kvbench.analysis.advice.lost_hits import shared_fronts
from kvbench.analysis.advice.sides import POINTS, Side, paired, parse_side
from kvbench.errors import UsageError
from kvbench.workload.draws import uniforms
from kvbench.workload.importers.columns import Columns, read_columns
from kvbench.workload.importers.detect import FORMATS
from kvbench.workload.importers.read import Trace, read_trace
from kvbench.workload.recorded import recorded_times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbench.store.run import Run
    from kvbench.workload.request import Request

_NS_PER_S = 1e9
_SIDES_HINT = "give both sides, as in lognormal(1000,4000) for prompts and lognormal(200,800) for outputs"


def from_trace(
    path: str | Path, name: str = "auto", limit: int | None = None, outputs: str | None = None
) -> LengthSample:
    """The requests of a recorded trace of any importer, in order of arrival, with what it records of sharing.

    `outputs` (a length or a law) is for a trace that records no output lengths; without it that is a `UsageError`."""
    if name not in ("auto", *FORMATS):
        raise UsageError(f"no trace format is called {name!r}", hint=f"one of auto, {', '.join(FORMATS)}")
    if limit is not None and limit < 1:
        raise UsageError(f"a limit of {limit} requests leaves none", hint="give at least 1")
    columns = read_columns(path, name, limit)
    if columns is not None:
        if outputs is not None:
            raise _all_recorded(str(path))
        return noted(_of_columns(columns, str(path), limit))
    return noted(_of_rows(path, name, limit, outputs))


def from_sides(inputs: str, outputs: str | None = None) -> LengthSample:
    """Each side a length, a `lognormal(p50,p95)`, or the path of a histogram; one histogram of pairs is both sides."""
    left = _side(inputs)
    if isinstance(left, Pairs):
        if outputs is not None:
            raise UsageError(f"{inputs} has both sides already, and {outputs} is another", hint="leave one of them out")
        rows = left.rows()
        return noted(LengthSample(rows[0], rows[1], left.label, "histogram", rows[2]))
    if outputs is None:
        raise UsageError(f"{inputs} says how long prompts are, and nothing how long outputs are", hint=_SIDES_HINT)
    right = _side(outputs)
    if isinstance(right, Pairs):
        raise UsageError(f"{outputs} has both sides, and {inputs} is another", hint="leave one of them out")
    return _of_sides(left, right)


def from_histogram(inputs: str | Path, outputs: str | Path | None = None) -> LengthSample:
    """Histogram files: one of pairs, or one for each side."""
    return from_sides(str(inputs), None if outputs is None else str(outputs))


def from_run(run: Run, digest: str | None = None) -> LengthSample:
    """The workload of a finished run. Where its cases had several, `digest` (or its beginning) names one."""
    frame = run.workload
    chosen = _workload_digest(run, sorted(set(frame["workload_digest"])), digest)
    frame = frame[frame["workload_digest"] == chosen]
    arrivals = frame["arrival_s"].to_numpy(dtype=np.float64)
    return noted(
        LengthSample(
            frame["input_tokens"].to_numpy(dtype=np.int64),
            frame["output_tokens"].to_numpy(dtype=np.int64),
            f"{run.run_id} workload {chosen[:12]}",
            "run",
            len(frame),
            arrivals_s=arrivals if arrivals.any() else None,
            shared=_shared(run.requests_of(chosen), _recorded_block(run, chosen)),
            digest=chosen,
        )
    )


def _of_columns(columns: Columns, path: str, limit: int | None) -> LengthSample:
    times, late = columns.arrivals_ns, 0
    order = np.arange(len(columns.inputs))
    if times is not None:
        late = int(np.count_nonzero(times < np.maximum.accumulate(times)))
        order = np.argsort(times, kind="stable") if late else order
    inputs, blocks = columns.inputs[order], columns.blocks
    tokens = None
    if blocks is not None:
        tokens = block_fronts(blocks.ids, blocks.starts, order, inputs, blocks.tokens, np.zeros(len(order), np.int64))
    return LengthSample(
        inputs,
        columns.outputs[order],
        Path(path).name,
        "trace",
        len(inputs),
        None if times is None else (times[order] - times.min()) / _NS_PER_S,
        None if blocks is None or tokens is None or not tokens.any() else Shared(tokens, blocks.tokens),
        columns.sha256,
        _account(columns.dropped, len(inputs), limit, late),
    )


def _account(dropped: Mapping[str, int], rows: int, limit: int | None, late: int) -> tuple[str, ...]:
    """What became of the rows of a file, one sentence each."""
    notes = [f"{count:,} rows were dropped: {reason}" for reason, count in sorted(dropped.items())]
    if rows == limit:
        notes.append(f"stopped after the first {rows:,} usable rows")
    if late:
        notes.append(f"{late:,} rows stood behind a later one and were sorted by arrival")
    return tuple(notes)


def _of_rows(path: str | Path, name: str, limit: int | None, outputs: str | None) -> LengthSample:
    """Row by row, for the traces of linked requests and recorded sharing, and for CSV with peculiarities."""
    trace = read_trace(path, name, limit)
    times = recorded_times(trace)
    late = int(np.count_nonzero(times < np.maximum.accumulate(times)))
    order = np.argsort(times, kind="stable")
    lengths, drawn = _outputs_of(trace, outputs, str(path))
    inputs = np.array([row.input_tokens for row in trace.rows], dtype=np.int64)[order]
    return LengthSample(
        inputs,
        lengths[order],
        Path(path).name,
        "trace",
        len(inputs),
        (times[order] - times.min()) / _NS_PER_S if trace.has_arrivals else None,
        _shared_blocks(trace, order, inputs),
        trace.sha256,
        (*_account(trace.dropped, len(inputs), limit, late), *drawn),
    )


def _outputs_of(trace: Trace, outputs: str | None, path: str) -> tuple[Ints, tuple[str, ...]]:
    """`[rows]` output lengths, those that are not recorded drawn from `outputs`, and a note on how many."""
    recorded = np.array([row.output_tokens or 0 for row in trace.rows], dtype=np.int64)
    missing = np.flatnonzero(recorded == 0)
    if not len(missing):
        if outputs is not None:
            raise _all_recorded(path)
        return recorded, ()
    if outputs is None:
        raise UsageError(
            f"{path}: {len(missing):,} of {len(recorded):,} requests do not say how long their output is",
            hint="say how long outputs are, as in lognormal(200,800)",
        )
    law = _side(outputs)
    if isinstance(law, Pairs):
        raise UsageError(f"{outputs} has both sides, and only outputs are asked for", hint=_SIDES_HINT)
    places = (uniforms(0, "output", len(recorded))[missing] * POINTS).astype(np.int64)
    recorded[missing] = law.quantiles(POINTS)[places]
    return recorded, (f"{len(missing):,} outputs were drawn from {law.label}, for the trace does not record them",)


def _all_recorded(path: str) -> UsageError:
    return UsageError(f"{path} says how long every output is, and nothing is left to draw", hint="leave --outputs out")


def _shared_blocks(trace: Trace, order: Ints, inputs: Ints) -> Shared | None:
    """What the hash ids of a trace say; rows without them share nothing."""
    block = trace.block_tokens
    if block is None:
        return None
    rows = [trace.rows[at] for at in order.tolist()]
    known = np.array([at for at, row in enumerate(rows) if row.hash_ids is not None], dtype=np.int64)
    names: dict[int, int] = {}
    lists = [row.hash_ids for row in rows if row.hash_ids is not None]
    ids = np.array([names.setdefault(one, len(names)) for found in lists for one in found], dtype=np.int64)
    starts = np.cumsum([0, *map(len, lists)])
    salts: dict[str | None, int] = {}
    spaces = [salts.setdefault(rows[at].link.salt if rows[at].link else None, len(salts)) for at in known.tolist()]
    tokens = np.zeros(len(rows), dtype=np.int64)
    at, of = np.arange(len(known)), np.array(spaces, dtype=np.int64)
    tokens[known] = block_fronts(ids, starts, at, inputs[known], block, of)
    return Shared(tokens, block) if tokens.any() else None


def _of_sides(left: Side, right: Side) -> LengthSample:
    inputs, outputs, requests = paired(left, right)
    independent = () if _is_sure(left) or _is_sure(right) else ("prompts and outputs are taken as independent",)
    is_counted = left.requests is not None or right.requests is not None or left.notes or right.notes
    return noted(
        LengthSample(
            inputs,
            outputs,
            f"{left.label} in, {right.label} out",
            "histogram" if is_counted else "distribution",
            requests,
            notes=(*left.notes, *right.notes, *independent),
        )
    )


def _is_sure(side: Side) -> bool:
    return bool(side.low[0] == side.high[-1])


def _side(text: str) -> Side | Pairs:
    """A path is what exists, has a folder, or ends as a table does."""
    path = Path(text).expanduser()
    if "/" in text or path.suffix in (".csv", ".gz") or path.is_file():
        return read_histogram(path)
    return parse_side(text)


def _shared(requests: Sequence[Request], block_tokens: int | None) -> Shared | None:
    """None where no prompt begins as an earlier request did."""
    tokens = shared_fronts(requests)
    return Shared(tokens, block_tokens) if tokens.any() else None


def _recorded_block(run: Run, digest: str) -> int | None:
    """The block by which the run's trace records sharing."""
    about = run.plan.get("workloads", {}).get(digest, {})
    block: int | None = about.get("report", {}).get("sharing_block_tokens")
    return block


def _workload_digest(run: Run, known: list[str], wanted: str | None) -> str:
    if not known:
        raise UsageError(f"{run.path} holds no requests", hint="it has timed kernels only, or has no finished case")
    found = [digest for digest in known if digest.startswith(wanted or "")]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(digest[:12] for digest in known[:8])
    problem = f"{run.path} has {len(known)} workloads" if wanted is None else f"no one workload begins with {wanted!r}"
    raise UsageError(f"{problem}: {listed}", hint="name one by the beginning of its digest, as in --workload 3f2a")
