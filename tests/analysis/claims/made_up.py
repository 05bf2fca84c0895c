"""For every suite a run in which its whole claim holds, or in which none of it does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from tests.analysis.claims.runs import CaseSpec

Cases = list[CaseSpec]


def block_size(holds: bool) -> tuple[Cases, Cases]:
    numbers = {4: (90.0, 0.01, 1.2e-4), 16: (100.0, 0.02, 1e-4), 64: (99.0, 0.1, 9e-5), 128: (80.0, 0.2, 8e-5)}
    if not holds:
        numbers |= {4: (110.0, 0.3, 0.8e-4), 128: (105.0, 0.05, 2e-4)}
    engine = [
        ({"block_size": size}, {"output_tokens_per_s": speed, "internal_share_mean": waste})
        for size, (speed, waste, _) in numbers.items()
    ]
    return engine, [({"block_size": size}, {"decode_s": decode}) for size, (_, _, decode) in numbers.items()]


def contiguous_vs_paged(holds: bool) -> tuple[Cases, Cases]:
    def case(allocator: str, maximum: int, filled: float, sequences: float) -> CaseSpec:
        axes = {"allocator": allocator, "reservation": "max", "max_context": maximum}
        empty = {"kv_utilisation_mean": 0.9, "internal_share_mean": 0.9 * (1 - filled), "reserved_share_mean": 0.0}
        return axes, {**empty, "active_sequences_mean": sequences}

    reserved, paged, sequences = ((0.3, 0.25), 0.97, 30.0) if holds else ((0.5, 0.1), 0.9, 15.0)
    return [
        *(case("contiguous", maximum, filled, 10.0) for maximum, filled in zip((1024, 2048), reserved, strict=True)),
        *(case("paged", maximum, paged, sequences) for maximum in (1024, 2048)),
    ], []


def batch_policy(holds: bool) -> tuple[Cases, Cases]:
    def case(policy: str, arrival: str, factor: float) -> CaseSpec:
        slower = {"e2e_p50_s": 2.0, "queue_mean_s": 1.0, "e2e_p95_s": 4.0}
        metrics = {name: value * factor for name, value in slower.items()}
        return {"batch_policy": policy, "arrival": arrival}, {**metrics, "output_tokens_per_s": 100 / factor}

    return [
        case(policy, arrival, factor)
        for policy, factor in (("static", 1.0), ("continuous", 0.7 if holds else 1.3))
        for arrival in ("poisson", "all-at-once")
    ], []


def admission(holds: bool) -> tuple[Cases, Cases]:
    packing = {"output_tokens_per_s": 120.0, "preemptions": 40.0, "active_sequences_mean": 12.0}
    promising = {"output_tokens_per_s": 100.0, "preemptions": 0.0, "active_sequences_mean": 7.0}
    if not holds:
        packing, promising = promising, packing
    return [
        ({"admission": "max-utilization"}, {**packing, "ttft_p95_s": 1.0 if holds else 3.0, "tpot_p95_s": 0.03}),
        ({"admission": "guaranteed-no-evict"}, {**promising, "ttft_p95_s": 2.0, "tpot_p95_s": 0.01}),
    ], []


def preemption(holds: bool) -> tuple[Cases, Cases]:
    found = []
    for (how, factor), (victim, other) in product(
        (("recompute", 1.0), ("swap", 1.2 if holds else 1.001)),
        (("first-arrived", 1.0), ("lrc", 1.1 if holds else 1.001), ("lrc-age", 0.9 if holds else 1.002)),
    ):
        metrics = {"output_tokens_per_s": 100.0, "kv_utilisation_mean": 0.7, "e2e_p95_s": 3.0}
        values = {name: value * factor * other for name, value in metrics.items()}
        found.append(({"preemption": how, "victim": victim}, values))
    return found, []


def prefix_cache(holds: bool) -> tuple[Cases, Cases]:
    def case(turns: int, cache: str, per_turn: float, ttft: float, look_up: float) -> CaseSpec:
        axes = {"turns": turns, "prefix_cache": cache, "hash_function": "xxh3-128", "eviction": "lru"}
        cached = 4000.0 if cache != "none" and holds else 0.0
        work = {"prefill_tokens_total": 40 * per_turn, "requests_total": [40.0] * 5, "live_cached_tokens_max": cached}
        return axes, {**work, "ttft_p50_s": ttft, "prefix_lookup_s": look_up}

    growing, sooner, radix = ("none", 0.3, 0.005) if holds else ("hash", 1.5, 0.01)
    return [
        case(turns, cache, per_turn if cache == growing else 120.0, 1.0 if cache == "none" else sooner, look_up)
        for turns, per_turn in ((1, 320.0), (2, 368.0), (8, 656.0))
        for cache, look_up in (("none", 0.001), ("hash", 0.01), ("radix", radix))
    ], []


def beam_cow(holds: bool) -> tuple[Cases, Cases]:
    kinds = ((5, 8, 1, 0.05 if holds else 0.12), (5, 1, 8, 0.05), (40, 1, 1, 0.15))
    return [
        (
            {"output_tokens": tokens, "block_size": 16, "requests": requests, "beams": beams, "n": n},
            {"kv_utilisation_peak": share},
        )
        for tokens in (8, 24)
        for requests, beams, n, share in kinds
    ], []


def kv_dtype(holds: bool) -> tuple[Cases, Cases]:
    kinds = {"fp32": (4.0, 1.0, 1e-9), "bf16": (2.0, 1.0, 0.01), "int8": (1.0, 1.1, 0.05), "fp8_e4m3": (1.1, 1.2, 0.2)}
    if not holds:
        kinds |= {"int8": (1.9, 1.001, 0.001), "fp8_e4m3": (1.8, 1.002, 0.002)}
    engine: Cases = [
        (
            {"kv_dtype": dtype, "kv_scales": "token-head"},
            {
                "kv_capacity_bytes": [8000.0 * size] * 5, "kv_capacity_tokens": [8000.0] * 5,
                "prefill_tokens_per_busy_s": 1000.0 * speed, "kv_error_rel_rms": error,
            },
        )
        for dtype, (size, speed, error) in kinds.items()
    ]  # fmt: skip
    return engine, [({"kv_dtype": dtype}, {"decode_s": 1e-4 * speed}) for dtype, (_, speed, _) in kinds.items()]


def mla(holds: bool) -> tuple[Cases, Cases]:
    return [
        (
            {"model_name": name, "attention_mode": mode, "max_sequences": seats},
            {
                "kv_capacity_bytes": [1e6] * 5, "kv_capacity_tokens": [tokens] * 5,
                "active_sequences_mean": min(seats, tokens / 100), "tpot_p50_s": tpot,
            },
        )
        for name, mode, tokens, tpot in (
            ("a", "mha", 1000.0, 0.02),
            ("b", "gqa", 4000.0, 0.01),
            ("c", "mla", 3600.0 if holds else 900.0, 0.01 if holds else 0.03),
        )
        for seats in (4, 32)
    ], []  # fmt: skip


def offload(holds: bool) -> tuple[Cases, Cases]:
    def case(offload: str, promotion: str, hits: float, speed: float, ttft: float, promoted: int) -> CaseSpec:
        axes = {"prefix_cache": "hash", "offload": offload, "promotion": promotion}
        stall = 0.001 * promoted if promotion == "blocking" and holds else 0.0
        pool = {"kv_blocks_total": 256.0, "kv_capacity_tokens": 4096.0, "host_promotions": float(promoted)}
        numbers = {"prefix_hit_rate": hits, "output_tokens_per_s": speed, "ttft_p50_s": ttft}
        busy = {"promotion_stall_s": stall, "prefill_tokens_per_busy_s": 5000.0}
        return axes, {**{name: [count] * 5 for name, count in pool.items()}, **numbers, **busy}

    alone = case("none", "blocking", 0.5, 100.0, 2.0, 0)
    if not holds:
        slower = ("host", "blocking", 0.4, 90.0, 2.5, 300), ("host+disk", "blocking", 0.3, 80.0, 3.0, 310)
        return [alone, *(case(*one) for one in slower)], []
    return [
        alone,
        case("host", "blocking", 0.7, 120.0, 1.5, 300),
        case("host+disk", "blocking", 0.75, 115.0, 1.6, 310),
        case("host", "overlapped", 0.72, 125.0, 1.2, 305),
    ], []


WINDOWS: dict[str, Any] = {
    "full": {"geometry": {"groups": [{"kind": "full", "window": None}]}},
    "hybrid": {"geometry": {"groups": [{"kind": "full", "window": None}, {"kind": "window", "window": 64}]}},
    "narrow": {"geometry": {"groups": [{"kind": "window", "window": 64}]}},
}


def sliding_window(holds: bool) -> tuple[Cases, Cases]:
    held = {"full": (300.0, 800.0), "hybrid": (150.0, 300.0), "narrow": (120.0, 121.0)}
    if not holds:
        held = {"full": (100.0, 200.0), "hybrid": (150.0, 300.0), "narrow": (120.0, 240.0)}
    return [
        (
            {"model_name": name, "input_tokens": length},
            {
                "active_sequences_mean": 900 / tokens, "kv_utilisation_mean": 0.9,
                "kv_capacity_tokens": [1000.0] * 5,
            },
        )
        for name, both in held.items()
        for length, tokens in zip((64, 256, 768), (100.0, *both), strict=True)
    ], []  # fmt: skip


def speculative(holds: bool) -> tuple[Cases, Cases]:
    def case(kind: str, tokens: float, tpot: float, drafts: float, accepted: float) -> CaseSpec:
        counts = {"draft_tokens_total": [drafts] * 5, "accepted_tokens_total": [accepted] * 5}
        share = accepted / drafts if drafts else None
        rollbacks = drafts - accepted
        numbers = {"tokens_per_decode": tokens, "tpot_p50_s": tpot, "rollbacks": rollbacks, "accepted_share": share}
        return {"speculation": kind}, {**counts, **numbers}

    if not holds:
        both = case("prompt-lookup", 0.95, 0.02, 100.0, 60.0), case("draft-model", 0.9, 0.03, 100.0, 90.0)
        return [case("none", 1.0, 0.01, 0.0, 0.0), *((axes, {**m, "rollbacks": 0.0}) for axes, m in both)], []
    return [
        case("none", 1.0, 0.01, 0.0, 0.0),
        case("prompt-lookup", 1.8, 0.008, 100.0, 60.0),
        case("draft-model", 4.0, 0.005, 100.0, 100.0),
    ], []


def systems(holds: bool) -> tuple[Cases, Cases]:
    numbers = {
        "contiguous": (4.0, 100.0, 8.0, None, 0.0),
        "orca": (4.0, 150.0, 5.0, None, 0.0),
        "vllm": (16.0, 300.0, 3.0, 0.4, 5.0),
        "sglang": (16.0, 310.0, 3.0, 0.5, 1.0),
        "trtllm-max-utilization": (17.0, 300.0, 3.0, 0.4, 9.0),
        "trtllm-no-evict": (13.0, 280.0, 3.0, 0.4, 0.0),
    }
    if not holds:
        numbers = {
            "contiguous": (4.0, 100.0, 4.0, None, 0.0),
            "orca": (16.0, 300.0, 5.0, None, 0.0),
            "vllm": (4.0, 200.0, 3.0, 0.4, 5.0),
            "sglang": (16.0, 310.0, 3.0, 0.3, 1.0),
            "trtllm-max-utilization": (13.0, 300.0, 3.0, 0.4, 9.0),
            "trtllm-no-evict": (17.0, 280.0, 3.0, 0.4, 2.0),
        }
    names = ("active_sequences_mean", "output_tokens_per_s", "e2e_p95_s", "prefix_hit_rate", "preemptions")
    return [({"preset": preset}, dict(zip(names, values, strict=True))) for preset, values in numbers.items()], []


def traffic(holds: bool) -> tuple[Cases, Cases]:
    sizes, dtypes = ((1.0, 1.1, 1.0), (1.0, 0.8)) if holds else ((1.0, 1.001, 1.002), (1.0, 0.999))
    return [
        (
            {"block_size": size, "kv_dtype": dtype},
            {"output_tokens_per_s": 100.0 * a * b, "ttft_p95_s": 2.0 * a * b, "tpot_p95_s": 0.1 * a * b},
        )
        for (size, a), (dtype, b) in product(
            zip((8, 16, 32), sizes, strict=True), zip(("fp32", "int8"), dtypes, strict=True)
        )
    ], []


def reblocking(holds: bool) -> tuple[Cases, Cases]:
    cost, lost = (0.01, 0.0) if holds else (2.0, 100.0)
    return [
        (
            {"block_size": size, "reblock_to": to},
            {
                "tpot_p50_s": 0.01 if to == "none" or holds else 0.012, "wall_s": 10.0,
                **({} if to == "none" else {"reblock_s": cost, "reblock_dropped_tokens": [lost] * 5}),
            },
        )
        for size, to in ((16, "none"), (16, 32), (32, "none"), (32, 16))
    ], []  # fmt: skip


MADE_UP: dict[str, Callable[[bool], tuple[Cases, Cases]]] = {
    "block-size": block_size, "contiguous-vs-paged": contiguous_vs_paged, "batch-policy": batch_policy,
    "admission": admission, "preemption": preemption, "prefix-cache": prefix_cache, "beam-cow": beam_cow,
    "kv-dtype": kv_dtype, "mla": mla, "offload": offload, "sliding-window": sliding_window,
    "speculative": speculative, "systems": systems, "traffic": traffic, "reblocking": reblocking,
}  # fmt: skip
