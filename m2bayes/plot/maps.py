"""Maps: p_best over SKU and workload, and which SKU to choose over batch and context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from m2bayes.plot import _canvas as house
from m2bayes.plot import _series as along

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Sequence[Mapping[str, Any]]


@house.styled
def p_best_map(results: Results, *, metric: str) -> Figure:
    """Probability of being best of every SKU in every workload.

    Parameters
    ----------
    results : list of dict
        From `m2bayes.answer.answers` with `ranked`, or ``results`` of ``m2bayes rank --json``.
    metric : str
        That the SKUs are ranked by.

    Returns
    -------
    Figure
        One cell a workload and SKU, with p_best in percent; the choice is framed.
    """
    from matplotlib import colormaps

    skus = along.skus_of(results)
    width = max(5.0, 2.8 + 0.95 * len(skus))
    figure, axes = house.canvas(width=width, height=1.9 + 0.27 * _lines(results))
    axis, scale = axes[0, 0], colormaps[house.SCALE]
    for row, entry in enumerate(results):
        for at, name in enumerate(skus):
            sku = next(one for one in entry["skus"] if one["sku"] == name)
            fits, p = sku["fits"], sku["p_best"]
            said = f"{100 * p:.0f}" if fits else "does not fit"
            frame = name == entry["choice"]
            _cell(axis, at, row, scale(0.9 * p) if fits else "#f2f2f2", said, frame=frame,
                  hover=f"{entry['workload']}, {name}: best with {100 * p:.1f} %" if fits
                  else f"{entry['workload']}, {name}: does not fit")  # fmt: skip
    _table_axes(axis, skus, [along.folded(entry["workload"]) for entry in results])
    axis.set_title(f"Probability of being best by\n{house.words(metric)} [%]; framed: the choice")
    return figure


def _lines(results: Results) -> int:
    return sum(1 + along.folded(entry["workload"]).count("\n") for entry in results)


@house.styled
def flip_map(results: Results, *, metric: str) -> Figure:
    """Which SKU to choose over two sizes, and the probability that another is best.

    Parameters
    ----------
    results : list of dict
        From `m2bayes.answer.answers` with `ranked`, of workloads that are all pairs of two sizes.
    metric : str
        That the SKUs are ranked by.

    Returns
    -------
    Figure
        One cell a pair of sizes: coloured by the choice, paler the likelier it is that another
        SKU is best, which the cell says in percent.
    """
    labels = [entry["workload"] for entry in results]
    across, up = along.varying(labels)
    columns, rows = (sorted({along.size(label, key) for label in labels}) for key in (across, up))
    chosen = [entry["choice"] for entry in results if entry["choice"]]
    looks = house.looks(along.skus_of(results))
    figure, axes = house.canvas(
        width=max(5.4, 1.6 + 0.85 * len(columns)), height=2.0 + 0.45 * len(rows)
    )
    axis = axes[0, 0]
    for entry in results:
        at = columns.index(along.size(entry["workload"], across))
        row = rows.index(along.size(entry["workload"], up))
        colour, said, more = _choice(entry, looks)
        _cell(axis, at, row, colour, said, hover=f"{entry['workload']}: {more}")
    _table_axes(axis, [f"{c:,}" for c in columns], [f"{r:,}" for r in rows])
    axis.set_ylim(-0.5, len(rows) - 0.5)
    axis.set_xlabel(along.SIZES.get(across, across))
    axis.set_ylabel(along.SIZES.get(up, up))
    axis.set_title(
        f"Choice by {house.words(metric)}, {along.common(labels)}\n"
        "number: probability that another is best"
    )
    handles = [_patch(name, looks[name]["color"]) for name in looks if name in chosen]
    house.legend_below(figure, handles, columns=3)
    return figure


def _choice(
    entry: Mapping[str, Any], looks: Mapping[str, Mapping[str, str]]
) -> tuple[Any, str, str]:
    """Colour, text and hover text of one cell."""
    if entry["choice"] is None:
        return "#f2f2f2", "none fits", "no SKU fits"
    sku = next(one for one in entry["skus"] if one["sku"] == entry["choice"])
    other = 1 - sku["p_best"]
    said = f"{entry['choice']}, {entry['verdict']}; another is best with probability {other:.3f}"
    return house.tinted(looks[entry["choice"]]["color"], 1 - other), f"{100 * other:.0f} %", said


def _patch(label: str, colour: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(label=label, color=house.tinted(colour, 1.0))


def _cell(
    axis: Any, column: int, row: int, colour: Any, text: str, *, hover: str, frame: bool = False
) -> None:
    """One cell of a map, with its text in black or white."""
    from matplotlib.patches import Rectangle

    edge = {"edgecolor": house.INK, "linewidth": 2.2, "zorder": 3} if frame else {}
    style: dict[str, Any] = {"edgecolor": "white", "linewidth": 1.0} | edge
    inset = 0.03 if frame else 0.0
    corner, side = (column - 0.5 + inset, row - 0.5 + inset), 1 - 2 * inset
    patch = Rectangle(corner, side, side, facecolor=colour, **style)
    house.hover(axis.add_patch(patch), hover)
    axis.text(
        column, row, text, ha="center", va="center", color=house.contrasting(colour),
        fontsize=8 if len(text) < 6 else 7, zorder=4,
    )  # fmt: skip


def _table_axes(axis: Any, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Label the cells of a map; long names are turned."""
    axis.set_xlim(-0.5, len(columns) - 0.5)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    turned = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(np.arange(len(columns)), columns,
                    **(turned if max(map(len, columns)) > 8 else {}))  # fmt: skip
    axis.set_yticks(np.arange(len(rows)), rows)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
