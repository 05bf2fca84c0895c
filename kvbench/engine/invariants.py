"""What must hold of the scheduler between any two steps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvbench.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvbench.engine.decodes import DecodeSet
    from kvbench.engine.scheduler import Scheduler
    from kvbench.engine.sequence import Sequence


def check_scheduler(scheduler: Scheduler) -> None:
    """Raise `InternalError` naming the request whose books are wrong."""
    seated = [*scheduler.prefilling, *scheduler.decoding.sequences, *scheduler.held]
    waiting = [*scheduler.waiting, *scheduler.swapped]
    _check_places([*seated, *waiting])
    if len(seated) - scheduler.num_loading > scheduler.max_sequences:
        raise InternalError(f"{len(seated)} sequences on {scheduler.max_sequences} seats")
    _check_rows(seated, waiting)
    _check_order(scheduler.swapped)
    if any((sequence.swapped is None) == (sequence in scheduler.swapped) for sequence in waiting):
        raise InternalError("a sequence waits in the wrong line: swapped or not")
    _check_order(scheduler.prefilling)
    _check_order(scheduler.decoding.sequences)
    _check_decodes(scheduler.decoding)
    for sequence in scheduler.prefilling:
        if sequence.is_decoding or not 0 <= sequence.computed < sequence.length:
            raise InternalError(f"request {sequence.request_id} prefills at {sequence.computed} of {sequence.length}")


def _check_places(sequences: list[Sequence]) -> None:
    ids = [(sequence.request_id, sequence.sample) for sequence in sequences]
    if len(set(ids)) != len(ids):
        raise InternalError(f"a request is in two places at once: {sorted(ids)}")
    for sequence in sequences:
        if sequence.output_tokens != sequence.length - len(sequence.job.prompt):
            raise InternalError(f"request {sequence.request_id} counts {sequence.output_tokens} output tokens")


def _check_rows(seated: list[Sequence], waiting: list[Sequence]) -> None:
    rows = [sequence.row for sequence in seated]
    if None in rows or len(set(rows)) != len(rows):
        raise InternalError(f"seated sequences have rows {rows}")
    for sequence in waiting:
        if sequence.row is not None or sequence.computed or sequence.held:
            raise InternalError(f"request {sequence.request_id} waits with progress or a row")


def _check_order(sequences: list[Sequence]) -> None:
    for first, second in pairwise(sequences):
        if first.order > second.order:
            raise InternalError(f"request {second.request_id} arrived before {first.request_id} and stands behind it")


def _check_decodes(decoding: DecodeSet) -> None:
    sequences = decoding.sequences
    columns: dict[str, tuple[NDArray[Any], list[Any]]] = {
        "rows": (decoding.rows(), [sequence.table_row for sequence in sequences]),
        "lengths": (decoding.lengths(), [sequence.length for sequence in sequences]),
        "output tokens": (decoding.output_tokens(), [sequence.output_tokens for sequence in sequences]),
        "last tokens": (decoding.last_tokens(), [int(sequence.content.tokens[-1]) for sequence in sequences]),
        "completion": (decoding.is_complete(), [False for _ in sequences]),
    }
    for name, (found, expected) in columns.items():
        if found.tolist() != expected:
            raise InternalError(f"{name} of the decoding sequences: the arrays say {found}, they say {expected}")
