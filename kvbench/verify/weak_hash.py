"""A digest that collides all the time: what crafted or unlucky prefixes would do to a real one."""

from __future__ import annotations

from kvbench.cache.content import HASH_FUNCTIONS, sha256_digest

WEAK = "weak-4-bit"


def weak_digest(data: bytes) -> bytes:
    """One of sixteen values."""
    return bytes([sha256_digest(data)[0] & 15])


def offer_weak_digest() -> None:
    """Make the digest known to this process's caches; no suite can name it."""
    HASH_FUNCTIONS.setdefault(WEAK, "kvbench.verify.weak_hash:weak_digest")
