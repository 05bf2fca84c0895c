"""Decode-kernel times of the tuned store put into a device's rates: what reading KV and following block tables take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvbench.geometry.dtypes import storage_dtype
from kvbench.tuned.files import read_store

if TYPE_CHECKING:
    from kvbench.costmodel.rates import NamedRates
    from kvbench.devices.facts import Device
    from kvbench.geometry.model import ModelGeometry
    from kvbench.tuned.winner import Winner

FEWEST = 3
"""Shapes of at least two block sizes, below which the datasheet stays"""


def with_kernel_times(rates: NamedRates, geometry: ModelGeometry, device: Device) -> tuple[NamedRates, str]:
    """Rates whose `kv_bytes` and `block_s` are those of the winners for this device and these heads, and a sentence
    about them; the rates as they are and no sentence where the store has too few."""
    found = [w for w in read_store().table.winners if _is_for(w, geometry, device)]
    if len(found) < FEWEST or len({w.key.block_size for w in found}) < 2:
        return rates, ""
    byte_s, entry_s = _fitted(found, rates.rates.layer_s)
    if byte_s <= 0:
        return rates, ""
    changed = replace(rates.rates, kv_bytes=1.0 / byte_s, block_s=entry_s)
    told = f"decode attention by {len(found)} tuned kernel times of {found[0].key.device}"
    return replace(rates, rates=changed, label=f"{rates.label} + tuned kernels"), told


def _is_for(winner: Winner, geometry: ModelGeometry, device: Device) -> bool:
    key, group = winner.key, geometry.groups[0]
    name = key.device.split(", ")[0] if device.kind == "cpu" else key.device
    heads = (key.query_heads, key.kv_heads, key.k_dim, key.v_dim)
    same = heads == (geometry.query_heads, group.kv_heads, group.k_head_dim, group.v_head_dim)
    return name == device.name and same and key.query_tokens == 1 and not key.has_window


def _fitted(winners: Sequence[Winner], launch_s: float) -> tuple[float, float]:
    """Seconds per byte of K and V and per block-table entry and KV head, by non-negative least squares of relative
    errors: time = launch + bytes · byte_s + entries · KV heads · block_s."""
    from scipy.optimize import nnls

    rows, times = [], []
    for winner in winners:
        key = winner.key
        tokens = key.batch * key.context
        entries = key.batch * -(-key.context // key.block_size)
        stored = storage_dtype(key.kv_dtype)
        element = float(stored.bytes_per_element)
        scales = 2 * stored.scale_bytes * key.has_block_scales
        token_bytes = key.kv_heads * ((key.k_dim + key.v_dim) * element + scales)
        time_s = max(winner.time_s - launch_s, winner.time_s / 2)
        rows.append([tokens * token_bytes / time_s, entries * key.kv_heads / time_s])
        times.append(1.0)
    found, _ = nnls(np.array(rows), np.array(times))
    return float(found[0]), float(found[1])
