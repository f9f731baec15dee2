"""What every figure shares: colours, style, readable units, hover values, and writing to a file."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2bayes._files import shown, write_whole
from m2bayes.errors import DataError
from m2bayes.plot._svg import inline, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito (2008), told apart by people of every colour vision; yellow is too pale for a line
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", ">")
LINES = ("-", "--", "-.", ":")
LOOKS = len(PALETTE) * len(LINES)
TURN, PLAIN = (0, 5, 4, 1, 3, 2, 6), (0, 0, 0, 1, 0, 1, 0)  # of looks: colour; row of solid lines
SEED = 22_539_238  # of the hash of names: the SKUs measured most have seven plain colours
GREY, INK, ALARM = "#767676", "#1a1a1a", PALETTE[1]
TINT = 0.75  # strength of a colour at its fullest, where black text still reads on it
SCALE = "Blues"  # one hue, evenly darker: readable in grey too
ROUND = ((1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
SUFFIXES = ("png", "svg", "pdf")
TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e2e2",
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "m2bayes",
    "savefig.facecolor": "white",
}


def styled[**P, R](draw: Callable[P, R]) -> Callable[P, R]:
    """Have a function draw in the house style, whatever the user's own settings are."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        from matplotlib import rc_context

        with rc_context():
            _settle()
            return draw(*args, **kwargs)

    return inside


def _settle() -> None:
    from matplotlib import rcdefaults, rcParams

    rcdefaults()
    rcParams.update(STYLE)


def canvas(
    rows: int = 1, columns: int = 1, *, width: float = 7.2, height: float = 3.6, **grid: Any
) -> tuple[Figure, Any]:
    """Empty figure [inch], with an array of axes, dims (row, column)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **grid)


def looks(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Colour, marker and dash of each name, which it keeps whatever else is drawn.

    A hash of the name chooses them. Where two of seven or fewer would share a colour, the one
    with the later look takes the next colour that is free.
    """
    order = [*dict.fromkeys(names)]
    place = {name: zlib.crc32(name.encode(), SEED) % LOOKS for name in order}
    found, used, colours = dict[str, dict[str, str]](), set[int](), set[int]()
    for name in sorted(order, key=lambda name: (_row(place[name]), name)):
        at = place[name]
        while at in used and len(used) < LOOKS:
            at = (at + 1) % LOOKS
        colour = at % len(PALETTE)
        while len(order) <= len(PALETTE) and colour in colours:
            colour = (colour + 1) % len(PALETTE)
        used.add(at)
        colours.add(colour)
        found[name] = {
            "color": PALETTE[TURN[colour]],
            "marker": MARKERS[(colour + _row(at)) % len(MARKERS)],
            "linestyle": LINES[_row(at)],
        }
    return {name: found[name] for name in order}


def _row(look: int) -> int:
    return (look // len(PALETTE) - PLAIN[look % len(PALETTE)]) % len(LINES)


def readable(values: Iterable[float | None], units: str) -> tuple[float, str]:
    """Scale and unit in which values read well on an axis.

    >>> readable([0.02, 0.3, None], "s"), readable([5e3], "token/s")
    ((0.001, 'ms'), (1.0, 'token/s'))
    """
    finite = [abs(v) for v in values if v is not None and math.isfinite(v) and v != 0]
    if units != "s" or not finite:
        return 1.0, units
    middle = sorted(finite)[len(finite) // 2]
    return next((pair for pair in TIMES if middle >= pair[0]), TIMES[-1])


def words(name: str) -> str:
    """Name of a metric or factor as words.

    >>> words("step_time"), words("tpot")
    ('step time', 'time per output token')
    """
    spelt = {"tpot": "time per output token", "ttft": "time to first token"}
    return spelt.get(name, name.replace("_", " "))


def label(name: str, units: str) -> str:
    """Name of a quantity with its unit, unless that is 1.

    >>> label("step time", "ms"), label("slope", "1")
    ('step time [ms]', 'slope')
    """
    return name if units == "1" else f"{name} [{units}]"


def percent(mass: float) -> str:
    """Mass of an interval in percent.

    >>> percent(0.9)
    '90 %'
    """
    return f"{100 * mass:.10g} %"


def chance(p: float) -> str:
    """Probability [1] in percent, its last digit shown only where it is open.

    >>> chance(0.3), chance(0.996), chance(0.0), chance(1.0)
    ('30 %', '99.6 %', '0 %', '100 %')
    """
    near = 0.0005 <= p < 0.0995 or 0.9 < p < 0.9995
    return f"{100 * p:.1f} %" if near and round(100 * p, 1) % 1 else f"{100 * p:.0f} %"


def hover(artist: Any, text: str) -> Any:
    """Give an artist a text that an SVG shows when the pointer rests on it."""
    artist.set_gid(f"hover {text}")
    return artist


def whole_numbers(axis: Any, values: Iterable[float]) -> None:
    """Label a logarithmic axis with the sizes that were asked for, as plain numbers."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    ticks = sorted(set(values))
    while len(ticks) > 9:
        ticks = ticks[::2]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([f"{value:,.0f}" for value in ticks]))
    axis.set_minor_locator(NullLocator())


def round_log(axis: Any, values: Iterable[float], most: int = 7) -> None:
    """Label a logarithmic axis with round plain numbers within the values, few enough to read."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    held = [*values]
    if not held:
        return
    low, high = min(held), max(held)
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ROUND:
        ticks = [d * 10.0**n for n in tens for d in digits if low <= d * 10.0**n <= high]
        if len(ticks) <= most:
            break
    ticks = ticks[:: -(-len(ticks) // most)] if len(ticks) > 1 else [low, high]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([f"{tick:,.10g}" for tick in ticks]))
    axis.set_minor_locator(NullLocator())


def legend_below(figure: Figure, handles: list[Any], columns: int = 4) -> None:
    """Put one legend for all axes under them, where it hides nothing."""
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def contrasting(colour: Any) -> str:
    """Black or white, whichever reads better on `colour` (WCAG relative luminance).

    >>> contrasting("#0072B2"), contrasting("#E69F00")
    ('white', 'black')
    """
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def tinted(colour: str, strength: float) -> tuple[float, float, float]:
    """Colour mixed with white; full strength [1] leaves `TINT` of it.

    >>> tinted("#000000", 0.0)
    (1.0, 1.0, 1.0)
    """
    from matplotlib.colors import to_rgb

    part = TINT * max(0.0, min(1.0, strength))
    red, green, blue = (1 - part * (1 - c) for c in to_rgb(colour))
    return red, green, blue


def suffix_of(path: str | Path) -> str:
    """Format that a file's suffix names.

    Raises
    ------
    DataError
        If it is none that a figure can be written in.
    """
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in SUFFIXES:
        known = ", ".join(f".{name}" for name in SUFFIXES)
        raise DataError(f"{shown(path)}: a figure is written as {known}; give the file such a name")
    return suffix


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure whole or not at all; an SVG shows its values under the pointer.

    Parameters
    ----------
    figure : Figure
        From any function of `m2bayes.plot`.
    path : str or Path
        Its suffix is the format: ``.png`` (at 150 dots an inch), ``.svg`` or ``.pdf``.

    Raises
    ------
    DataError
        For another suffix.
    RecordError
        If the file cannot be written.
    """
    suffix = suffix_of(path)
    content = _rendered(figure, suffix)
    write_whole(Path(path), titled(content.decode()).encode() if suffix == "svg" else content)


def inlined(figure: Figure, *, label: str, title: str, description: str) -> str:
    """SVG element of a figure for an HTML page.

    Parameters
    ----------
    figure : Figure
        From any function of `m2bayes.plot`.
    label : str
        Goes before every id in it, so that several figures stand on one page.
    title, description : str
        For those who do not see it.
    """
    text = _rendered(figure, "svg").decode()
    return inline(text, label=label, title=title, description=description)


def _rendered(figure: Figure, suffix: str) -> bytes:
    """Bytes of a figure; the same figure gives the same bytes."""
    from matplotlib import rc_context

    held = io.BytesIO()
    dates: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with rc_context():
        _settle()
        figure.savefig(held, format=suffix, dpi=150, metadata=dates.get(suffix))
    return held.getvalue()
