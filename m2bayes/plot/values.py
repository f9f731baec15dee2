"""What the next measurements are worth, beside what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from m2bayes.errors import DataError
from m2bayes.plot import _canvas as house
from m2bayes.plot import _series as along

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST, LEAST = 12, 3  # designs that one figure shows; of those worth nothing beyond their error
BEYOND = 2.0  # errors that a value exceeds, to be one
NEAR = 3.0  # times the largest value up to which the value of knowing everything is on the axis
WIDE = 88  # characters of a line


@house.styled
def value_of_measurements(
    designs: Sequence[Mapping[str, Any]], *, units: str = "s", evpi: float | None = None
) -> Figure:
    """Expected value of sample information of every measurement that is worth any.

    Parameters
    ----------
    designs : list of dict
        ``name``, ``evsi`` and its Monte Carlo error ``mcse`` in the metric's unit, ``cost`` of
        the measurement in whatever unit its text says, or null.
    units : str
        Of the metric.
    evpi : float, optional
        Expected value of perfect information, which no measurement exceeds, in the same unit.

    Returns
    -------
    Figure
        One bar a measurement, its name above it and its cost at the right. What is worth no more
        than twice its error is counted, unless nothing is worth more.

    Raises
    ------
    DataError
        If there is no design.
    """
    if not designs:
        raise DataError("no measurement to compare; there is nothing to draw")
    order = sorted(designs, key=lambda design: -design["evsi"])
    worth = [d for d in order if d["evsi"] > BEYOND * (d.get("mcse") or 0.0)]
    shown = worth[:MOST] or order[:LEAST]
    scale, unit = house.readable([*(d["evsi"] for d in shown), evpi], units)
    names = [along.folded(design["name"], WIDE) for design in shown]
    tall = [0.52 + 0.16 * name.count("\n") for name in names]
    figure, axes = house.canvas(width=8.0, height=1.6 + sum(tall))
    axis = axes[0, 0]
    ends = [(d["evsi"] + (d.get("mcse") or 0.0)) / scale for d in shown]
    most = max([*ends, 0.0]) or (evpi or 0.0) / scale or 1.0
    top = 0.0
    for design, name, height in zip(shown, names, tall, strict=True):
        _bar(axis, design, name, top + height - 0.11, (scale, unit))
        top += height
    axis.set_ylim(top + 0.12, -0.05)
    axis.set_yticks([])
    axis.set_xlim(min(0.0, *(d["evsi"] / scale for d in shown)), 1.06 * most)
    _everything(axis, evpi, most, (scale, unit))
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(f"expected gain from choosing after the measurement [{unit}]")
    title = (
        "What to measure next"
        if worth
        else "No measurement is worth more than its error: choose now"
    )
    axis.set_title(f"{title}; at the right: what it takes", pad=18)
    left = len(designs) - len(shown)
    note = f"line: ± Monte Carlo error{_rest(left, bool(worth), len(worth) - len(shown))}"
    figure.supxlabel(note, fontsize=8.5)
    return figure


def _bar(
    axis: Any, design: Mapping[str, Any], name: str, at: float, units: tuple[float, str]
) -> None:
    """Value of one measurement with its error; its name stands above it."""
    scale, unit = units
    value, error = design["evsi"] / scale, (design.get("mcse") or 0.0) / scale
    bar = axis.barh(at, value, height=0.16, color=house.tinted(house.PALETTE[0], 0.8))
    line = axis.plot([value - error, value + error], [at, at], color=house.INK, linewidth=1.6)
    said = f"{design['name']}: worth {value:.3g} ± {error:.2g} {unit}"
    for artist in (*bar.patches, *line):
        house.hover(artist, said)
    axis.annotate(name, (0, at - 0.1), xycoords=("axes fraction", "data"), xytext=(3, 1),
                  textcoords="offset points", va="bottom", fontsize=8.5)  # fmt: skip
    if design.get("cost") is not None:
        axis.annotate(_cost(design["cost"]), (1.01, at), va="center", fontsize=8.5,
                      xycoords=("axes fraction", "data"), annotation_clip=False)  # fmt: skip


def _everything(axis: Any, evpi: float | None, most: float, units: tuple[float, str]) -> None:
    """Draw what knowing everything is worth, or say it where it lies far beyond."""
    if evpi is None:
        return
    scale, unit = units
    value = evpi / scale
    said = f"knowing everything: {float(f'{value:.3g}'):,.10g} {unit}"
    if value > NEAR * most:
        axis.annotate(f"{said} →", (1, 1), xycoords="axes fraction", xytext=(0, 3), ha="right",
                      va="bottom", textcoords="offset points", fontsize=8.5)  # fmt: skip
        return
    axis.set_xlim(right=1.03 * max(value, most))
    house.hover(axis.axvline(value, color=house.ALARM, linestyle="--", linewidth=1.4), said)
    axis.annotate(said, (value, 1), xycoords=("data", "axes fraction"), fontsize=8.5,
                  xytext=(0, 3), textcoords="offset points", ha="right", va="bottom")  # fmt: skip


def _rest(left: int, worthy: bool, less: int) -> str:
    """What is said of the measurements that are not drawn."""
    if not worthy:
        more = f"; {left} more are worth no more" if left else ""
        return f"; none is worth more than its error{more}"
    none = left - max(less, 0)
    told = [f"{less} more are worth less"] * (less > 0)
    told += [f"{none} more are worth nothing beyond their error"] * (none > 0)
    return "".join(f"; {text}" for text in told)


def _cost(cost: Any) -> str:
    return f"{cost:.3g}" if isinstance(cost, int | float) else str(cost)
