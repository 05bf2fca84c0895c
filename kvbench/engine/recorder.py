"""What happened, as records: one per step from the differences of the books' counters, one per request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from kvbench.cache.types import CacheStats
from kvbench.costmodel.features import ONE_LAYER, LayerReads, LayerWindows, layer_reads, step_features
from kvbench.engine.telemetry import RequestRecord, StepRecord

if TYPE_CHECKING:
    from kvbench.engine.copies import Moved
    from kvbench.engine.group import Group
    from kvbench.engine.schedule import Schedule
    from kvbench.engine.sequence import Sequence


@dataclass(slots=True)
class Recorder:
    """Numbers the steps and remembers the counters at the end of the last one."""

    block_bytes: int
    block_size: int
    model: LayerWindows = ONE_LAYER
    steps: int = 0
    last: CacheStats | None = None

    def step(self, schedule: Schedule, stats: CacheStats, moved: Moved, times: tuple[float, float]) -> StepRecord:
        """The record of one step. `stats` is the state after the step's KV is written and before finished sequences
        leave; `times` are start and end. The caller fills in `active_sequences` and `waiting_sequences`."""
        last, done, started, ended = self.last or CacheStats(), moved.done, *times
        drafts, reads, sampled = schedule.drafts, *self._reads(schedule)
        record = StepRecord(
            step=self.steps,
            t_s=started,
            duration_s=ended - started,
            batch_size=len(schedule.rows),
            prefill_tokens=schedule.prefill_tokens,
            decode_tokens=schedule.num_decodes + (0 if drafts is None else drafts.accepted),
            context_tokens=int(schedule.ends.sum()),
            active_sequences=0,
            waiting_sequences=0,
            kv_capacity_bytes=stats.blocks_total * self.block_bytes,
            kv_bytes_used=(stats.blocks_used + stats.blocks_in_transfer) * self.block_bytes,
            kv_blocks_total=stats.blocks_total,
            kv_blocks_free=stats.blocks_free,
            live_cached_tokens=stats.live_cached_tokens,
            internal_slots=stats.internal_slots,
            reserved_slots=stats.reserved_slots,
            external_blocks=stats.external_blocks,
            admissions=schedule.admissions,
            preemptions=schedule.preemptions,
            evictions=stats.evictions - last.evictions,
            prefix_cache_queries=stats.prefix_cache_queries - last.prefix_cache_queries,
            prefix_cache_hits=stats.prefix_cache_hits - last.prefix_cache_hits,
            host_offload_bytes=(done["offload"] + done["store"]) * self.block_bytes,
            host_promotions=done["promote"],
            disk_offload_bytes=done["demote"] * self.block_bytes,
            disk_promotions=done["load"],
            swap_out_bytes=done["swap_out"] * self.block_bytes,
            swap_in_bytes=done["swap_in"] * self.block_bytes,
            promotion_stall_s=moved.promotion_stall_s,
            prefix_lookup_s=schedule.lookup_s,
            copy_on_write_copies=stats.copy_on_write_copies - last.copy_on_write_copies,
            readmission_queries=stats.readmission_queries - last.readmission_queries,
            readmission_hits=stats.readmission_hits - last.readmission_hits,
            draft_tokens=0 if drafts is None else drafts.total,
            accepted_tokens=0 if drafts is None else drafts.accepted,
            rollbacks=0 if drafts is None else drafts.rollbacks,
            failed_copies=moved.failed,
            swap_refusals=stats.swap_refusals - last.swap_refusals,
            host_bytes_used=stats.host_blocks_used * self.block_bytes,
            disk_bytes_used=stats.disk_blocks_used * self.block_bytes,
            swap_bytes_used=stats.swap_blocks_used * self.block_bytes,
            sampled_rows=sampled,
            **reads._asdict(),
        )
        self.steps += 1
        self.last = stats
        return record

    def _reads(self, schedule: Schedule) -> tuple[LayerReads, int]:
        """What attention reads, and the rows that are sampled from."""
        sampled = len(schedule.random_keys) + sum(beams.rows for beams in schedule.beams)
        step = step_features(
            schedule.starts, schedule.counts, schedule.num_decodes, sampled, self.model.windows, self.block_size
        )
        return layer_reads(step, self.model.layers), sampled

    def reset(self) -> None:
        """Steps count from 0 again, after the books' counters were reset."""
        self.steps, self.last = 0, None

    def restart(self, stats: CacheStats) -> None:
        """Steps count from 0 again while the books' counters run on from `stats`."""
        self.steps, self.last = 0, stats


def request_record(sequence: Sequence) -> RequestRecord:
    """From scheduled arrival to the last token; a part that never happened is None."""
    arrival, first_scheduled, times = sequence.job.arrival_s, sequence.first_scheduled_s, sequence.token_times_s
    first = times[0] if times else None
    is_complete = first is not None and sequence.finish_reason in ("length", "stop")
    decode_s = times[-1] - times[0] if is_complete else None
    return RequestRecord(
        request_id=sequence.request_id,
        arrival_s=arrival,
        input_tokens=len(sequence.job.prompt),
        output_tokens=len(times),
        cached_tokens=sequence.cached_tokens or 0,
        allocated_blocks=sequence.peak_blocks,
        queue_time_s=_between(arrival, first_scheduled),
        prefill_time_s=_between(first_scheduled, first),
        decode_time_s=decode_s,
        ttft_s=_between(arrival, first),
        tpot_s=decode_s / (len(times) - 1) if decode_s is not None and len(times) > 1 else None,
        e2e_s=times[-1] - arrival if is_complete else None,
        preemptions=sequence.preemptions,
        finish_reason=sequence.finish_reason or "error",
        error=sequence.error,
        itl_s=gaps_between(times),
        recomputed_tokens=sequence.recomputed_tokens,
        priority=sequence.job.priority,
        passed_over=sequence.passed_over,
        draft_tokens=sequence.draft_tokens,
        accepted_tokens=sequence.accepted_tokens,
        **_course([sequence]),
    )


def group_record(group: Group) -> RequestRecord:
    """One request of several sequences. Samples: all their tokens and gaps, from the first of the first tokens to the
    last of the last ones. A beam search: the tokens of its best output, and the gaps between its steps, since nothing
    is known before its last one."""
    root, members = group.root, group.active
    records = [request_record(member) for member in members]
    if group.search is not None:
        records = [request_record(root)]
    first, last = _earliest(records, "ttft_s"), _latest(records, "e2e_s")
    gaps = [gap for record in records for gap in record.itl_s]
    reasons = {record.finish_reason for record in records}
    is_complete = "error" not in reasons
    best = group.search.hypotheses[:1] if group.search is not None else []
    decode_s = last - first if is_complete and first is not None and last is not None else None
    return replace(
        request_record(root),
        output_tokens=len(best[0].tokens) if best else sum(record.output_tokens for record in records),
        allocated_blocks=group.peak_blocks,
        prefill_time_s=_earliest(records, "prefill_time_s"),
        decode_time_s=decode_s,
        ttft_s=first,
        tpot_s=sum(gaps) / len(gaps) if gaps and is_complete else None,
        e2e_s=last if is_complete else None,
        preemptions=sum(member.preemptions for member in members),
        finish_reason="error" if not is_complete else "length" if "length" in reasons else "stop",
        error=next((record.error for record in records if record.error is not None), None),
        itl_s=gaps,
        recomputed_tokens=sum(member.recomputed_tokens for member in members),
        draft_tokens=sum(member.draft_tokens for member in members),
        accepted_tokens=sum(member.accepted_tokens for member in members),
        **_course(members),
    )


def _course(members: list[Sequence]) -> dict[str, Any]:
    """When pieces were computed and blocks were lost, over all sequences of a request; nothing for the usual one whose
    prompt was one piece. Pieces of several sequences in one step are one."""
    marks = [mark for member in members for mark in member.marks]
    if len(marks) < 2 and all(mark.what == "piece" for mark in marks):
        return {}
    pieces: Counter[float] = Counter()
    pauses: list[tuple[float, float | None, bool]] = []
    for member in members:
        for at, mark in enumerate(member.marks):
            if mark.what == "piece":
                pieces[mark.at_s] += mark.tokens
            else:
                back = next((later.at_s for later in member.marks[at + 1 :] if later.what == "piece"), None)
                pauses.append((mark.at_s, back, mark.what == "swap"))
    pauses.sort(key=lambda pause: (pause[1] is None, pause[0]))
    return {
        "piece_at_s": sorted(pieces),
        "piece_tokens": [pieces[at_s] for at_s in sorted(pieces)],
        "preempted_at_s": [lost for lost, _, _ in pauses],
        "resumed_at_s": [back for _, back, _ in pauses if back is not None],
        "swapped_at_s": [lost for lost, _, is_swap in pauses if is_swap],
    }


def gaps_between(times: list[float]) -> list[float]:
    """One gap per token after the first. Tokens that came out together (speculation) share the time since the one
    before them equally; those that came with the first have no such time and a gap of 0."""
    gaps: list[float] = []
    for (earlier, _), (later, together) in pairwise((time, sum(1 for _ in same)) for time, same in groupby(times)):
        gaps += [(later - earlier) / together] * together
    return [0.0] * (len(times) - 1 - len(gaps)) + gaps


def _earliest(records: list[RequestRecord], name: str) -> float | None:
    return min((value for record in records if (value := getattr(record, name)) is not None), default=None)


def _latest(records: list[RequestRecord], name: str) -> float | None:
    return max((value for record in records if (value := getattr(record, name)) is not None), default=None)


def rejected_record(
    request_id: int, arrival_s: float, input_tokens: int, reason: str, priority: int = 0
) -> RequestRecord:
    """A request that was never admitted: no tokens, no times."""
    return RequestRecord(
        request_id=request_id, arrival_s=arrival_s, input_tokens=input_tokens, output_tokens=0, cached_tokens=0,
        allocated_blocks=0, queue_time_s=None, prefill_time_s=None, decode_time_s=None, ttft_s=None, tpot_s=None,
        e2e_s=None, preemptions=0, finish_reason="rejected", error=reason, priority=priority,
    )  # fmt: skip


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
