"""What the next measurements are worth, beside what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from m2bayes.errors import DataError
from m2bayes.plot import _canvas as house

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 15  # designs that one figure shows


@house.styled
def value_of_measurements(
    designs: Sequence[Mapping[str, Any]], *, units: str = "s", evpi: float | None = None
) -> Figure:
    """Expected value of sample information of every measurement that was thought of.

    Parameters
    ----------
    designs : list of dict
        ``name``, ``evsi`` and its Monte Carlo error ``mcse`` in the metric's unit, ``cost`` of
        the measurement in whatever unit its text says, or null.
    units : str
        Of the metric.
    evpi : float, optional
        Expected value of perfect information, which no measurement exceeds, in the same unit.

    Raises
    ------
    DataError
        If there is no design.
    """
    if not designs:
        raise DataError("no measurement to compare; there is nothing to draw")
    shown = sorted(designs, key=lambda design: -design["evsi"])[:MOST]
    scale, unit = house.readable([*(d["evsi"] for d in shown), evpi], units)
    figure, axes = house.canvas(width=8.0, height=1.5 + 0.32 * len(shown))
    axis = axes[0, 0]
    for at, design in enumerate(shown):
        value, error = design["evsi"] / scale, (design.get("mcse") or 0.0) / scale
        bar = axis.barh(at, value, height=0.6, color=house.PALETTE[5])
        line = axis.plot([value - error, value + error], [at, at], color=house.INK, linewidth=1.4)
        said = f"{design['name']}: EVSI {value:.3g} ± {error:.2g} {unit}"
        for artist in (*bar.patches, *line):
            house.hover(artist, said)
        if design.get("cost") is not None:
            axis.annotate(_cost(design["cost"]), (1.01, at), va="center", fontsize=8,
                          xycoords=("axes fraction", "data"), annotation_clip=False)  # fmt: skip
    if evpi is not None:
        line = axis.axvline(evpi / scale, color=house.ALARM, linestyle="--", linewidth=1.2)
        house.hover(line, f"EVPI {evpi / scale:.3g} {unit}")
        axis.annotate(
            "EVPI", (evpi / scale, 1), xycoords=("data", "axes fraction"), fontsize=8,
            xytext=(0, 2), textcoords="offset points", ha="center", va="bottom",
        )  # fmt: skip
    axis.set_yticks(range(len(shown)), [design["name"] for design in shown])
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.set_xlim(left=min(0.0, *(d["evsi"] / scale for d in shown)))
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(f"EVSI ± MCSE [{unit}]")
    more = f" (the best {MOST} of {len(designs)})" if len(designs) > MOST else ""
    title = f"What to measure next, and at the right what it costs{more}"
    figure.suptitle(title, fontsize=9.5, fontweight="bold")
    return figure


def _cost(cost: Any) -> str:
    return f"{cost:.3g}" if isinstance(cost, int | float) else str(cost)
