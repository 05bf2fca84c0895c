"""Which configuration a shape gets: its own bucket's, else the nearest declared one, else none.

Nearest: an entry that differs in nothing but its buckets, at most one power of two away in batch and one in context;
of several the least far, then the longer context, then the larger batch. Nothing farther is used: a winner for another
size can be slower than the default.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from kvbench.tuned.key import TunedKey
from kvbench.tuned.winner import Winner

NARROW = ("int8", "fp8_e4m3", "fp8_e5m2")
"""KV dtypes that need scales, in their blocks or per tensor"""
REACH = 1
"""Powers of two that batch and context may each be off"""


@dataclass(frozen=True, slots=True)
class Match:
    """A winner for a key; `is_exact` when it was tuned for the key's own bucket."""

    winner: Winner
    is_exact: bool


class TunedTable:
    """Winners by key; the newest of two for one key counts."""

    def __init__(self, winners: Iterable[Winner] = ()) -> None:
        self.winners = sorted(winners, key=lambda w: (w.key.kernel, w.key.label, w.tuned_at))
        self._by_key = {w.key: w for w in self.winners}
        self._by_rest: dict[TunedKey, list[Winner]] = {}
        for winner in self._by_key.values():
            self._by_rest.setdefault(winner.key.rest, []).append(winner)

    def look_up(self, key: TunedKey) -> Match | None:
        exact = self._by_key.get(key)
        if exact is not None:
            return Match(exact, True)
        near = [w for w in self._by_rest.get(key.rest, ()) if max(_steps(w.key, key)) <= REACH]
        if not near:
            return None
        best = min(near, key=lambda w: (sum(_steps(w.key, key)), -w.key.context, -w.key.batch))
        return Match(best, False)

    def neighbours(self, key: TunedKey) -> list[Winner]:
        """Winners of the same kernel, source, device and compiler, the likest shape first: where a search may start."""
        same = [w for w in self._by_key.values() if _circumstances(w.key) == _circumstances(key) and w.key != key]
        return sorted(same, key=lambda w: (_unlike(w.key, key), w.key.digest))

    def stale(self, key: TunedKey) -> list[str]:
        """Why entries for this very shape are not used, one line each: other source, compiler or device."""
        found = []
        for winner in self._by_key.values():
            is_near = winner.key.unversioned == key.unversioned and max(_steps(winner.key, key)) <= REACH
            changed = [n for n in ("source", "compiler", "device") if getattr(winner.key, n) != getattr(key, n)]
            if is_near and changed:
                what = ", ".join(f"{n} {getattr(winner.key, n)} (now {getattr(key, n)})" for n in changed)
                found.append(f"{winner.key.kernel} for {winner.key.label}: tuned for {what}")
        return found


def retune_hint(key: TunedKey) -> str:
    """The command that tunes this shape."""
    dims = f"{key.k_dim}/{key.v_dim}" if key.v_dim != key.k_dim else str(key.k_dim)
    words = [f"kvbench tune {key.kernel}", f"--batch {key.batch} --context {key.context}"]
    words += [f"--block-size {key.block_size} --kv-dtype {key.kv_dtype} --query-dtype {key.query_dtype}"]
    words += [f"--layout {key.layout} --heads {key.query_heads}/{key.kv_heads} --head-dim {dims}"]
    words += [f"--query-tokens {key.query_tokens}"] if key.query_tokens > 1 else []
    words += [] if key.has_block_scales else ["--kv-scales tensor-absmax"] if key.kv_dtype in NARROW else []
    words += [f"--{name}" for name in ("window", "sinks", "cap") if getattr(key, f"has_{name}")]
    return " ".join(words)


def _steps(one: TunedKey, other: TunedKey) -> tuple[int, int]:
    """Powers of two between two keys, in batch and in context."""
    return (
        abs(one.batch.bit_length() - other.batch.bit_length()),
        abs(one.context.bit_length() - other.context.bit_length()),
    )


def _circumstances(key: TunedKey) -> tuple[str, ...]:
    return key.kernel, key.source, key.device, key.compiler


def _unlike(one: TunedKey, other: TunedKey) -> int:
    """Fields in which shapes differ, sixteen times as much as a step of a bucket."""
    pairs = zip(astuple(one.rest), astuple(other.rest), strict=True)
    return 16 * len([1 for mine, theirs in pairs if mine != theirs]) + sum(_steps(one, other))
