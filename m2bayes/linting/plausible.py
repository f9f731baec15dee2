"""What is wrong with measurements by themselves: values, copies, replicates, versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from m2bayes.importers._parts import UNKNOWN, Part
from m2bayes.mechanism.laws import LAWS

MOST_NAMED = 20  # rows that a finding lists


@dataclass(frozen=True)
class Finding:
    """One thing that a table of measurements shows.

    Parameters
    ----------
    severity : {"error", "warning", "note"}
        An error makes `import` refuse the file.
    rule : str
        Which check found it.
    place : str
        Column or configuration.
    message : str
        One line: file, row and column, what was given, what to do.
    count : int
        Rows, or keys, that it concerns.
    rows : tuple of int
        The first of them, by their number in the file.
    """

    severity: Literal["error", "warning", "note"]
    rule: str
    place: str
    message: str
    count: int = 1
    rows: tuple[int, ...] = ()


# kind that is no law: columns that hold numbers, smallest and largest in SI, whether one is needed
RANGES: dict[str, dict[str, tuple[float, float, bool, str]]] = {
    "served": {
        "ttft": (1e-4, 1e4, False, "s"),
        "tpot": (1e-4, 2.0, False, "s"),
        "e2e_time": (1e-4, 1e5, False, "s"),
    },
    "steps": {"step_time": (1e-6, 100.0, True, "s")},
    "clock": {
        "sustained_clock": (1e8, 5e9, True, "Hz"),
        "half_width": (0.0, 1e9, False, "Hz"),
        "power_limit": (20.0, 5e3, False, "W"),
    },
    "eta": {"eta_active": (0.0, 1.0, True, "1")},
}
KERNEL_TIME = (1e-7, 1e3, True, "s")


def values(part: Part) -> list[Finding]:
    """Numbers that are none, not finite, not above zero, out of range, or sizes that are no counts.

    Parameters
    ----------
    part : Part
        From a reader; dims (measurement,), SI units [s, Hz, W, 1].
    """
    found: list[Finding] = []
    law = LAWS.get(part.kind)
    largest = law.largest if law else 0
    for name in law.sizes if law else ():
        number = part.rows[name].to_numpy(dtype=float)
        whole = (number >= 1) & (number == np.floor(number)) & (number <= largest)
        found += _bad(part, name, ~whole, f"a whole number from 1 to {largest:,}")
    ranges = {"op_time": KERNEL_TIME} if law else RANGES.get(part.kind, {})
    for name, (low, high, needed, unit) in ranges.items():
        if name not in part.rows:
            continue
        number = part.rows[name].to_numpy(dtype=float)
        missing = np.isnan(number)
        found += _bad(part, name, missing & needed, "a finite number")
        found += _bad(part, name, np.isinf(number), "a finite number")
        found += _bad(part, name, number <= 0, f"above zero, in {unit}")
        absurd = np.isfinite(number) & (number > 0) & ~((number >= low) & (number <= high))
        wanted = f"between {low:g} and {high:g} {unit}; is the unit right? write it: {name} [ms]"
        if unit != "s":
            wanted = f"between {low:g} and {high:g} {unit}; is the unit right?"
        found += _bad(part, name, absurd, wanted)
    if part.kind == "served":
        times = [name for name in RANGES["served"] if name in part.rows]
        empty = part.rows[times].isna().all(axis=1).to_numpy()
        found += _bad(part, "tpot", empty, "a time: give ttft, tpot or e2e_time")
    return found


def _bad(part: Part, name: str, bad: np.ndarray, wanted: str) -> list[Finding]:
    """One error for all rows where `bad` holds, which names the first."""
    if not bad.any():
        return []
    rows = part.rows[bad].sort_values(["file", "row"])
    first = rows.iloc[0]
    column = name if str(first["column"]) in ("", "clock") or name not in TIMED else first["column"]
    given = part.texts.get((first["file"], int(first["row"]), str(column)))
    shown = given if given is not None else f"{first[name]:g}"
    shown = ascii(shown[:60]) if given is not None else shown
    more = f" (and {len(rows) - 1:,} more)" if len(rows) > 1 else ""
    text = f"{first['file']}: row {first['row']}, column {column}: {shown} is not {wanted}{more}"
    return [Finding("error", "values", str(column), text, len(rows), named_rows(rows))]


TIMED = ("op_time", "step_time")


def named_rows(rows: pd.DataFrame) -> tuple[int, ...]:
    """Numbers of the first rows, dims (row,) [1], as a finding lists them."""
    return tuple(int(r) for r in np.unique(rows["row"])[:MOST_NAMED])


def repeats(part: Part) -> list[Finding]:
    """Rows that repeat an earlier one in everything but the id, and keys measured more than once.

    Parameters
    ----------
    part : Part
        From a reader; dims (row,) [1].
    """
    found = []
    raw, origin = part.raw, origin_of(part)
    copies = raw.duplicated("whole")
    if copies.any():
        count = int(copies.sum())
        text = (
            f"{origin}: {counted(count)} repeat an earlier one in everything but the id; drop them"
        )
        found.append(Finding("warning", "copies", "", text, count, named_rows(raw[copies])))
    single = raw[~copies]
    sizes = single.groupby("key").size()
    many = sizes[sizes > 1]
    if len(many) and part.key:
        shown = ", ".join(part.key[:6]) + (", …" if len(part.key) > 6 else "")
        text = (
            f"{origin}: {len(many):,} keys ({shown}) are measured more than once, "
            f"{int(many.sum()):,} rows: replicates"
        )
        rows = single[single["key"].isin(many.index)]
        found.append(Finding("note", "replicates", "", text, len(many), named_rows(rows)))
    return found


def versions(part: Part) -> list[Finding]:
    """Rows that do not say which software was measured, dims (measurement,) [1]."""
    if "version" not in part.rows or part.kind in ("clock", "eta"):
        return []
    bare = part.rows[part.rows["version"].astype(str).isin((UNKNOWN, ""))]
    count = len(bare[["file", "row"]].drop_duplicates())
    if not count:
        return []
    text = (
        f"{origin_of(part)}: {counted(count)} without a software version; "
        "a kernel library changes its times: fill the column, or add --given version=…"
    )
    return [Finding("warning", "version", "version", text, count, named_rows(bare))]


def counted(count: int) -> str:
    """Say how many rows.

    >>> counted(1), counted(1500)
    ('1 row', '1,500 rows')
    """
    return f"{count:,} row{'s' * (count != 1)}"


def origin_of(part: Part) -> str:
    """Name of the file, or of the first of several."""
    files = sorted({str(f) for f in part.raw["file"].unique()})
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
