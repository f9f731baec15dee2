"""Posterior predictive check: measurements against what the model says they should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.plot import _canvas as house
from m2bayes.plot.calibration import covered, transformed
from m2bayes.score import pit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MICRO = 1e-6


@house.styled
def posterior_predictive(
    draws: xr.DataArray, observed: xr.DataArray, *, mass: float = 0.9, title: str = ""
) -> Figure:
    """Every measurement over its predicted median, with its predictive interval.

    Parameters
    ----------
    draws : DataArray, dims (chain, draw, cell)
        Predictive draws of each measurement, noise included [s].
    observed : DataArray, dims (cell,)
        Measurements [s].
    mass : float
        Of the equal-tailed intervals [1].
    title : str
        Of the figure.
    """
    figure, axes = house.canvas(height=3.8)
    compared(axes[0, 0], draws, observed, mass)
    axes[0, 0].set_title(title or "Posterior predictive check")
    return figure


def compared(axis: Any, draws: xr.DataArray, observed: xr.DataArray, mass: float = 0.9) -> None:
    """Draw measured over predicted: dims (chain, draw, cell) of draws, (cell,) of observed [s]."""
    flat = draws.transpose("chain", "draw", "cell").values.reshape(-1, draws.sizes["cell"])
    low, middle, high = np.quantile(flat, [(1 - mass) / 2, 0.5, (1 + mass) / 2], axis=0)
    ratio, measured = observed.values / middle, observed.values
    outside = (measured < low) | (measured > high)
    x = middle / MICRO
    axis.vlines(x, low / middle, high / middle, color=house.PALETTE[5], alpha=0.25, linewidth=1.5)
    for mask, colour, marker, name in (
        (~outside, house.PALETTE[0], "o", "inside"),
        (outside, house.ALARM, "D", "outside"),
    ):
        share = f"{100 * mask.mean():.1f} % {name} their {house.percent(mass)} interval"
        dots = axis.plot(x[mask], ratio[mask], linestyle="", marker=marker, markersize=2.8,
                         color=colour, label=share)  # fmt: skip
        house.hover(dots[0], share)
    axis.axhline(1, color=house.INK, linewidth=1)
    axis.set_xscale("log")
    axis.set_yscale("log")
    house.round_log(axis.xaxis, x)
    _ratios(axis)
    axis.set_xlabel("predicted median [µs]")
    axis.set_ylabel("measured / predicted median")
    axis.legend(loc="upper right", markerscale=2)


def _ratios(axis: Any) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_locator(NullLocator())


@house.styled
def check(
    predictive: Mapping[str, tuple[xr.DataArray, xr.DataArray]],
    scores: Mapping[str, Mapping[str, Any]],
    *,
    title: str = "",
) -> Figure:
    """Posterior predictive check, PIT and coverage of a stored posterior in one figure.

    Parameters
    ----------
    predictive : mapping of pairs of DataArray, dims (chain, draw, cell) and (cell,)
        By SKU or unit, predictive draws and measurements [s], as `m2bayes.checking.report` hands
        them over.
    scores : mapping
        ``calibration`` of its result.
    title : str
        Of the figure.
    """
    draws = xr.concat([pair[0] for pair in predictive.values()], dim="cell")
    observed = xr.concat([pair[1] for pair in predictive.values()], dim="cell")
    transforms = xr.concat([pit(*pair) for pair in predictive.values()], dim="cell")
    figure, axes = house.canvas(2, 2, width=9.0, height=7.4, height_ratios=[1, 1.1])
    for axis in axes[0]:
        axis.remove()
    wide = figure.add_subplot(axes[0, 0].get_gridspec()[0, :])
    compared(wide, draws, observed)
    wide.set_title(f"{observed.size:,} measured cells of {len(predictive)} SKUs or kernels")
    transformed(axes[1, 0], transforms)
    covered(axes[1, 1], scores)
    axes[1, 1].set_title("Coverage of the intervals")
    figure.suptitle(title, fontsize=10)
    return figure
