"""Capacity plans: what meeting the SLO costs, and how surely it is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from m2bayes.errors import DataError
from m2bayes.plot import _canvas as house

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6  # plans that one figure shows
APART = 0.08  # of the axis that two fleets lie apart, to be written under both
COSTS = {"cost_per_hour": "cost per hour", "gpus": "GPUs"}
KEPT = 0.5  # probability from which a fleet is filled where none was asked for


@house.styled
def cost_against_slo(
    results: Sequence[Mapping[str, Any]],
    *,
    choice: str | None = None,
    confidence: float | None = None,
    currency: str = "USD/h",
) -> Figure:
    """Cost of every plan, and of fleets around its size, with the probability of the SLO.

    Parameters
    ----------
    results : list of dict
        ``results`` of ``m2bayes plan --json``: ``sku``, ``tp``, ``gpus``, ``p_slo`` [1],
        ``cost_per_hour``, or null. Where they are given, bands are drawn of the intervals
        ``gpus_interval`` and ``cost_interval`` (``low``, ``high``), and points of a ``curve``:
        ``gpus`` and ``p_slo`` of smaller and larger fleets.
    choice : str, optional
        SKU that the plan chooses; of several plans of it, the first.
    confidence : float, optional
        Probability [1] that was asked for.
    currency : str
        Unit of the cost.

    Returns
    -------
    Figure
        One row a plan, the best first, one point a fleet: above it its GPUs, below it the
        probability that the targets are met; filled where that is enough. Without prices the
        number of GPUs takes the place of the cost.

    Raises
    ------
    DataError
        If no plan can serve the load.
    """
    served = [plan for plan in results if plan.get("gpus") and plan.get("p_slo") is not None]
    shown = served[:MOST]
    if not shown:
        raise DataError("no plan in the results can serve the load; there is nothing to draw")
    priced = all(plan.get("cost_per_hour") is not None for plan in shown)
    key = "cost_per_hour" if priced else "gpus"
    figure, axes = house.canvas(width=8.0, height=1.7 + 0.72 * len(shown))
    axis, looks = axes[0, 0], house.looks(plan["sku"] for plan in shown)
    rows = [_fleets(plan, key) for plan in shown]
    widest = max(x for row in rows for _, x, _ in row)
    best = next((plan for plan in shown if plan["sku"] == choice), None)  # they are sorted
    enough = KEPT if confidence is None else confidence
    for at, (plan, row) in enumerate(zip(shown, rows, strict=True)):
        _band(axis, at, plan, key, looks[plan["sku"]])
        near = [plan["gpus"], *(gpus for gpus, _, _ in row)]
        counted, judged = (_told(row, near, apart * widest) for apart in (APART / 2, APART))
        for fleet in row:
            _point(axis, at, plan, fleet, looks[plan["sku"]], enough=enough,
                   planned=fleet[0] == plan["gpus"], framed=plan is best,
                   above=fleet in counted, below=fleet in judged)  # fmt: skip
    names = [f"{plan['sku']}\nTP {plan['tp']}: {_each(plan['tp'])}" for plan in shown]
    axis.set_yticks(range(len(shown)), names)
    axis.set_ylim(len(shown) - 0.45, -0.55)
    axis.set_xlim(0, 1.07 * widest)
    axis.grid(visible=False, axis="y")
    _plain(axis, whole=not priced)
    axis.set_xlabel(f"{COSTS[key]} [{currency}]" if priced else "GPUs of the fleet")
    _titles(figure, axis, len(served), confidence, chosen=best is not None)
    return figure


def _each(tp: int) -> str:
    return "each GPU serves alone" if tp == 1 else f"{tp} GPUs serve together"


def _fleets(plan: Mapping[str, Any], key: str) -> list[tuple[int, float, float]]:
    """GPUs, cost or GPUs, and probability of each size of a plan, the smallest first."""
    each = float(plan[key]) / plan["gpus"]
    sizes = {size["gpus"]: float(size["p_slo"]) for size in plan.get("curve") or []}
    sizes[plan["gpus"]] = float(plan["p_slo"])
    return [(gpus, each * gpus, sizes[gpus]) for gpus in sorted(sizes)]


def _told(
    row: Sequence[tuple[int, float, float]], order: Sequence[int], apart: float
) -> list[tuple[int, float, float]]:
    """Fleets that are written at, the first in the order first; none too near to another."""
    by_size, told = {fleet[0]: fleet for fleet in row}, list[tuple[int, float, float]]()
    for gpus in dict.fromkeys(order):
        fleet = by_size[gpus]
        if all(abs(fleet[1] - other[1]) >= apart for other in told):
            told.append(fleet)
    return told


def _band(axis: Any, at: int, plan: Mapping[str, Any], key: str, look: Mapping[str, str]) -> None:
    """Interval of the cost, or of the GPUs that are needed."""
    band = plan.get("cost_interval" if key == "cost_per_hour" else "gpus_interval") or {}
    if band.get("low") is not None and band.get("high") is not None:
        axis.plot([band["low"], band["high"]], [at, at], color=look["color"], linewidth=7,
                  alpha=0.25, solid_capstyle="butt")  # fmt: skip


def _point(
    axis: Any,
    at: int,
    plan: Mapping[str, Any],
    fleet: tuple[int, float, float],
    look: Mapping[str, str],
    *,
    enough: float,
    planned: bool,
    framed: bool,
    above: bool,
    below: bool,
) -> None:
    """One fleet with its GPUs above and the probability below it."""
    gpus, x, p = fleet
    edge = house.INK if planned and framed else look["color"]
    point = axis.plot(
        x, at, marker="o", markersize=10 if planned else 6, color=look["color"], zorder=5,
        markeredgecolor=edge, markeredgewidth=2.2 if planned and framed else 1.2,
        markerfacecolor=look["color"] if p >= enough else "white", clip_on=False,
    )  # fmt: skip
    house.hover(point[0], f"{gpus} × {plan['sku']}, TP {plan['tp']}: {x:,.4g}, P(SLO) {p:.3f}")
    weight = "bold" if planned else "normal"
    said = [(f"{gpus:,}", 7, "bottom")] * above + [(house.chance(p), -7, "top")] * below
    for text, lift, side in said:
        axis.annotate(text, (x, at), xytext=(0, lift), textcoords="offset points", ha="center",
                      va=side, fontsize=8, weight=weight)  # fmt: skip


def _plain(axis: Any, *, whole: bool) -> None:
    """Plain numbers with thousands separators, whole ones for GPUs."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(8, integer=whole))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _titles(
    figure: Figure, axis: Any, count: int, confidence: float | None, *, chosen: bool
) -> None:
    """Say what the points and numbers are."""
    more = f" (the best {MOST} of {count} plans)" if count > MOST else ""
    axis.set_title(f"What it costs to keep to the targets{more}")
    asked = "filled: that is enough" if confidence is None else (
        f"filled: {house.percent(confidence)} or more, as asked"
    )  # fmt: skip
    framed = "; framed: the choice" if chosen else ""
    figure.supxlabel(
        "each point is a fleet; above it its GPUs, below it the probability that the targets are "
        f"met;\n{asked}; large: the plan of each row{framed}",
        fontsize=8.5,
    )
