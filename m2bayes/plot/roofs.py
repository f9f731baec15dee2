"""The roofline: what a matrix product achieves, predicted and measured, under the datasheet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.mechanism.roofline import (
    activation_traffic,
    arithmetic_intensity,
    gemm_flops,
    ridge_point,
    weight_traffic,
)
from m2bayes.plot import _canvas as house

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TERA = 1e12


@house.styled
def roofline(
    time: xr.DataArray,
    cells: xr.Dataset,
    datasheets: xr.Dataset,
    *,
    measured: xr.Dataset | None = None,
    mass: float = 0.9,
) -> Figure:
    """Achieved rate against arithmetic intensity, one panel a SKU.

    Parameters
    ----------
    time : DataArray, dims (chain, draw, sku, workload)
        Joint draws of the kernel time [s].
    cells : Dataset, dims (workload,)
        ``M``, ``N``, ``K`` [1] of the kernels; those of one N and K make one line.
    datasheets : Dataset, dims (sku,)
        ``peak_flop_rate`` [FLOP/s] and ``peak_bandwidth`` [byte/s].
    measured : Dataset, dims (cell, run), optional
        ``op_time`` [s], ``M``, ``N``, ``K`` [1] and coordinate ``sku``, from
        `m2bayes.measurements.runs_by_cell`.
    mass : float
        Of the equal-tailed band [1].
    """
    skus = [str(name) for name in time["sku"].values]
    columns = min(2, len(skus))
    rows = -(-len(skus) // columns)
    figure, axes = house.canvas(
        rows, columns, width=4.1 * columns + 0.8, height=3.4 * rows + 1.0, sharex=True, sharey=True
    )
    lines: dict[str, Any] = {}
    for axis, sku in zip(axes.ravel(), skus, strict=False):
        sheet = datasheets.sel(sku=sku)
        if measured is not None:
            lines |= _points(axis, measured, sku)
        lines |= _roof(axis, sheet, cells)
        lines |= _bands(axis, time.sel(sku=sku), cells, sku, mass)
    for axis, sku in zip(axes.ravel(), skus, strict=False):  # they share their limits
        _label(axis, sku)
    for axis in axes[:, 1:].ravel():
        axis.set_ylabel("")
    for axis in axes.ravel()[len(skus) :]:
        axis.set_visible(False)
    house.legend_below(figure, list(lines.values()), columns=2)
    if measured is not None:
        figure.suptitle(
            "Points above a roofline: weights that stay in the L2 cache between the runs of a "
            "benchmark",
            fontsize=8.5,
        )
    return figure


def _intensity(cells: xr.Dataset) -> xr.DataArray:
    """Arithmetic intensity [FLOP/byte] with cold weights and activations, dims of the sizes."""
    M, N, K = (cells[v].astype(float) for v in ("M", "N", "K"))
    found = arithmetic_intensity(
        gemm_flops(M, N, K), weight_traffic(N, K) + activation_traffic(M, N, K)
    )
    return xr.DataArray(found)


def _rate(cells: xr.Dataset, time: Any) -> Any:
    """Achieved rate [TFLOP/s]."""
    return gemm_flops(*(cells[v].astype(float) for v in ("M", "N", "K"))) / time / TERA


def _points(axis: Any, measured: xr.Dataset, sku: str) -> dict[str, Any]:
    """Measured cells of one SKU: the median of their runs."""
    own = measured.isel(cell=np.flatnonzero(measured["sku"].values == sku))
    if own.sizes["cell"] == 0:
        return {}
    rate = _rate(own, own["op_time"].median("run"))
    dots = axis.plot(
        _intensity(own).values, rate.values, linestyle="", marker=".", markersize=4,
        color=house.GREY, alpha=0.7, label="measured, any shape, benchmark regime",
    )  # fmt: skip
    house.hover(dots[0], f"{sku}: {own.sizes['cell']} measured cells")
    return {"measured": dots[0]}


def _roof(axis: Any, sheet: xr.Dataset, cells: xr.Dataset) -> dict[str, Any]:
    """Roofline of the datasheet."""
    rate, bandwidth = float(sheet["peak_flop_rate"]), float(sheet["peak_bandwidth"])
    ridge = float(ridge_point(rate, bandwidth))
    x = np.array([0.5, ridge, max(8 * ridge, float(_intensity(cells).max()))])
    roof = axis.plot(x, np.minimum(x * bandwidth, rate) / TERA, color=house.INK, linewidth=1.2,
                     linestyle="--", label="datasheet roofline")  # fmt: skip
    said = f"datasheet: {rate / TERA:.0f} TFLOP/s, {bandwidth / TERA:.3g} TB/s"
    house.hover(roof[0], f"{said}, ridge point {ridge:.0f} FLOP/byte")
    return {"roof": roof[0]}


def _bands(
    axis: Any, time: xr.DataArray, cells: xr.Dataset, sku: str, mass: float
) -> dict[str, Any]:
    """Median and band of the predicted rate, one line for each N and K."""
    shapes = sorted(set(zip(cells["N"].values, cells["K"].values, strict=True)))
    found = {}
    for i, (n, k) in enumerate(shapes):
        at = np.flatnonzero((cells["N"].values == n) & (cells["K"].values == k))
        own = cells.isel(workload=at[np.argsort(cells["M"].values[at])])
        draws = time.sel(workload=own["workload"]).transpose("chain", "draw", "workload").values
        rate = _rate(own, 1.0).values / draws.reshape(-1, len(at))
        low, middle, high = np.quantile(rate, [(1 - mass) / 2, 0.5, (1 + mass) / 2], axis=0)
        x, colour = _intensity(own).values, house.PALETTE[i % len(house.PALETTE)]
        axis.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
        label = f"N = {n:,.0f}, K = {k:,.0f}: median, {house.percent(mass)} interval"
        line = axis.plot(x, middle, color=colour, linewidth=1.6, label=label)
        for j in range(len(at)):
            point = axis.plot(x[j], middle[j], color=colour, marker="o", markersize=2.5)
            said = f"{sku}, M = {own['M'].values[j]:,.0f}, N = {n:,.0f}, K = {k:,.0f}"
            house.hover(
                point[0], f"{said}: {middle[j]:.3g} ({low[j]:.3g} to {high[j]:.3g}) TFLOP/s"
            )
        found[label] = line[0]
    return found


def _label(axis: Any, sku: str) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    house.round_log(axis.xaxis, axis.get_xlim(), most=6)
    house.round_log(axis.yaxis, axis.get_ylim(), most=6)
    axis.set_xlabel("arithmetic intensity, weights cold [FLOP/byte]")
    axis.set_ylabel("achieved rate [TFLOP/s]")
    axis.set_title(sku)
