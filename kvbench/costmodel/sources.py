"""Where step times come from: rates of a device (a roofline, a file) or a fitted file, and the `StepCost` of an engine
by either."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.costmodel.fitted import FittedCost, FittedFile
from kvbench.costmodel.fitted_file import FORMAT as FITTED
from kvbench.costmodel.fitted_file import read_fitted
from kvbench.costmodel.model import CostModel
from kvbench.costmodel.rates import HINT, WHAT, NamedRates, Rates, read_rates
from kvbench.digested import read_json_object
from kvbench.errors import CannotRunError
from kvbench.geometry.memory import TOKEN_HEAD

if TYPE_CHECKING:
    from kvbench.costmodel.cost import StepCost
    from kvbench.geometry.model import ModelGeometry

CostSource = NamedRates | FittedFile


def read_cost_file(path: str | Path) -> CostSource:
    """Either kind of file, by its `format`. Raises as `read_rates` and `read_fitted` do."""
    is_fitted = read_json_object(path, WHAT, HINT).get("format") == FITTED
    return read_fitted(path) if is_fitted else read_rates(path)


def cost_for(
    source: CostSource | Rates,
    geometry: ModelGeometry,
    *,
    weight_dtype: str,
    kv_dtype: str,
    block_size: int,
    kv_scales: str = TOKEN_HEAD,
    kv_layout: str = "hnd",
) -> StepCost:
    """What steps of an engine take. `CannotRunError` when the source is a fit of something else."""
    if not isinstance(source, FittedFile):
        rates = source.rates if isinstance(source, NamedRates) else source
        return CostModel(
            geometry, rates, weight_dtype=weight_dtype, kv_dtype=kv_dtype, block_size=block_size, kv_scales=kv_scales
        )
    fit = source.configuration(kv_dtype, kv_scales, kv_layout)
    reason = source.why_not(geometry, weight_dtype, kv_dtype, kv_scales, kv_layout)
    if fit is None or reason is not None:
        raise CannotRunError(str(reason), hint="fit a run of the same model and settings, or use the roofline")
    return FittedCost(fit, geometry, block_size=block_size)
