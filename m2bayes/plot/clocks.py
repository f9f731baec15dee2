"""The SM clock under a load of matrix products, from the burst to the settled clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.factors import with_skus
from m2bayes.mechanism.clock import power_load
from m2bayes.mechanism.gemm import gemm_terms, sustained_share
from m2bayes.plot import _canvas as house

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEGA, MILLI = 1e6, 1e-3
HALF_WIDTH = 1.96  # of a reading's 95 % interval, in standard errors


@house.styled
def clock_curves(
    posterior: xr.Dataset,
    datasheets: xr.Dataset,
    readings: xr.Dataset,
    *,
    mass: float = 0.9,
    seed: int = 0,
) -> Figure:
    """Sustained SM clock against the time under load, beside the telemetry.

    Parameters
    ----------
    posterior : Dataset, dims (chain, draw, …)
        Of the GEMMs, from `m2bayes.database.Database.draws`.
    datasheets : Dataset, dims (sku,)
        That hold the SKUs of the readings; ``boost_clock`` [Hz].
    readings : Dataset, dims (reading,)
        ``reading_log_share``, log of sustained over boost clock, its standard error
        ``reading_error`` [1], the load's ``M``, ``N``, ``K`` [1] and coordinate ``sku``, from
        `m2bayes.measurements.clock_readings`.
    mass : float
        Of the equal-tailed band [1].
    seed : int
        Of what is drawn for a SKU that nobody measured.

    Returns
    -------
    Figure
        One panel a SKU: median and band of the noise-free clock, the datasheet's boost clock, and
        the reading with its 95 % interval where the clock has settled.
    """
    count = readings.sizes["reading"]
    columns = min(2, count)
    rows = -(-count // columns)
    figure, axes = house.canvas(
        rows, columns, width=4.1 * columns + 0.6, height=2.7 * rows + 0.9, sharex=True
    )
    busy = np.geomspace(1e-3, 1.0, 25)
    handles: dict[str, Any] = {}
    for at, axis in zip(range(count), axes.ravel(), strict=False):
        reading = readings.isel(reading=[at])
        sku = str(reading["sku"].values[0])
        sheet = datasheets.sel(sku=[sku])
        boost = float(sheet["boost_clock"].item()) / MEGA
        clock = boost * _share(posterior, sheet, reading, busy, seed)
        handles |= _curve(axis, busy, clock, mass, sku)
        handles |= _reading(axis, busy[-1], boost, reading, sku)
        handles["boost"] = axis.axhline(
            boost, color=house.INK, linestyle="--", linewidth=1, label="datasheet boost clock"
        )
        shape = ", ".join(f"{v} {float(reading[v].item()):,.0f}" for v in ("M", "N", "K"))
        axis.set_title(f"{sku}\n{shape}", fontsize=9)
        axis.set_xscale("log")
        house.round_log(axis.xaxis, busy / MILLI)
        if at >= count - columns:
            axis.set_xlabel("time under load [ms]")
            axis.tick_params(labelbottom=True)
        axis.set_ylabel("SM clock [MHz]")
        _within(axis, clock, boost)
    for axis in axes.ravel()[count:]:
        axis.set_visible(False)
    house.legend_below(figure, list(handles.values()), columns=3)
    return figure


def _within(axis: Any, clock: np.ndarray, boost: float) -> None:
    """Limits of the clocks [MHz]: what is drawn, and not all that lies below it."""
    from matplotlib.ticker import FuncFormatter

    low = float(np.quantile(clock, 0.05, axis=0).min())
    axis.set_ylim(max(0.0, low - 0.25 * (boost - low)), boost + 0.08 * (boost - low))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_xlim(right=8 / MILLI)  # room for what the telemetry reads


def _share(
    posterior: xr.Dataset, sheet: xr.Dataset, reading: xr.Dataset, busy: np.ndarray, seed: int
) -> np.ndarray:
    """Draws of the clock over boost [1], dims (draw, busy)."""
    factors = with_skus(posterior, sheet, seed=seed)
    factors = factors.squeeze("sku", drop=True) if "sku" in factors.dims else factors
    sizes = reading[["M", "N", "K"]]
    terms = gemm_terms(sizes, sheet, regime="served").squeeze(("sku", "reading"), drop=True)
    load = xr.DataArray(power_load(busy), dims="busy")
    share = sustained_share(terms.assign(power_load=load), factors)
    return np.asarray(share.transpose("chain", "draw", "busy").values.reshape(-1, len(busy)))


def _curve(axis: Any, busy: np.ndarray, clock: np.ndarray, mass: float, sku: str) -> dict[str, Any]:
    low, middle, high = np.quantile(clock, [(1 - mass) / 2, 0.5, (1 + mass) / 2], axis=0)
    x, colour = busy / MILLI, house.PALETTE[0]
    band = axis.fill_between(
        x,
        low,
        high,
        color=colour,
        alpha=0.25,
        linewidth=0,
        label=f"its {house.percent(mass)} interval",
    )
    line = axis.plot(x, middle, color=colour, label="posterior median")
    for at in range(0, len(x), 4):
        point = axis.plot(x[at], middle[at], color=colour, marker="o", markersize=2.5)
        said = f"{middle[at]:.0f} ({low[at]:.0f} to {high[at]:.0f}) MHz"
        house.hover(point[0], f"{sku}, {x[at]:.3g} ms: {said}")
    return {"line": line[0], "band": band}


def _reading(
    axis: Any, settled: float, boost: float, reading: xr.Dataset, sku: str
) -> dict[str, Any]:
    """Telemetry with its 95 % interval, where the clock has settled."""
    middle = boost * float(np.exp(reading["reading_log_share"].item()))
    half = HALF_WIDTH * float(reading["reading_error"].item()) * middle
    point = axis.errorbar(
        settled / MILLI, middle, yerr=half, color=house.ALARM, marker="s", markersize=4, capsize=5,
        linestyle="", label="telemetry, ± 95 % interval", zorder=4,
    )  # fmt: skip
    axis.annotate(f"{middle:,.0f} ± {half:.0f}", (settled / MILLI, middle), xytext=(8, 0),
                  textcoords="offset points", va="center", fontsize=8,
                  color=house.ALARM)  # fmt: skip
    house.hover(point[0], f"{sku}: measured {middle:.0f} ± {half:.0f} MHz")
    return {"reading": point}
