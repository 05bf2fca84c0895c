"""The columns of requests, steps and workload: type, unit and meaning of every one.

The request and step columns are the fields of `RequestRecord` and `StepRecord` under their own names.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

ColumnType = Literal["string", "int64", "uint64", "float64", "bool", "floats", "ints", "segments"]
Better = Literal["", "higher", "lower"]


class Column(NamedTuple):
    """One column. `unit` is an SI base unit, a counted thing (`tokens`, `blocks`) or "" where there is none."""

    name: str
    type: ColumnType
    unit: str
    description: str
    better: Better = ""
    """Which direction is good, where that is beyond dispute."""


def _text(name: str, description: str) -> Column:
    return Column(name, "string", "", description)


def _seconds(name: str, description: str) -> Column:
    return Column(name, "float64", "s", description)


def _count(name: str, unit: str, description: str) -> Column:
    return Column(name, "int64", unit, description)


SAMPLE_KEYS = (
    _text("run_id", "The run: also the name of its folder."),
    _text("case_id", "The case: digest of every setting that decides its result."),
    _count("sample", "", "Repetition of the case, from 0; each is a fresh process."),
)

_CLOCK = _text("clock", "wall: times are of the real device; virtual: predicted by a cost model.")

REQUEST_COLUMNS = (
    *SAMPLE_KEYS,
    _CLOCK,
    _count("request_id", "", "The request, as numbered in the workload."),
    _seconds("arrival_s", "Scheduled arrival, from the start of the workload; every latency counts from here."),
    _count("input_tokens", "tokens", "Prompt length."),
    _count("output_tokens", "tokens", "Tokens actually produced."),
    _count(
        "cached_tokens",
        "tokens",
        "Prompt tokens found in the prefix cache at the first admission, promotions included.",
    ),
    _count("allocated_blocks", "blocks", "Most blocks held at once."),
    _text("attention_mode", "mha, gqa, mqa or mla, with `+window` where some layer has one."),
    _text("cache_dtype", "K and V as stored."),
    _seconds("queue_time_s", "Scheduled arrival to first scheduled step."),
    _seconds("prefill_time_s", "First scheduled step to first token."),
    _seconds("decode_time_s", "First token to last token."),
    _seconds("ttft_s", "Time to first token: scheduled arrival to first token, queueing included."),
    _seconds("tpot_s", "Mean time per output token after the first; missing when only one was produced."),
    _seconds("e2e_s", "Scheduled arrival to last token."),
    _count("preemptions", "", "Times the request lost its blocks while running."),
    _text("finish_reason", "length, stop, rejected (could never fit) or error."),
    _text("error", "What went wrong, where something did."),
    Column(
        "itl_s",
        "floats",
        "s",
        "Gaps between output tokens, those of one step sharing theirs equally; TTFT is never one.",
    ),
    _count("recomputed_tokens", "tokens", "Tokens whose KV was computed again after a preemption."),
    _count("priority", "", "Higher is more important."),
    _count("passed_over", "", "Admissions, while it waited, of requests that joined the queue after it."),
    _count("draft_tokens", "tokens", "Speculative tokens that were verified."),
    _count("accepted_tokens", "tokens", "Of these, what became output beyond one token a step."),
    Column(
        "piece_at_s",
        "floats",
        "s",
        "When each step that computed a piece of the prompt, or KV again, was scheduled; empty when one did it all.",
    ),
    Column("piece_tokens", "ints", "tokens", "Tokens of each of these pieces."),
    Column("preempted_at_s", "floats", "s", "When it lost its blocks."),
    Column("resumed_at_s", "floats", "s", "When it computed something again after each; fewer where it never did."),
    Column("swapped_at_s", "floats", "s", "Those of `preempted_at_s` at which its blocks went to the swap area."),
)

STEP_COLUMNS = (
    *SAMPLE_KEYS,
    _CLOCK,
    _count("step", "", "The engine step, from 0."),
    _seconds("t_s", "Start of the step, from the start of the workload."),
    _seconds("duration_s", "Length of the step."),
    _count("batch_size", "sequences", "Sequences that computed something in this step."),
    _count("prefill_tokens", "tokens", "Prompt tokens computed."),
    _count("decode_tokens", "tokens", "Decode tokens computed; rejected drafts are not among them."),
    _count("context_tokens", "tokens", "KV tokens read by attention."),
    _count("active_sequences", "sequences", "Sequences being served, scheduled in this step or not."),
    _count("waiting_sequences", "sequences", "Requests that have arrived and wait."),
    _count("kv_capacity_bytes", "B", "Size of the block pool."),
    _count("kv_bytes_used", "B", "Blocks that live sequences hold."),
    _count("kv_blocks_total", "blocks", "Blocks of the pool."),
    _count("kv_blocks_free", "blocks", "Blocks that hold nothing."),
    _count("live_cached_tokens", "tokens", "Tokens in the prefix cache that a look-up could hit."),
    _count("internal_slots", "slots", "Allocated slots that hold no token."),
    _count("reserved_slots", "slots", "Slots held for tokens that may never come."),
    _count("external_blocks", "blocks", "Free blocks that cannot serve the next request."),
    _count("admissions", "", "Sequences admitted in this step."),
    _count("preemptions", "", "Sequences preempted in this step."),
    _count("evictions", "blocks", "Cached blocks that lost their contents in this step."),
    _count("prefix_cache_queries", "tokens", "Prompt tokens looked up, first admissions only."),
    _count("prefix_cache_hits", "tokens", "Prompt tokens found, first admissions only."),
    _seconds("prefix_lookup_s", "Time the step spent on admission plans, look-ups included; 0 by a virtual clock."),
    _count("host_offload_bytes", "B", "Bytes copied from device to host in this step."),
    _count("host_promotions", "blocks", "Blocks copied back from host to device in this step."),
    _count("disk_offload_bytes", "B", "Bytes written from host to disk in this step."),
    _count("disk_promotions", "blocks", "Blocks read back from disk in this step."),
    _count("swap_out_bytes", "B", "Bytes of preempted sequences copied to the swap area in this step."),
    _count("swap_in_bytes", "B", "Bytes copied back from the swap area in this step."),
    _seconds("promotion_stall_s", "Time the step waited for blocks from host, disk or swap area."),
    _count("copy_on_write_copies", "blocks", "Shared blocks copied before a write."),
    _count("readmission_queries", "tokens", "Tokens looked up by sequences that come back after a preemption."),
    _count("readmission_hits", "tokens", "Of these, found: re-hits, apart from the hit rate."),
    _count("draft_tokens", "tokens", "Speculative tokens that were verified."),
    _count("accepted_tokens", "tokens", "Of these, what became output beyond one token a sequence."),
    _count("rollbacks", "sequences", "Sequences whose block table was cut back to what was accepted."),
    _count("swap_refusals", "", "Preempted sequences that found no room in the swap area and were recomputed."),
    _count("host_bytes_used", "B", "Blocks in the host tier at the end of the step."),
    _count("disk_bytes_used", "B", "Blocks in the disk tier at the end of the step."),
    _count("swap_bytes_used", "B", "Blocks in the swap area at the end of the step."),
    _count("failed_copies", "blocks", "Block copies that failed; what they would have brought was computed again."),
    _count("sampled_rows", "rows", "Rows that went through the output head."),
    _count(
        "decode_reads", "tokens", "KV tokens that decoding sequences read, summed over all layers, windows counted."
    ),
    _count("prefill_reads", "tokens", "KV tokens that pieces of prompts read, likewise."),
    _count("prefill_pairs", "", "(query, key) products of pieces of prompts, likewise."),
    _count("block_reads", "blocks", "Block-table entries that attention follows, likewise."),
)

WORKLOAD_COLUMNS = (
    _text("run_id", "The run."),
    _text("workload_digest", "The workload: the same digest stands in the rows of the cases that ran it."),
    _count("request_id", "", "The request."),
    _seconds("arrival_s", "Scheduled arrival; 0 when the request waits for another."),
    _count("input_tokens", "tokens", "Prompt length."),
    _count("output_tokens", "tokens", "Tokens to produce."),
    Column("prompt", "segments", "tokens", "The prompt as pieces of token streams: (stream, start, length)."),
    Column("output", "segments", "tokens", "The forced output, likewise; missing when the model's own tokens count."),
    _count("after", "", "Request that must finish first."),
    _seconds("think_time_s", "Pause after that request has finished."),
    _count("session_id", "", "Conversation that the request belongs to."),
    _text("salt", "Isolation key of the prefix cache."),
    _count("priority", "", "Higher is more important."),
)
