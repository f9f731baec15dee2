"""Capacity plans: what meeting the SLO costs, and how surely it is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from m2bayes.errors import DataError
from m2bayes.plot import _canvas as house

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6  # plans that one figure shows
LEAST = 0.5  # probability from which the axis goes, at least
COSTS = {"cost_per_hour": "cost per hour", "gpus": "GPUs"}


@house.styled
def cost_against_slo(
    results: Sequence[Mapping[str, Any]],
    *,
    choice: str | None = None,
    confidence: float | None = None,
    currency: str = "USD/h",
) -> Figure:
    """Cost of every plan against the probability that it meets the SLO.

    Parameters
    ----------
    results : list of dict
        ``results`` of ``m2bayes plan --json``: ``sku``, ``tp``, ``gpus``, ``p_slo`` [1],
        ``cost_per_hour``, or null. Where they are given, bands are drawn of ``p_slo_mcse`` [1], of
        the intervals ``gpus_interval`` and ``cost_interval`` (``low``, ``high``), and of a
        ``curve``: ``gpus``, ``p_slo`` and ``p_slo_mcse`` of smaller and larger fleets.
    choice : str, optional
        SKU that the plan chooses; of several plans of it, the first.
    confidence : float, optional
        Probability [1] that was asked for.
    currency : str
        Unit of the cost.

    Returns
    -------
    Figure
        One point a plan, of the best of them; without prices the number of GPUs takes the place
        of the cost.

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
    key, unit = ("cost_per_hour", currency) if priced else ("gpus", "1")
    figure, axes = house.canvas(height=4.2)
    axis = axes[0, 0]
    looks = house.looks(_name(plan) for plan in shown)
    best = next((plan for plan in shown if plan["sku"] == choice), None)  # they are sorted
    for plan in shown:
        _plan(axis, plan, key, unit, looks[_name(plan)], chosen=plan is best)
    axis.set_xlabel("probability that the SLO is met [1]")
    axis.set_ylabel(f"{COSTS[key]} [{unit}]")
    axis.set_xlim(min(LEAST, *(float(plan["p_slo"]) for plan in shown)) - 0.03, 1.02)
    axis.set_yscale("log")
    house.round_log(axis.yaxis, axis.get_ylim())
    if confidence is not None:
        axis.axvline(confidence, color=house.GREY, linewidth=1, linestyle=":")
        axis.annotate(
            "asked for", (confidence, 1), xycoords=("data", "axes fraction"), xytext=(-3, -2),
            textcoords="offset points", ha="right", va="top", fontsize=8, color="#555555",
        )  # fmt: skip
    more = f" (the best {MOST} of {len(served)} plans)" if len(served) > MOST else ""
    axis.set_title(f"Cost against SLO; filled: the choice{more}")
    handles = [_handle(_name(plan), looks[_name(plan)]) for plan in shown]
    house.legend_below(figure, handles, columns=2)
    return figure


def _plan(
    axis: Any,
    plan: Mapping[str, Any],
    key: str,
    unit: str,
    look: Mapping[str, str],
    *,
    chosen: bool,
) -> None:
    x, y = float(plan["p_slo"]), float(plan[key])
    _curve(axis, plan, y / plan["gpus"], look)
    band = plan.get("cost_interval" if key == "cost_per_hour" else "gpus_interval")
    if band and band.get("low") is not None:
        axis.plot([x, x], [band["low"], band["high"]], color=look["color"], linewidth=5, alpha=0.3)
    error = float(plan.get("p_slo_mcse") or 0.0)
    if error:
        axis.plot([x - error, x + error], [y, y], color=look["color"], linewidth=1.2)
    point = axis.plot(
        x, y, color=look["color"], marker=look["marker"], markersize=8, zorder=5,
        markerfacecolor=look["color"] if chosen else "white",
    )  # fmt: skip
    house.hover(point[0], f"{_name(plan)}: {y:.4g} {unit}, P(SLO) {x:.3f}")


def _curve(axis: Any, plan: Mapping[str, Any], each: float, look: Mapping[str, str]) -> None:
    """Other sizes of the fleet: probability against cost, with its Monte Carlo error."""
    sizes = sorted(plan.get("curve") or [], key=lambda size: size["gpus"])
    if not sizes:
        return
    cost = [each * size["gpus"] for size in sizes]
    p = [size["p_slo"] for size in sizes]
    error = [size.get("p_slo_mcse") or 0.0 for size in sizes]
    low = [max(a - b, 0.0) for a, b in zip(p, error, strict=True)]
    high = [min(a + b, 1.0) for a, b in zip(p, error, strict=True)]
    axis.fill_betweenx(cost, low, high, color=look["color"], alpha=0.25, linewidth=0)
    axis.plot(p, cost, color=look["color"], linestyle=look["linestyle"], linewidth=1.2)
    for size, y in zip(sizes, cost, strict=True):
        dot = axis.plot(size["p_slo"], y, color=look["color"], marker=".", markersize=4)
        house.hover(dot[0], f"{size['gpus']} × {plan['sku']}: P(SLO) {size['p_slo']:.3f}")


def _name(plan: Mapping[str, Any]) -> str:
    return f"{plan['gpus']} × {plan['sku']}, TP {plan['tp']}"


def _handle(name: str, look: Mapping[str, str]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=name, linestyle="", color=look["color"], marker=look["marker"])
