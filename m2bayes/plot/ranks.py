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
SEEN = 0.01  # probability of being best that a SKU reaches somewhere, to have a line
NARROW = 32  # characters of a label up to which a legend has three columns
FEW = 3  # SKUs that are named where they have none


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
        Above, median and equal-tailed interval of each SKU; below, the probability of being best
        of those that ever have any, with its Monte Carlo error; where the choice changes, the size
        at which it does.
    """
    labels = [entry["workload"] for entry in results]
    key = along.varying(labels)[0]
    ordered = sorted(results, key=lambda entry: along.size(entry["workload"], key))
    sizes = [along.size(entry["workload"], key) for entry in ordered]
    figure, axes = house.canvas(2, height=6.2, sharex=True, height_ratios=[3, 2])
    above, below = axes[:, 0]
    looks = house.looks(along.skus_of(results))
    _metric_lines(above, ordered, sizes, looks, metric=metric, units=units)
    unseen = []
    for name, look in looks.items():
        if max(along.column(ordered, name, "p_best", 0.0)) >= SEEN:
            _p_best_line(below, ordered, sizes, name, look)
        else:
            unseen.append(name)
    handles = _handles(ordered, looks)
    if crossovers:
        for axis in (above, below):
            _crossing(axis, crossovers)
        handles.append(_bar("choice changes, 90 % interval"))
    handles.append(_clear(below, threshold))
    below.set_ylim(-3, 104)
    below.set_ylabel("probability of\nbeing best [%]")
    below.set_xlabel(along.SIZES.get(key, key))
    if unseen:
        named = ", ".join(unseen) if len(unseen) <= FEW else f"{len(unseen)} of {len(looks)} SKUs"
        below.set_title(f"not drawn, below 1 % everywhere: {named}", fontsize=8, weight="normal")
    above.set_title(f"{house.words(metric)}: {along.common(labels)}")
    house.legend_below(figure, handles, columns=_columns(handles))
    return figure


CROSSING: dict[str, Any] = {"color": house.INK, "linewidth": 5, "alpha": 0.6}


def _clear(axis: Any, threshold: float) -> Any:
    """Line from which a verdict is clear, and what a legend says of it."""
    text = f"clear from {house.percent(threshold)}"
    return axis.axhline(
        100 * threshold, color=house.GREY, linewidth=1, linestyle=":", label=text, zorder=1
    )


def _handles(ordered: Results, looks: Mapping[str, Mapping[str, str]]) -> list[Any]:
    """Legend of lines along one size: SKUs, their intervals, and what may not fit."""
    from matplotlib.lines import Line2D

    handles = []
    for name, look in looks.items():
        fits = any(np.isfinite(along.column(ordered, name, "median")))
        handles.append(_handle(name if fits else f"{name} (does not fit)", look))
    handles.append(_band(f"{house.percent(along.mass_of(ordered))} interval of each"))
    if any(0 < p < 1 for name in looks for p in along.column(ordered, name, "p_fits", 1.0)):
        hollow: dict[str, Any] = {"marker": "o", "markersize": 5, "markerfacecolor": "white"}
        label = "hollow: may not fit in memory"
        handles.append(Line2D([], [], label=label, color=house.GREY, linestyle="", **hollow))
    return handles


def _columns(handles: Sequence[Any]) -> int:
    """Columns of a legend: as many as its longest label leaves room for."""
    return 3 if max(len(handle.get_label()) for handle in handles) <= NARROW else 2


def _handle(name: str, look: Mapping[str, str]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=name, markersize=5, **look)  # type: ignore[arg-type]


def _band(label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(label=label, color=house.GREY, alpha=0.35)


def _bar(label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **CROSSING)


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
        open_ = [p == 1 for p in along.column(ordered, name, "p_fits", 1.0)]
        ends += [float(v) for v in (*low, *high) if np.isfinite(v)]
        pale = 0.2 if len(looks) <= len(house.PALETTE) else 0.08
        axis.fill_between(sizes, low, high, color=look["color"], alpha=pale, linewidth=0)
        axis.plot(sizes, middle, label=name, markersize=0, color=look["color"],
                  linestyle=look["linestyle"])  # fmt: skip
        for at in [int(i) for i in np.flatnonzero(np.isfinite(middle))]:
            point = axis.plot(
                sizes[at], middle[at], color=look["color"], marker=look["marker"], markersize=5,
                markerfacecolor=look["color"] if open_[at] else "white",
            )  # fmt: skip
            text = f"{name}, {sizes[at]:,}: {middle[at]:.4g} ({low[at]:.4g} to {high[at]:.4g})"
            house.hover(point[0], f"{text} {unit}")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log" if ends else "linear")
    house.whole_numbers(axis.xaxis, sizes)
    house.round_log(axis.yaxis, ends)
    axis.set_ylabel(house.label(house.words(metric), unit))


def _p_best_line(
    axis: Any, ordered: Results, sizes: Sequence[float], name: str, look: Mapping[str, str]
) -> None:
    p, error = (100 * np.array(along.column(ordered, name, k)) for k in ("p_best", "p_best_mcse"))
    axis.fill_between(
        sizes, np.clip(p - error, 0, 100), np.clip(p + error, 0, 100), color=look["color"],
        alpha=0.25, linewidth=0,
    )  # fmt: skip
    axis.plot(sizes, p, color=look["color"], linestyle=look["linestyle"])
    for at in range(len(sizes)):
        point = axis.plot(
            sizes[at], p[at], marker=look["marker"], color=look["color"], markersize=5
        )
        text = f"{name}, {sizes[at]:,}: best with {p[at]:.1f} ± {error[at]:.1f} %"
        house.hover(point[0], text)


def _crossing(axis: Any, crossovers: Results) -> None:
    """Line at the median of each crossover, its interval as a bar on the upper edge."""
    for found in crossovers:
        interval = found["interval"]
        bar = axis.plot([interval["low"], interval["high"]], [1, 1], clip_on=False,
                        solid_capstyle="butt", transform=axis.get_xaxis_transform(),
                        **CROSSING)  # fmt: skip
        for end, mark in (("low", "<"), ("high", ">")):
            if end in interval.get("censored", ()):  # it may lie beyond
                axis.plot(interval[end], 1, marker=mark, markersize=9, color=house.INK,
                          clip_on=False, transform=axis.get_xaxis_transform())  # fmt: skip
        axis.axvline(found["median"], color=house.INK, linewidth=1, linestyle="--")
        house.hover(
            bar[0],
            f"{found['before']} before, {found['after']} after: {found['size']} "
            f"{found['median']:,.0f} ({interval['low']:,.0f} to {interval['high']:,.0f})",
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
    handles = _handles(ordered, looks)
    house.legend_below(figure, handles, columns=_columns(handles))
    return figure


MOST = 12  # workloads that one figure shows row by row


def _rows(results: Results, *, metric: str, units: str) -> Figure:
    """One panel a workload, one row a SKU, best first; beside it what it is best with and fits."""
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
        axis.set_title(along.folded(entry["workload"], 80))
        axis.set_xlabel(house.label(house.words(metric), unit))
    more = f"; the first {MOST} of {len(results)} workloads" if len(results) > MOST else ""
    known = "p_best" in shown[0]["skus"][0]
    told = "\nat the right: the probability of being the best" if known else ""
    if any(0 < sku.get("p_fits", 1) < 1 for entry in shown for sku in entry["skus"]):
        told += "; hollow, broken line: where it fits in memory at all"
    figure.supxlabel(
        f"point: median; line: {house.percent(along.mass_of(results))} interval{more}{told}",
        fontsize=8.5,
    )
    return figure


def _row(
    axis: Any, at: int, sku: Mapping[str, Any], look: Mapping[str, str], *, scale: float, unit: str
) -> None:
    """Median and interval of one SKU on a line of its own, its probabilities at the right."""
    if sku["median"] is None:
        axis.annotate("does not fit", (0.01, at), xycoords=("axes fraction", "data"), va="center",
                      color="#555555", fontsize=8)  # fmt: skip
        return
    low, middle, high = (
        v / scale for v in (sku["interval"]["low"], sku["median"], sku["interval"]["high"])
    )
    fits = sku.get("p_fits", 1.0)
    line = axis.plot([low, high], [at, at], color=look["color"], linewidth=2,
                     linestyle="-" if fits == 1 else (0, (2, 1)))  # fmt: skip
    point = axis.plot(middle, at, color=look["color"], marker=look["marker"], markersize=6,
                      markerfacecolor=look["color"] if fits == 1 else "white")  # fmt: skip
    said = f"{sku['sku']}: {middle:.4g} ({low:.4g} to {high:.4g}) {unit}"
    for artist in (*line, *point):
        house.hover(artist, said)
    told = [] if sku.get("p_best") is None else [f"best: {house.chance(sku['p_best'])}"]
    told += [f"fits: {house.chance(fits)}"] if fits < 1 else []
    if told:
        axis.annotate(", ".join(told), (1.005, at), va="center", fontsize=8,
                      xycoords=("axes fraction", "data"), annotation_clip=False)  # fmt: skip
