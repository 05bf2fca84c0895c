"""The shared memory of an SM, which follows from the compute capability.

CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". A block may use what an SM has less what
the driver keeps for each block.
"""

from __future__ import annotations

_KIB = 1 << 10

SHARED_PER_SM_BYTES = {
    "8.0": 164 * _KIB,
    "8.6": 100 * _KIB,
    "8.9": 100 * _KIB,
    "9.0": 228 * _KIB,
    "10.0": 228 * _KIB,
    "12.0": 100 * _KIB,
}
RESERVED_SHARED_BYTES = 1 * _KIB
"""What the driver keeps of an SM's shared memory for every resident block (compute capability 8.0 and later)."""
