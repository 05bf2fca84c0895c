"""A fitted model with planted coefficients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvbench.costmodel.fitted import Configuration, FittedFile, LeftOut, Term, geometry_digest
from kvbench.costmodel.fitted_file import with_digest
from kvbench.costmodel.terms import term_names
from kvbench.devices.facts import Device
from kvbench.geometry.presets import preset

KNOTS = (4, 32)
PLANTED = {
    "step": 3e-4, "prefill_step": 2e-4, "sequences": 1e-5, "prefills": 4e-5, "tokens_0": 2e-4, "tokens_1": 5e-5,
    "tokens_2": 3e-5, "sampled_rows": 2e-5, "decode_reads": 1e-8, "block_reads": 3e-8, "prefill_reads": 2e-8,
    "prefill_pairs": 5e-10,
}  # fmt: skip
"""Seconds of the terms of `KNOTS`; none for copies"""


def configuration(kv_dtype: str = "fp32", **changes: Any) -> Configuration:
    names = [name for name in term_names(KNOTS) if name in PLANTED]
    terms = {name: Term(PLANTED[name], PLANTED[name] * 0.9, PLANTED[name] * 1.1) for name in names}
    nothing = tuple((0.0,) * len(terms) for _ in terms)
    domain = {"block_size": (4.0, 64.0), "tokens": (1.0, 512.0), "max_sequences": (4.0, 16.0)}
    found = Configuration(kv_dtype, "token-head", "hnd", KNOTS, terms, nothing, domain, steps=1000, samples=8)
    return replace(found, **changes)


def fitted_file(model: str = "tiny-llama", **changes: Any) -> FittedFile:
    metrics = [{"output_tokens_per_s": (100.0 + n, 100.0, n / 2)} for n in range(4)]
    cases = [LeftOut("a-run", f"{n:012x}", 0, f"case {n}", found) for n, found in enumerate(metrics)]
    found = FittedFile(
        name="planted",
        source="a test",
        device=Device("Some CPU", "cpu", 8 << 30, cores=2, datasheet="the device that was measured"),
        model=model,
        geometry=geometry_digest(preset(model)),
        weight_dtype="fp32",
        threads=1,
        attention="numba",
        configurations=(configuration(),),
        settings={"batch_policy": ("chunked", "continuous")},
        left_out=tuple(cases),
        runs={"a-run": "0" * 64},
    )
    return with_digest(replace(found, **changes))
