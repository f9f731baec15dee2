"""Regret: what choosing a SKU costs in expectation, against knowing the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from m2bayes.plot import _canvas as house
from m2bayes.plot import _series as along

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEGLIGIBLE = 1.0  # [%] under which either SKU will do
LINEAR = 0.1  # [%] under which the axis is linear
MOST = 40  # workloads that one figure shows


@house.styled
def regret(results: Sequence[Mapping[str, Any]], *, metric: str) -> Figure:
    """Expected regret of every SKU in every workload.

    Parameters
    ----------
    results : list of dict
        From `m2bayes.answer.answers` with `ranked`, or ``results`` of ``m2bayes rank --json``.
    metric : str
        That the SKUs are ranked by.

    Returns
    -------
    Figure
        One row a workload, one point a SKU: relative expected regret [%], linear under 0.1 % and
        logarithmic above; the line is the 1 % under which a verdict says "either will do".
    """
    shown = results[:MOST]
    skus = along.skus_of(results)
    figure, axes = house.canvas(height=1.9 + 0.3 * len(shown))
    axis = axes[0, 0]
    looks = house.looks(skus)
    for row, entry in enumerate(shown):
        for sku in entry["skus"]:
            lost = sku["relative_regret"]
            if lost is None:
                continue
            look = looks[sku["sku"]]
            filled = sku["sku"] == entry["choice"]
            point = axis.plot(
                100 * lost, row, color=look["color"], marker=look["marker"], markersize=7,
                markerfacecolor=look["color"] if filled else "white", clip_on=False, zorder=3,
            )  # fmt: skip
            said = f"{entry['workload']}, {sku['sku']}: expected regret {100 * lost:.3g} %"
            house.hover(point[0], said)
    axis.axvline(NEGLIGIBLE, color=house.GREY, linewidth=1, linestyle="--")
    axis.annotate("either will do", (NEGLIGIBLE, 1), xycoords=("data", "axes fraction"),
                  xytext=(-3, 1), textcoords="offset points", ha="right", va="bottom",
                  fontsize=8, color="#555555")  # fmt: skip
    axis.set_xscale("symlog", linthresh=LINEAR)
    axis.set_xlim(left=0)
    _percents(axis)
    axis.set_yticks(range(len(shown)), [along.folded(entry["workload"]) for entry in shown])
    axis.set_ylim(len(shown) - 0.5, -0.5)
    axis.set_xlabel(f"expected loss in {house.words(metric)} against the best [%]")
    more = f" (the first {MOST} of {len(results)} workloads)" if len(results) > MOST else ""
    axis.set_title(f"What each choice costs; filled: the choice{more}", pad=16)
    handles = [_point(name, look) for name, look in looks.items()]
    house.legend_below(figure, handles, columns=3)
    return figure


def _point(name: str, look: Mapping[str, str]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=name, linestyle="", color=look["color"], marker=look["marker"])


def _percents(axis: Any) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.xaxis.set_major_locator(FixedLocator([0, 0.1, 1, 10, 100, 1000, 10_000]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.xaxis.set_minor_locator(NullLocator())
