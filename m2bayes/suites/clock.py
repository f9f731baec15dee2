"""Sustained clock: datasheet boost, fitted, and forecast for a card without telemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.factors import with_skus
from m2bayes.mechanism.gemm import gemm_terms, gemm_time, sustained_share

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("clock_sustained",)
JUDGED = ("posterior",)  # fields of the setting
MIDDLE = 1024.0  # tokens at which the throughput of a sweep is compared with that of its end


def run(setting: Setting) -> dict[str, Any]:
    """Compare clocks with the telemetry, leaving one card's telemetry out, then all its data.

    Returns
    -------
    dict
        ``telemetry left out`` and ``card left out``: by SKU the measured share of boost, the
        forecast with its 90 % interval and half-width, errors of forecast and of boost [1];
        ``throughput``: change of the achieved rate from M = 1024 to 16384, and P(it rises).
    """
    left = setting.left_out(setting.posterior)
    readings = left.inputs.readings()
    if readings is None:
        return {}
    skus = [str(s) for s in readings["sku"].values]
    left.ahead([[sku] for sku in skus], telemetry_only=True)
    left.ahead([[sku] for sku in skus])
    out: dict[str, Any] = {"telemetry left out": {}, "card left out": {}, "throughput": {}}
    for sku in skus:
        at = readings.isel(reading=np.flatnonzero(readings["sku"].values == sku))
        sheet = left.inputs.datasheets.sel(sku=[sku])
        for name, draws in (
            ("telemetry left out", left.fit([sku], telemetry_only=True)),
            ("card left out", left.fit([sku])),
        ):
            out[name][sku] = forecast(draws, sheet, at, seed=setting.seed)
        stored = setting.database.draws(setting.posterior)
        out["throughput"][sku] = throughput(stored, sheet, at, seed=setting.seed)
    for name in ("telemetry left out", "card left out"):
        rows = list(out[name].values())
        keys = ("error", "error_boost", "half_width")
        out[name]["mean"] = {k: float(np.mean([r[k] for r in rows])) for k in keys}
    return out


def _factors(draws: xr.Dataset, sheet: xr.Dataset, seed: int) -> xr.Dataset:
    found = with_skus(draws, sheet, seed=seed)
    return found.squeeze("sku", drop=True) if "sku" in found.dims else found


def forecast(
    draws: xr.Dataset, sheet: xr.Dataset, reading: xr.Dataset, *, seed: int
) -> dict[str, float]:
    """Sustained over boost clock of one card, forecast against measured [1]."""
    terms = gemm_terms(reading, sheet, regime="served").squeeze(("sku", "reading"), drop=True)
    share = sustained_share(terms, _factors(draws, sheet, seed))
    rng = np.random.default_rng(seed)
    noise = rng.standard_t(4, size=share.shape) * draws["clock_misfit"].transpose(*share.dims)
    flat = (share * np.exp(noise)).values.ravel()
    low, middle, high = np.quantile(flat, [0.05, 0.5, 0.95])
    measured = float(np.exp(reading["reading_log_share"].item()))
    return {
        "measured": measured,
        "forecast": float(middle),
        "low": float(low),
        "high": float(high),
        "half_width": float((high - low) / 2 / middle),
        "error": float(abs(middle / measured - 1)),
        "error_boost": float(abs(1 / measured - 1)),
    }


def throughput(
    draws: xr.Dataset, sheet: xr.Dataset, reading: xr.Dataset, *, seed: int
) -> dict[str, float]:
    """Change of the achieved rate from the middle to the end of the token range [1].

    The middle is measured as a burst of the benchmark's length, the end with a settled clock.
    """
    last = reading.isel(reading=0)
    sweep = xr.Dataset(
        {v: ("tokens", [float(last[v])] * 2) for v in ("N", "K")}
        | {"M": ("tokens", [MIDDLE, float(last["M"])])}
    )
    factors = _factors(draws, sheet, seed)
    rate = []
    for i, regime in enumerate(("benchmark", "served")):
        terms = gemm_terms(sweep.isel(tokens=i), sheet, regime=regime).squeeze("sku", drop=True)
        rate.append(sweep["M"].values[i] / gemm_time(terms, factors))
    change = (rate[1] / rate[0] - 1).values.ravel()
    low, middle, high = np.quantile(change, [0.05, 0.5, 0.95])
    return {
        "change": float(middle),
        "low": float(low),
        "high": float(high),
        "p_rises": float((change > 0).mean()),
    }
