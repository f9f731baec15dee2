"""Factors of a posterior, prior beside posterior, by SKU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from m2bayes.plot import _canvas as house

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 4  # panels in a row
WIDE = 5.0  # ratio of largest to smallest from which an axis is logarithmic
SHARED = "all"
THOUSAND = 1000


@house.styled
def factor_forest(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Figure:
    """Prior and posterior interval of every factor of every SKU.

    Parameters
    ----------
    rows : list of dict
        From `m2bayes.contraction.factor_rows`, or ``factors`` of ``m2bayes show POSTERIOR
        --json``; prior and posterior are medians with equal-tailed 90 % intervals, each in the
        factor's own unit.
    title : str
        Of the figure.

    Returns
    -------
    Figure
        One panel a factor. The band is the prior, the same for all SKUs unless the factor says
        otherwise; hollow points are SKUs whose data moved the factor little, "prior only".
    """
    factors = list(dict.fromkeys(row["factor"] for row in rows))
    units = list(dict.fromkeys(row["sku"] for row in rows if row["sku"] != SHARED))
    by_unit = [f for f in factors if any(r["factor"] == f and r["sku"] != SHARED for r in rows)]
    shared = [row for row in rows if row["sku"] == SHARED]
    across = min(ACROSS, max(len(by_unit), 1))
    down = -(-len(by_unit) // across)
    tall = 0.5 + 0.17 * len(units)
    figure, axes = house.canvas(
        down + bool(shared), across, width=1.9 + 2.1 * across,
        height=1.3 + down * (tall + 0.6) + (1.4 if shared else 0),
        height_ratios=[tall] * down + [1.0] * bool(shared),
    )  # fmt: skip
    places = axes[:down].ravel()
    for at, (axis, factor) in enumerate(zip(places, by_unit, strict=False)):
        own = {row["sku"]: row for row in rows if row["factor"] == factor}
        _panel(axis, factor, [(unit, own.get(unit)) for unit in units], named=at % across == 0)
    for axis in places[len(by_unit) :]:
        axis.set_visible(False)
    if shared:
        _shared(axes[down], shared)
    figure.suptitle(title, fontsize=10)
    house.legend_below(figure, _legend(), columns=2)
    return figure


def _shared(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Factors that all SKUs share: one small panel each."""
    for axis, row in zip(axes, rows, strict=False):
        _panel(axis, row["factor"], [("all SKUs", row)], named=axis is axes[0])
    for axis in axes[len(rows) :]:
        axis.set_visible(False)


def _panel(
    axis: Any, factor: str, rows: Sequence[tuple[str, Mapping[str, Any] | None]], *, named: bool
) -> None:
    """Intervals of one factor, a line a SKU."""
    held = [row for _, row in rows if row is not None]
    scale, units = house.readable([row["posterior"][0] for row in held], held[0]["units"])
    colour, values = house.PALETTE[0], list[float]()
    for at, (unit, row) in enumerate(rows):
        if row is None:
            continue
        centre, low, high = (value / scale for value in row["prior"])
        axis.plot([low, high], [at, at], color="#c9c9c9", linewidth=6, solid_capstyle="butt")
        middle, start, end = (value / scale for value in row["posterior"])
        values += [low, high, start, end]
        moved = row["verdict"] != "prior only"
        edge = house.ALARM if row["surprising"] else colour
        line = axis.plot([start, end], [at, at], color=edge, linewidth=1.8)
        point = axis.plot(
            middle, at, marker="o", markersize=4.5, color=edge,
            markerfacecolor=edge if moved else "white",
        )  # fmt: skip
        said = f"{unit}: posterior {middle:.3g} ({start:.3g} to {end:.3g}), prior {centre:.3g} "
        said += f"({low:.3g} to {high:.3g}), contraction {row['contraction']:.2f}"
        for artist in (*line, *point):
            house.hover(artist, said)
    axis.set_yticks(range(len(rows)), [unit for unit, _ in rows] if named else [])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
    axis.tick_params(labelsize=8)
    axis.set_title(house.label(house.words(factor), units), fontsize=8.5)
    if values and min(values) > 0 and max(values) > WIDE * min(values):
        axis.set_xscale("log")
        house.round_log(axis.xaxis, values, most=4)
    else:
        axis.locator_params(axis="x", nbins=4)
        if max(map(abs, values), default=0.0) >= THOUSAND:
            axis.xaxis.set_major_formatter("{x:,.0f}")


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D

    colour = house.PALETTE[0]
    point: dict[str, Any] = {"marker": "o", "markersize": 4.5}
    little = "prior only: data moved it little"
    return [
        Line2D([], [], color="#c9c9c9", linewidth=6, label="prior, 90 % interval"),
        Line2D([], [], color=colour, label="posterior, median and 90 % interval", **point),
        Line2D([], [], color=house.ALARM, label="posterior median beyond its prior", **point),
        Line2D([], [], color=colour, markerfacecolor="white", label=little, **point),
    ]
