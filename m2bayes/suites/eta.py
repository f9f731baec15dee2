"""The source's efficiencies beside the posterior's: ceilings by projection, bandwidth ramp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.factors import with_skus
from m2bayes.mechanism.gemm import gemm_terms, gemm_time
from m2bayes.mechanism.memory import bandwidth_ramp
from m2bayes.mechanism.roofline import activation_traffic, gemm_flops, weight_traffic

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("eta_ceilings", "eta_memory")
JUDGED = ("posterior",)  # fields of the setting
LLM, LARGE, SMALL = "llama-3.1-8b", 16384.0, 1.0


def run(setting: Setting) -> dict[str, Any]:
    """Set the posterior's implied efficiencies beside the source's measured ones.

    Returns
    -------
    dict
        ``compute``: achieved share of the peak rate at M = 16384, by projection and SKU;
        ``memory``: achieved share of peak bandwidth at M = 1, served; each with its 90 % interval,
        and the source's figure [1].
    """
    from m2bayes.gemm import gemm_shapes

    database = setting.database
    draws = database.draws(setting.posterior)
    sheets = database.datasheets([str(s) for s in draws["sku"].values])
    shapes = gemm_shapes(database.llm(LLM))
    ceilings = database.table(DATA[0]).set_index("op")["eta_compute"]
    factors = with_skus(draws, sheets, seed=setting.seed)
    out: dict[str, Any] = {"compute": {}, "memory": {}}
    for op, (N, K) in shapes.items():
        cell = xr.Dataset({"N": float(N), "K": float(K)})
        large, small = (cell.assign(M=m) for m in (LARGE, SMALL))
        time = gemm_time(gemm_terms(large, sheets, regime="served"), factors)
        share = gemm_flops(LARGE, N, K) / sheets["peak_flop_rate"] / time
        out["compute"][op] = {"source": float(ceilings[op]), **_by_sku(share)}
        time = gemm_time(gemm_terms(small, sheets, regime="served"), factors)
        traffic = weight_traffic(N, K) + activation_traffic(SMALL, N, K)
        share = traffic / sheets["peak_bandwidth"] / time
        ramp = float(bandwidth_ramp(weight_traffic(N, K)))
        out["memory"][op] = {"source": ramp, **_by_sku(share)}
    return out


def _by_sku(share: xr.DataArray) -> dict[str, list[float]]:
    """Median and 90 % interval of each SKU [1]."""
    flat = share.transpose("sku", ...).values.reshape(share.sizes["sku"], -1)
    cuts = np.quantile(flat, [0.5, 0.05, 0.95], axis=1)
    return {str(s): [float(v) for v in cuts[:, i]] for i, s in enumerate(share["sku"].values)}
