"""Is it calibrated? PIT, coverage of intervals, and probabilities against frequencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.diagnostics import UNIFORM, uniformity
from m2bayes.errors import DataError
from m2bayes.plot import _canvas as house

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEAN = "mean"
MOST = 10  # groups of scores that one figure shows
Scores = Mapping[str, Mapping[str, Any]]


@house.styled
def coverage(scores: Scores, *, title: str = "") -> Figure:
    """Share of measurements inside their intervals, against the mass of the intervals.

    Parameters
    ----------
    scores : mapping
        By SKU or unit, ``coverage_50`` to ``coverage_95`` and, if known, ``band_low`` and
        ``band_high`` of the 90 % interval [1], from `m2bayes.evaluate.scores`.
    title : str
        Of the figure.
    """
    figure, axes = house.canvas(width=5.6, height=4.6)
    covered(axes[0, 0], scores)
    axes[0, 0].set_title(title or "Coverage of equal-tailed intervals")
    return figure


def covered(axis: Any, scores: Scores, *, legend: bool = True) -> None:
    """Draw coverage against mass on an axis, one thin line a SKU and their mean."""
    axis.plot([0, 1], [0, 1], color=house.INK, linewidth=1, linestyle="--", label="calibrated")
    rows = {name: row for name, row in scores.items() if name != MEAN}
    for name, row in rows.items():
        masses, held = _points(row)
        line = axis.plot(masses, held, color=house.PALETTE[5], linewidth=1, alpha=0.8,
                         label=None if axis.lines[1:] else f"each of {len(rows)}")  # fmt: skip
        house.hover(line[0], f"{name}: {_said_of(masses, held)}")
    mean = scores.get(MEAN) or _mean(list(rows.values()))
    masses, held = _points(mean)
    line = axis.plot(masses, held, color=house.PALETTE[0], marker="o", markersize=5, label=MEAN)
    house.hover(line[0], f"{MEAN}: {_said_of(masses, held)}")
    bands = [row for row in rows.values() if row.get("band_low") is not None]
    if bands:
        low, high = (float(np.mean([r[k] for r in bands])) for k in ("band_low", "band_high"))
        axis.errorbar(
            0.9, (low + high) / 2, yerr=(high - low) / 2, color=house.GREY, capsize=4, linestyle="",
            zorder=1, label="99 % of calibrated\nforecasters, one SKU",
        )  # fmt: skip
    axis.set_xlim(0.4, 1)
    least = min(h for row in rows.values() for h in _points(row)[1])
    axis.set_ylim(max(0.0, min(0.4, least) - 0.05), 1.02)
    axis.set_xlabel("mass of the interval [%]")
    axis.set_ylabel("measurements inside [%]")
    _in_percent(axis)
    if legend:
        axis.legend(loc="lower right")


def _in_percent(axis: Any) -> None:
    """Label shares [1] in percent."""
    from matplotlib.ticker import FuncFormatter

    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.10g}"))


def _said_of(masses: list[float], held: list[float]) -> str:
    return ", ".join(f"{100 * m:.0f} %: {100 * h:.1f} %" for m, h in zip(masses, held, strict=True))


def _points(row: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    names = sorted(name for name in row if name.startswith("coverage_"))
    return [int(n.removeprefix("coverage_")) / 100 for n in names], [float(row[n]) for n in names]


def _mean(rows: list[Mapping[str, Any]]) -> dict[str, float]:
    names = set.intersection(*({n for n in row if n.startswith("coverage_")} for row in rows))
    return {name: float(np.mean([row[name] for row in rows])) for name in names}


@house.styled
def pit(values: xr.DataArray, *, title: str = "") -> Figure:
    """Distribution of the PIT against the uniform one of a calibrated model.

    Parameters
    ----------
    values : DataArray, dims (cell,)
        Probability integral transform of each measurement [1], from `m2bayes.score.pit`.
    title : str
        Of the figure.
    """
    figure, axes = house.canvas(width=5.6, height=3.6)
    transformed(axes[0, 0], values)
    if title:
        axes[0, 0].set_title(f"{title}. {axes[0, 0].get_title('left')}")
    return figure


def transformed(axis: Any, values: xr.DataArray) -> None:
    """Draw the PIT [1], dims (cell,), on an axis; its title says whether it passes as uniform.

    The test is of values that may be dependent, and the points that it finds suspicious are
    `arviz_plots.plot_ecdf_pit`'s.
    """
    from arviz_plots import PlotCollection, plot_ecdf_pit

    held = xr.Dataset({"PIT": ("cell", np.asarray(values.values, dtype=float))})
    places = {
        "/": {"figure": xr.DataArray(axis.figure)},
        "/plot": {"PIT": xr.DataArray(axis)},
        "/row_index": {"PIT": xr.DataArray(0)},
        "/col_index": {"PIT": xr.DataArray(0)},
    }
    where = xr.DataTree.from_dict({k: xr.Dataset(v) for k, v in places.items()})
    plot_ecdf_pit(
        xr.DataTree.from_dict({"/pit": held}),
        group="pit",
        sample_dims=["cell"],
        plot_collection=PlotCollection(held, where, backend="matplotlib"),
        visuals={
            "title": False,
            "xlabel": False,
            "p_value_text": False,
            "ecdf_lines": {"color": house.PALETTE[0]},
            "suspicious_points": {"color": house.ALARM},
        },
    )
    p = uniformity(values)
    even = "uniform" if p >= UNIFORM else "not uniform"
    axis.set_title(f"PIT: {even} (p {_of(p)}, passed from {UNIFORM:g})")
    if any(len(points.get_offsets()) for points in axis.collections):
        axis.annotate("orange: where it departs from uniform", (0.02, 0.98), va="top", fontsize=8,
                      xycoords="axes fraction")  # fmt: skip
    axis.set_xlabel("PIT: predictive draws below the measurement [%]")
    axis.set_ylabel("share of cells below, less uniform [%]")
    _in_percent(axis)


def _of(p: float) -> str:
    """Probability of a test in words.

    >>> _of(0.0002), _of(0.31)
    ('< 0.001', '= 0.31')
    """
    return "< 0.001" if p < 0.001 else f"= {p:.2g}"


@house.styled
def reliability(table: xr.Dataset, *, title: str = "") -> Figure:
    """How often what was said to happen with some probability did happen.

    Parameters
    ----------
    table : Dataset, dims (bin,)
        ``mean_probability``, ``frequency`` and ``cases`` [1], from `m2bayes.score.reliability`.
    title : str
        Of the figure.
    """
    figure, axes = house.canvas(width=5.2, height=4.6)
    relied(axes[0, 0], table)
    axes[0, 0].set_title(title or "Said and found")
    return figure


def relied(axis: Any, table: xr.Dataset, *, legend: bool = True) -> None:
    """Draw said against found [1], dims (bin,), on an axis; areas are numbers of cases."""
    filled = table.isel(bin=np.flatnonzero(table["cases"].values > 0))
    said, found, cases = (
        filled[v].values.astype(float) for v in ("mean_probability", "frequency", "cases")
    )
    axis.plot([0, 1], [0, 1], color=house.INK, linewidth=1, linestyle="--", label="calibrated")
    error = np.sqrt(said * (1 - said) / cases)  # of a calibrated forecaster with independent cases
    counted = f"found; larger: more cases\n({cases.min():,.0f} to {cases.max():,.0f})"
    axis.plot(said, found, color=house.PALETTE[0], linewidth=1, marker="o", markersize=4,
              label=counted)  # fmt: skip
    for x, y, n, e in zip(said, found, cases, error, strict=True):
        label = "± 2 standard errors of\nindependent cases" if len(axis.lines) == 2 else None
        ends = [x - 2 * e, x + 2 * e]
        axis.plot([x, x], ends, color=house.GREY, linewidth=3, alpha=0.4, label=label)
        point = axis.plot(x, y, color=house.PALETTE[0], marker="o",
                          markersize=4 + 8 * np.sqrt(n / cases.max()))  # fmt: skip
        house.hover(point[0], f"said {x:.3f}, found {y:.3f}, {n:.0f} cases")
    axis.set_xlabel("probability that was said [%]")
    axis.set_ylabel("how often it happened [%]")
    _in_percent(axis)
    axis.set_xlim(-0.03, 1.03)
    axis.set_ylim(-0.03, 1.03)
    axis.set_aspect("equal")
    if legend:
        axis.legend(loc="lower right", fontsize=7.5)


@house.styled
def evaluation(record: Mapping[str, Any]) -> Figure:
    """Calibration that one suite of ``m2bayes evaluate`` found.

    Parameters
    ----------
    record : mapping
        Content of a file of ``data/evaluations``: shares of measurements inside their
        intervals, or probabilities and frequencies of flips [1].

    Raises
    ------
    DataError
        If the suite holds neither.
    """
    groups = list(_scored(record["results"]))[:MOST]
    curves = list(_said(record["results"]))[:MOST]
    count = len(groups) + len(curves)
    if not count:
        raise DataError(f"suite {record.get('suite')}: no coverage or reliability to draw in it")
    columns = min(2 if count <= 4 else 3, count)
    rows = -(-count // columns)
    figure, axes = house.canvas(rows, columns, width=3.9 * columns + 0.4, height=3.6 * rows + 0.5)
    places = iter(axes.ravel())
    handles: dict[str, Any] = {}
    for name, scores in groups:
        axis = next(places)
        covered(axis, scores, legend=False)
        axis.set_title(name, fontsize=8.5)
        handles = handles or _labelled(axis)
    for name, table in curves:
        axis = next(places)
        relied(axis, table, legend=False)
        axis.set_title(name, fontsize=8.5)
        handles |= {} if name != curves[0][0] else _labelled(axis)
    house.legend_below(figure, list(handles.values()), columns=4 if columns > 1 else 2)
    for axis in places:
        axis.set_visible(False)
    figure.suptitle(f"m2bayes evaluate {record.get('suite')}", fontsize=10)
    return figure


def _labelled(axis: Any) -> dict[str, Any]:
    """Artists of an axis by the names that a legend gives them."""
    handles, names = axis.get_legend_handles_labels()
    return dict(zip(names, handles, strict=True))


def _scored(held: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Scores]]:
    """Groups of scores with coverage, by SKU or unit, wherever they stand."""
    inner = {k: v for k, v in held.items() if isinstance(v, Mapping)}
    rows = {k: v for k, v in inner.items() if "coverage_50" in v}
    if rows:
        yield " / ".join(path) or "all", rows
    for name, part in inner.items():
        if name not in rows:
            yield from _scored(part, (*path, name))


def _said(held: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, xr.Dataset]]:
    """Tables of said and found probabilities [1], dims (bin,), wherever they stand."""
    inner = {name: part for name, part in held.items() if isinstance(part, Mapping)}
    rows = [part for part in inner.values() if {"said", "found", "cases"} <= set(part)]
    if rows:
        names = {"mean_probability": "said", "frequency": "found", "cases": "cases"}
        columns = {k: ("bin", np.array([row[v] for row in rows])) for k, v in names.items()}
        yield " / ".join(path), xr.Dataset(columns)
        return
    for name, part in inner.items():
        yield from _said(part, (*path, name))
