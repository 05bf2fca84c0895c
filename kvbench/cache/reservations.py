"""How much a sequence reserves when nothing can be added later: the baselines that paging is compared with.

After the three variants of Orca's contiguous allocation in Kwon et al. 2023 ("Efficient Memory Management for Large
Language Model Serving with PagedAttention", §6.1). For a prompt of n tokens and an output of m:

    max      the longest sequence, `max_context`
    pow2     n + 2^⌈log2 m⌉: the output is over-reserved at most twofold
    oracle   n + m − 1: exactly what will be stored (the last output token never is)
"""

from __future__ import annotations

RESERVATIONS = ("max", "pow2", "oracle")


def reserved_slots(reservation: str, prompt: int, slots: int, max_context: int) -> int:
    """Slots to reserve for a prompt of `prompt` tokens whose sequence needs `slots` at its longest."""
    if reservation == "max":
        return max_context
    if reservation == "oracle":
        return slots
    output = slots + 1 - prompt
    return min(prompt + (1 << (output - 1).bit_length()), max_context)


def largest_piece(allocator: str, blocks: int) -> int:
    """Blocks of the longest reservation that an empty pool can hold."""
    return 1 << (blocks.bit_length() - 1) if allocator == "buddy" and blocks else blocks
