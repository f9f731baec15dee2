"""Logs of a driver: SM clock under load from nvidia-smi, dmon and DCGM."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from m2bayes._files import shown
from m2bayes.errors import DataError
from m2bayes.importers._labels import cards
from m2bayes.importers._parts import Ask, Part, hashes, placed
from m2bayes.importers._rows import MOST_ROWS, columns, frames, lines

BUSY = 0.9  # share of a sample's time that the GPU works, from which it is under load
SETTLING = 0.2  # of the samples under load that come first and are not sustained yet
BLOCKS = 5  # of consecutive samples, whose medians say how uncertain the clock is
STEP = 15e6  # [Hz] clocks come in steps
T_QUANTILE = 2.776  # 0.975 of Student's t with BLOCKS - 1 degrees of freedom
FEWEST = 10  # samples under load
MHZ, PERCENT = 1e6, 0.01
NONE = ("", "-", "n/a", "[n/a]", "[not supported]", "[unknown error]")
# quantity: names in each tool, the unit they are in
NAMES: dict[str, tuple[tuple[str, ...], float]] = {
    "clock": (("clocks.sm", "clocks.current.sm", "pclk", "smclk", "sm_clock"), MHZ),
    "busy": (("utilization.gpu", "sm", "gpu_utilization", "gputl"), PERCENT),
    "power_limit": (("power.limit", "enforced.power.limit", "pmlmt"), 1.0),
    "active": (("sm_active", "smact"), 1.0),
    "tensor": (("tensor_activity", "tenso", "tenact"), 1.0),
    "locked": (("sm_app_clock",), MHZ),
}
DEVICE, INDEX = ("name", "gpu_name"), ("index", "gpu", "uuid", "pci.bus_id", "entity")


@dataclass(frozen=True)
class _Log:
    """Samples of a log, dims (sample,): SI units, NaN where a sample lacks a number."""

    samples: pd.DataFrame
    unused: frozenset[str]


def read_nvidia_smi(path: Path, ask: Ask) -> Part:
    """Read ``nvidia-smi --query-gpu=… --format=csv`` or ``nvidia-smi dmon``.

    Parameters
    ----------
    path : Path
        The log, with its header; ``clocks.sm`` or ``pclk`` [MHz] is needed, utilisation, power
        limit and name of the card are of use.
    ask : Ask
        The card where the log does not say, and the load: ``M``, ``N``, ``K``, ``op``.

    Returns
    -------
    Part
        One row a GPU and power limit, dims (measurement,): ``sustained_clock``, the median under
        load, and ``half_width`` [Hz], ``power_limit`` [W].

    Raises
    ------
    DataError
        If there is no clock, no header, or too few samples under load.
    """
    first = next((line for line in lines(path) if line.strip()), "")
    if first.lstrip().startswith("#"):
        return _summary(_dmon(path), path, ask)
    return _summary(_query(path), path, ask)


def read_dcgm(path: Path, ask: Ask) -> Part:
    """Read ``dcgmi dmon -e …``, or a table with DCGM's field names, as SM clocks.

    Parameters and results as of `read_nvidia_smi` [Hz, W], dims (measurement,); a table with a
    column ``sm_app_clock`` [MHz] has one row a locked clock.
    """
    first = next((line for line in lines(path) if line.strip()), "")
    if first.lstrip().startswith("#"):
        return _summary(_dmon(path), path, ask)
    return _summary(_query(path), path, ask)


def _query(path: Path) -> _Log:
    """A CSV whose header holds the unit in brackets and whose cells may repeat it."""
    names = columns(path)
    titles = {name: re.sub(r"\s*\[.*\]$", "", name).strip().lower() for name in names}
    if not any(title in NAMES["clock"][0] for title in titles.values()):
        hint = "" if not _is_number(names[0]) else "; it has no header: log without noheader"
        raise DataError(
            f"{shown(path)}: no column clocks.sm; query it: --query-gpu=timestamp,name,clocks.sm,"
            f"power.limit,utilization.gpu --format=csv{hint}"
        )
    parts, rows = [], 0
    for frame in frames(path):
        rows += len(frame)
        if rows > MOST_ROWS:
            raise DataError(f"{shown(path)}: holds more than {MOST_ROWS:,} samples; split it")
        parts.append(frame)
    whole = pd.concat(parts)
    return _log(whole.rename(columns=titles), path)


def _dmon(path: Path) -> _Log:
    """Columns between blanks (or commas), their names behind a #, units on the line below."""
    names: list[str] = []
    rows: list[list[str]] = []
    numbers: list[int] = []
    for number, line in enumerate(lines(path), start=1):
        cells = _cells(line)
        if line.lstrip().startswith("#"):
            head = [cell.lower() for cell in _cells(line.replace("#", " "))]
            names = names or head
            continue
        if not cells or cells[0].lower() == "id":
            continue
        if cells[0] == "GPU" and len(cells) > 1:  # dcgmi writes the entity in two words
            cells = [" ".join(cells[:2]), *cells[2:]]
        if len(cells) != len(names):
            raise DataError(
                f"{shown(path)}: line {number} has {len(cells)} of {len(names)} cells; "
                "is it cut off? drop the line or log again"
            )
        rows.append(cells)
        numbers.append(number)
        if len(rows) > MOST_ROWS:
            raise DataError(f"{shown(path)}: holds more than {MOST_ROWS:,} samples; split it")
    if not rows:
        raise DataError(f"{shown(path)}: holds no sample; log again")
    if not set(names) & set(NAMES["clock"][0]):
        raise DataError(
            f"{shown(path)}: no column pclk or SMCLK; log it: nvidia-smi dmon -s puc, dcgmi -e 100"
        )
    if len(set(names)) < len(names):
        raise DataError(f"{shown(path)}: two columns of one name; log each once")
    return _log(pd.DataFrame(rows, columns=names, index=pd.Index(numbers)), path)


def _cells(line: str) -> list[str]:
    return [cell for cell in re.split(r"[,\s]+", line.strip()) if cell]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9.]+( MHz)?", text.strip()) is not None


def _log(frame: pd.DataFrame, path: Path) -> _Log:
    """Samples in SI units."""
    found: dict[str, Any] = {}
    used = set()
    for quantity, (titles, unit) in NAMES.items():
        name = next((title for title in titles if title in frame), "")
        if name:
            used.add(name)
            found[quantity] = _numbers(frame[name], path, name) * unit
    device = next((title for title in DEVICE if title in frame), "")
    index = next((title for title in INDEX if title in frame), "")
    found["device"] = frame[device].astype(str).str.strip() if device else ""
    found["index"] = frame[index].astype(str).str.strip() if index else ""
    load = next((title for title in ("application",) if title in frame), "")
    found["application"] = frame[load].astype(str).str.strip() if load else ""
    rest = set(map(str, frame.columns)) - used - {device, index, load, "timestamp", "date", "time"}
    return _Log(pd.DataFrame(found, index=frame.index), frozenset(rest - {""}))


def _numbers(cells: pd.Series, path: Path, name: str) -> pd.Series:
    """Cells with or without their unit as numbers; what a driver does not know is NaN."""
    text = cells.astype(str).str.strip()
    unknown = text.str.lower().isin(NONE)
    bare = text.str.replace(r"\s*(MHz|W|%|C)$", "", regex=True)
    found = pd.to_numeric(bare.mask(unknown, "nan"), errors="coerce").astype(float)
    bad = found.isna() & ~unknown
    if bad.any():
        row = cells.index[bad.to_numpy()][0]
        raise DataError(
            f"{shown(path)}: row {row}, column {name}: {text.loc[row][:60]!a} is no number; "
            "drop the row"
        )
    return found


def _summary(log: _Log, path: Path, ask: Ask) -> Part:
    """One row a GPU, power limit and locked clock."""
    origin, samples = shown(path), log.samples
    samples = samples.assign(sku=cards(samples["device"], ask, origin, "name"))
    by = [n for n in ("sku", "index", "application", "power_limit", "locked") if n in samples]
    rows, left = [], {"idle or settling": 0}
    for label, own in samples.groupby(by, sort=True, dropna=False):
        fixed = dict(zip(by, label, strict=True))
        loaded = own[_busy(own)]["clock"].dropna()
        kept = loaded if "locked" in by else loaded.iloc[int(len(loaded) * SETTLING) :]
        left["idle or settling"] += len(own) - len(kept)
        if len(kept) < (1 if "locked" in by else FEWEST):
            continue
        clock, width = _clock(kept.to_numpy())
        rows.append(_row(fixed, clock, width, ask) | {"samples": len(kept), "at": kept.index[0]})
    if not rows:
        raise DataError(
            f"{origin}: fewer than {FEWEST} samples under load (utilisation of {BUSY:.0%}); "
            "log for longer while the load runs"
        )
    table = pd.DataFrame(rows).set_index("at")
    table = placed(table.rename_axis(None), origin, "clock")
    raw = hashes(samples.drop(columns="sku"), origin, ("device", "index"), ())
    left = {why: count for why, count in left.items() if count}
    return Part("clock", table, raw, log.unused, left)


def _busy(own: pd.DataFrame) -> pd.Series:
    """Whether a sample was taken under load, as far as the log says."""
    for name in ("active", "busy"):
        if name in own:
            return own[name] >= BUSY
    return own["clock"] > 0


def _clock(samples: np.ndarray) -> tuple[float, float]:
    """Median clock and half-width of its 95 % interval [Hz], by blocks of samples."""
    clock = float(np.median(samples))
    medians = [np.median(block) for block in np.array_split(samples, min(BLOCKS, len(samples)))]
    spread = float(np.std(medians, ddof=1)) if len(medians) > 1 else 0.0
    return clock, max(T_QUANTILE * spread / np.sqrt(len(medians)), STEP / 2)


def _row(fixed: dict[str, Any], clock: float, width: float, ask: Ask) -> dict[str, Any]:
    limit = fixed.get("power_limit", float("nan"))
    given = ask.number("power_limit")
    return {
        "sku": fixed["sku"],
        "op": ask.given.get("op", fixed.get("application", "")),
        **{name: ask.number(name) for name in "MNK"},
        "power_limit": given if pd.isna(limit) else limit,
        "boost_clock": float("nan"),
        "sustained_clock": clock,
        "half_width": width,
    }


def suits(names: Sequence[str]) -> bool:
    """Whether columns are those of a driver's log, no dims [1]."""
    titles = {re.sub(r"\s*\[.*\]$", "", name).strip().lower() for name in names}
    return bool(titles & set(NAMES["clock"][0])) and bool(titles & _others())


def _others() -> set[str]:
    every: Iterator[str] = (t for q, (ts, _) in NAMES.items() if q != "clock" for t in ts)
    return {*every, "timestamp", "power.draw", "gr_engine_active"}
