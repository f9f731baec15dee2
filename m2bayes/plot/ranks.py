"""Rankings: the metric and p_best along one size, or SKU by SKU for a few workloads."""

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
def ranking(
    results: Results, *, metric: str, units: str, crossovers: Results = (), threshold: float = 0.9
) -> Figure:
    """Metric and probability of being best along batch or prompt length.

    Parameters
    ----------
    results : list of dict
        From `m2bayes.answer.answers` with `ranked`, or ``results`` of ``m2bayes rank --json``, of
        workloads that differ in one size.
    metric, units : str
        Of the numbers.
    crossovers : list of dict
        From `m2bayes.crossover.crossovers`.
    threshold : float
        Probability [1] from which a verdict is clear.

    Returns
    -------
    Figure
        Above, median and equal-tailed interval of each SKU; below, p_best with its Monte Carlo
        error; where the choice changes, the size at which it does.
    """
    labels = [entry["workload"] for entry in results]
    key = along.varying(labels)[0]
    ordered = sorted(results, key=lambda entry: along.size(entry["workload"], key))
    sizes = [along.size(entry["workload"], key) for entry in ordered]
    figure, axes = house.canvas(2, height=6.2, sharex=True, height_ratios=[3, 2])
    above, below = axes[:, 0]
    looks = house.looks(along.skus_of(results))
    _metric_lines(above, ordered, sizes, looks, metric=metric, units=units)
    for name, look in looks.items():
        _p_best_line(below, ordered, sizes, name, look)
    handles = [_handle(name, look) for name, look in looks.items()]
    handles.append(_band("interval (eti " + house.percent(along.mass_of(results)) + ")"))
    if crossovers:
        for axis in (above, below):
            _crossing(axis, crossovers)
        handles.append(_band("crossover: median, eti 90 %", ALL_CROSSINGS))
    below.axhline(threshold, color=house.GREY, linewidth=0.8, linestyle=":")
    below.annotate(
        f"clear from {threshold:g}", (1, threshold), xycoords=("axes fraction", "data"),
        ha="right", va="bottom", fontsize=8, color="#555555",
    )  # fmt: skip
    below.set_ylim(-0.03, 1.06)
    below.set_ylabel("p_best [1]\n(± MCSE)")
    below.set_xlabel(along.SIZES.get(key, key))
    above.set_title(f"{house.words(metric)}: {along.common(labels)}")
    house.legend_below(figure, handles, columns=3)
    return figure


ALL_CROSSINGS = {"color": house.GREY, "alpha": 0.2}


def _handle(name: str, look: Mapping[str, str]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=name, markersize=5, **look)  # type: ignore[arg-type]


def _band(label: str, look: Mapping[str, Any] | None = None) -> Any:
    from matplotlib.patches import Patch

    return Patch(label=label, **(look or {"color": house.PALETTE[0], "alpha": 0.2}))


def _metric_lines(
    axis: Any,
    ordered: Results,
    sizes: Sequence[float],
    looks: Mapping[str, Mapping[str, str]],
    *,
    metric: str,
    units: str,
) -> None:
    """Median and interval of every SKU along one size, on logarithmic axes."""
    middles = [v for name in looks for v in along.column(ordered, name, "median")]
    scale, unit = house.readable(middles, units)
    ends = list[float]()
    for name, look in looks.items():
        middle = np.array(along.column(ordered, name, "median")) / scale
        low, high = (np.array(edge) / scale for edge in along.edges(ordered, name))
        ends += [float(v) for v in (*low, *high) if np.isfinite(v)]
        axis.fill_between(sizes, low, high, color=look["color"], alpha=0.2, linewidth=0)
        axis.plot(sizes, middle, label=name, markersize=0, color=look["color"],
                  linestyle=look["linestyle"])  # fmt: skip
        for at in [int(i) for i in np.flatnonzero(np.isfinite(middle))]:
            point = axis.plot(
                sizes[at], middle[at], color=look["color"], marker=look["marker"], markersize=5
            )
            text = f"{name}, {sizes[at]:,}: {middle[at]:.4g} ({low[at]:.4g} to {high[at]:.4g})"
            house.hover(point[0], f"{text} {unit}")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log" if ends else "linear")
    house.whole_numbers(axis.xaxis, sizes)
    house.round_log(axis.yaxis, ends)
    axis.set_ylabel(f"{house.words(metric)} [{unit}]")


def _p_best_line(
    axis: Any, ordered: Results, sizes: Sequence[float], name: str, look: Mapping[str, str]
) -> None:
    p, error = (np.array(along.column(ordered, name, k)) for k in ("p_best", "p_best_mcse"))
    axis.fill_between(
        sizes, np.clip(p - error, 0, 1), np.clip(p + error, 0, 1), color=look["color"], alpha=0.25,
        linewidth=0,
    )  # fmt: skip
    axis.plot(sizes, p, color=look["color"], linestyle=look["linestyle"])
    for at in range(len(sizes)):
        point = axis.plot(
            sizes[at], p[at], marker=look["marker"], color=look["color"], markersize=5
        )
        text = f"{name}, {sizes[at]:,}: p_best {p[at]:.3f} ± {error[at]:.3f}"
        house.hover(point[0], text)


def _crossing(axis: Any, crossovers: Results) -> None:
    for found in crossovers:
        interval = found["interval"]
        span = axis.axvspan(interval["low"], interval["high"], **ALL_CROSSINGS, linewidth=0)
        axis.axvline(found["median"], color=house.INK, linewidth=1, linestyle="--")
        house.hover(
            span,
            f"{found['before']} before, {found['after']} after: {found['size']} "
            f"{found['median']:.0f} ({interval['low']:.0f} to {interval['high']:.0f})",
        )


@house.styled
def times(results: Results, *, metric: str, units: str) -> Figure:
    """Metric of each SKU with its interval: lines along one size, or a row a SKU and workload.

    Parameters
    ----------
    results : list of dict
        From `m2bayes.answer.answers`, or ``results`` of ``m2bayes predict --json`` or ``rank``.
    metric, units : str
        Of the numbers.
    """
    labels = [entry["workload"] for entry in results]
    if not along.is_series(labels):
        return _rows(results, metric=metric, units=units)
    key = along.varying(labels)[0]
    ordered = sorted(results, key=lambda entry: along.size(entry["workload"], key))
    sizes = [along.size(entry["workload"], key) for entry in ordered]
    figure, axes = house.canvas(height=4.4)
    looks = house.looks(along.skus_of(results))
    _metric_lines(axes[0, 0], ordered, sizes, looks, metric=metric, units=units)
    axes[0, 0].set_xlabel(along.SIZES.get(key, key))
    axes[0, 0].set_title(f"{house.words(metric)}: {along.common(labels)}")
    handles = [_handle(name, look) for name, look in looks.items()]
    handles.append(_band("interval (eti " + house.percent(along.mass_of(results)) + ")"))
    house.legend_below(figure, handles, columns=3)
    return figure


MOST = 12  # workloads that one figure shows row by row


def _rows(results: Results, *, metric: str, units: str) -> Figure:
    """One panel a workload, one row a SKU, best first; p_best beside it where it is known."""
    shown = results[:MOST]
    heights = [len(entry["skus"]) + 1.2 for entry in shown]
    figure, axes = house.canvas(len(shown), height=0.9 + 0.3 * sum(heights), height_ratios=heights)
    looks = house.looks(along.skus_of(results))
    for axis, entry in zip(axes[:, 0], shown, strict=True):
        scale, unit = house.readable([sku["median"] for sku in entry["skus"]], units)
        for at, sku in enumerate(entry["skus"]):
            _row(axis, at, sku, looks[sku["sku"]], scale=scale, unit=unit)
        axis.set_yticks(range(len(entry["skus"])), [sku["sku"] for sku in entry["skus"]])
        axis.set_ylim(len(entry["skus"]) - 0.4, -0.6)
        axis.grid(visible=False, axis="y")
        axis.set_xlim(left=0)
        axis.set_title(entry["workload"])
        axis.set_xlabel(f"{house.words(metric)} [{unit}]")
    more = f"; the first {MOST} of {len(results)} workloads" if len(results) > MOST else ""
    figure.supxlabel(
        f"point: posterior median; line: eti {house.percent(along.mass_of(results))}{more}",
        fontsize=8.5,
    )
    return figure


def _row(
    axis: Any, at: int, sku: Mapping[str, Any], look: Mapping[str, str], *, scale: float, unit: str
) -> None:
    """Median and interval of one SKU on a line of its own, p_best at the right."""
    if sku["median"] is None:
        axis.annotate("does not fit", (0.01, at), xycoords=("axes fraction", "data"), va="center",
                      color="#555555", fontsize=8)  # fmt: skip
        return
    low, middle, high = (
        v / scale for v in (sku["interval"]["low"], sku["median"], sku["interval"]["high"])
    )
    line = axis.plot([low, high], [at, at], color=look["color"], linewidth=2)
    point = axis.plot(middle, at, color=look["color"], marker=look["marker"], markersize=6)
    said = f"{sku['sku']}: {middle:.4g} ({low:.4g} to {high:.4g}) {unit}"
    for artist in (*line, *point):
        house.hover(artist, said)
    if sku.get("p_best") is not None:
        axis.annotate(f"p_best {sku['p_best']:.2f}", (1.005, at), va="center", fontsize=8,
                      xycoords=("axes fraction", "data"), annotation_clip=False)  # fmt: skip
