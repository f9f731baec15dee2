"""Where a step's time goes: its median, divided as its operators, and each one's interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from m2bayes.plot import _canvas as house
from m2bayes.plot import _series as along

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = {  # operators that share a colour in the bars
    "qkv": "projections",
    "o": "projections",
    "gate_up": "projections",
    "down": "projections",
    "lm_head": "LM head",
    "attention_prefill": "attention",
    "attention_decode": "attention",
    "all_reduce": "all-reduce",
    "host": "host",
}
LIGHT = "light kernels"
NAMES = {  # of operators, where their own is short
    "qkv": "QKV projection",
    "o": "output projection",
    "gate_up": "gate and up projection",
    "down": "down projection",
    "lm_head": "LM head",
    "all_reduce": "all-reduce",
    "rope": "rotary embedding",
    "kv_write": "KV-cache write",
}
ROW = 0.72  # of a row of operators that its SKUs take
HATCHES = ("", "//", "..", "xx", "\\\\", "oo")
MOST = 6  # workloads that one figure shows


@house.styled
def breakdown(results: Sequence[Mapping[str, Any]]) -> Figure:
    """Step time by operator, for each workload and SKU.

    Parameters
    ----------
    results : list of dict
        From `m2bayes.answer.answers` with `predicted`, or ``results`` of ``m2bayes predict --by op
        --json`` [s].

    Returns
    -------
    Figure
        Left, the median of the step, divided as the medians of its operators (the means add up, but
        of a card that nobody measured a rare draw makes them), and its equal-tailed interval;
        right, median and interval of each operator.
    """
    shown = results[:MOST]
    looks = house.looks(along.skus_of(results))
    heights = [
        0.9 + 0.075 * len(_operators(entry)) * (len(_fitting(entry)) + 0.6) for entry in shown
    ]
    figure, axes = house.canvas(
        len(shown), 2, width=10.0, height=1.2 + sum(heights), height_ratios=heights
    )
    groups = list(dict.fromkeys([*GROUPS.values(), LIGHT]))
    for (left, right), entry in zip(axes, shown, strict=True):
        scale, unit = house.readable([sku["median"] for sku in entry["skus"]], "s")
        _bars(left, entry, groups, scale, unit)
        _intervals(right, entry, looks, scale, unit)
    more = f"; the first {MOST} of {len(results)} workloads" if len(results) > MOST else ""
    mass = house.percent(along.mass_of(results))
    figure.suptitle(
        f"Left: median of the step, divided as its operators' medians; black: {mass} interval. "
        f"Right: medians and {mass} intervals{more}",
        fontsize=9,
    )
    used = {_group(op["op"]) for entry in shown for sku in _fitting(entry) for op in sku["ops"]}
    handles = [_patch(groups, name) for name in groups if name in used]
    handles += [_point(name, look) for name, look in looks.items()]
    house.legend_below(figure, handles, columns=5)
    return figure


def _group(op: str) -> str:
    return GROUPS.get(op, LIGHT)


def _fitting(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [sku for sku in entry["skus"] if sku["median"] is not None]


def _operators(entry: Mapping[str, Any]) -> list[str]:
    """Operators that take any time, the longest first."""
    longest: dict[str, float] = {}
    for sku in _fitting(entry):
        for op in sku["ops"]:
            longest[op["op"]] = max(longest.get(op["op"], 0.0), op["median"])
    return sorted((op for op, time in longest.items() if time > 0), key=lambda op: -longest[op])


def _patch(groups: Sequence[str], name: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(label=name, **_fill(groups, name))


def _fill(groups: Sequence[str], name: str) -> dict[str, Any]:
    """Colour and hatch of a group, paler than the colours of the SKUs."""
    at = groups.index(name)
    return {
        "facecolor": house.tinted(house.PALETTE[at % len(house.PALETTE)], 0.6),
        "hatch": HATCHES[at % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.5,
    }


def _point(name: str, look: Mapping[str, str]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=name, color=look["color"], marker=look["marker"], markersize=5)


def _bars(
    axis: Any, entry: Mapping[str, Any], groups: Sequence[str], scale: float, unit: str
) -> None:
    """Medians of the steps divided into groups, one bar a SKU, and their intervals."""
    names = [sku["sku"] for sku in entry["skus"]]
    for at, sku in enumerate(entry["skus"]):
        if sku["median"] is None:
            axis.annotate("does not fit", (0.02, at), xycoords=("axes fraction", "data"),
                          va="center", fontsize=8, color="#555555")  # fmt: skip
            continue
        start, total = 0.0, sum(op["median"] for op in sku["ops"])
        for group in groups:
            part = sum(op["median"] for op in sku["ops"] if _group(op["op"]) == group) / total
            if part <= 0:
                continue
            length = part * sku["median"] / scale
            bar = axis.barh(at, length, left=start, height=0.62, **_fill(groups, group))
            house.hover(bar.patches[0], f"{sku['sku']}, {group}: {100 * part:.1f} % of the step")
            start += length
        low, high = (sku["interval"][k] / scale for k in ("low", "high"))
        line = axis.plot([low, high], [at, at], color=house.INK, linewidth=1.6, marker="|")
        house.hover(line[0], f"{sku['sku']}: step {low:.4g} to {high:.4g} {unit}")
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_xlim(left=0)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(f"step time [{unit}]")
    axis.set_title(along.folded(entry["workload"], 46))


def _intervals(
    axis: Any, entry: Mapping[str, Any], looks: Mapping[str, Any], scale: float, unit: str
) -> None:
    """Median and interval of every operator, SKUs beneath each other."""
    names, skus = _operators(entry), _fitting(entry)
    if not skus:
        axis.set_visible(False)
        return
    ends = list[float]()
    step = min(0.28, ROW / len(skus))  # nearer to one another than to the next operator's
    offsets = step * (np.arange(len(skus)) - (len(skus) - 1) / 2)
    for at in range(0, len(names), 2):
        axis.axhspan(at - 0.5, at + 0.5, color="#f2f2f2", linewidth=0, zorder=0)
    for shift, sku in zip(offsets, skus, strict=True):
        look, by_name = looks[sku["sku"]], {op["op"]: op for op in sku["ops"]}
        for at, name in enumerate(names):
            op = by_name[name]
            low, middle, high = (
                v / scale for v in (op["interval"]["low"], op["median"], op["interval"]["high"])
            )
            ends += [low, high]
            line = axis.plot([low, high], [at + shift] * 2, color=look["color"], linewidth=1.6)
            point = axis.plot(
                middle, at + shift, color=look["color"], marker=look["marker"], markersize=4
            )
            said = f"{sku['sku']}, {name}: {middle:.3g} ({low:.3g} to {high:.3g}) {unit}"
            for artist in (*line, *point):
                house.hover(artist, said)
    axis.set_yticks(range(len(names)), [NAMES.get(name, house.words(name)) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.set_xscale("log")
    house.round_log(axis.xaxis, ends)
    axis.set_xlabel(f"time in the step [{unit}]")
