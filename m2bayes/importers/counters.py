"""Nsight Compute's CSV: share of the cycles in which the tensor pipe works."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from m2bayes._files import reason, shown
from m2bayes.errors import DataError
from m2bayes.importers._meaning import CLOCK, TIME
from m2bayes.importers._parts import Ask, Part, hashes, placed
from m2bayes.importers._rows import MOST_ROWS, lines

# the activity of the tensor pipe: of cycles in which an SM is active, and of all that elapse
ACTIVE = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
)
ELAPSED = tuple(name.replace("sustained_active", "sustained_elapsed") for name in ACTIVE)
TIMES = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
CLOCKS = (
    "smsp__cycles_elapsed.avg.per_second",
    "sm__cycles_elapsed.avg.per_second",
    "SM Frequency",
)
LONG = ("Metric Name", "Metric Unit", "Metric Value")
PERCENT = 0.01


def read(path: Path, ask: Ask) -> Part:
    """Read ``ncu --csv``, with one metric a row or (``--page raw``) one kernel a row.

    Parameters
    ----------
    path : Path
        The output; what ncu says of itself, on lines that begin with ``==``, is passed over.
    ask : Ask
        The card, and ``M``, ``N``, ``K``, ``op`` of the kernels, if they are of one GEMM.

    Returns
    -------
    Part
        One row a kernel, dims (measurement,): ``eta_active``, the share of an SM's active cycles
        in which its tensor pipe works, ``eta_duty``, that of all cycles over it [1], ``op_time``
        [s], ``sm_clock`` [Hz]; NaN where it was not collected.

    Raises
    ------
    DataError
        If it is another file, or the tensor pipe was not collected.
    """
    origin = shown(path)
    kernels, seen = _kernels(path)
    rows = []
    for number, (label, metrics) in enumerate(kernels, start=1):
        active = _first(metrics, ACTIVE, origin, number)
        elapsed = _first(metrics, ELAPSED, origin, number)
        rows.append(
            {
                "sku": ask.sku,
                "kernel": label,
                "op": ask.given.get("op", ""),
                **{name: ask.number(name) for name in "MNK"},
                "eta_active": active * PERCENT,
                "eta_duty": elapsed / active if active else float("nan"),
                "op_time": _first(metrics, TIMES, origin, number, TIME),
                "sm_clock": _first(metrics, CLOCKS, origin, number, CLOCK),
            }
        )
    if all(row["eta_active"] != row["eta_active"] for row in rows):
        raise DataError(f"{origin}: no tensor-pipe activity; collect --metrics {ACTIVE[0]}")
    if ask.sku is None:
        raise DataError(f"{origin}: does not name the card; add --sku NAME")
    table = pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1))
    kept = table[table["eta_active"].notna()]
    left = {"tensor pipe not collected": len(table) - len(kept)} if len(kept) < len(table) else {}
    raw = hashes(table, origin, ("kernel",), ())
    rest = frozenset(seen - {*ACTIVE, *ELAPSED, *TIMES, *CLOCKS})
    return Part("eta", placed(kept, origin, ACTIVE[0]), raw, rest, left)


def _first(
    metrics: dict[str, tuple[str, str]],
    names: Iterable[str],
    origin: str,
    number: int,
    units: dict[str, float] | None = None,
) -> float:
    """Value of the first metric that was collected, in SI units if units are given."""
    for name in names:
        if name in metrics:
            unit, text = metrics[name]
            try:
                value = float(text.replace(",", ""))
            except ValueError:
                raise DataError(
                    f"{origin}: kernel {number}, {name}: {text[:60]!a} is no number; print it with "
                    "points, not commas (LC_ALL=C)"
                ) from None
            scale = (units or {}).get(unit.strip().lower(), 1.0 if units is None else None)
            if scale is None:
                raise DataError(f"{origin}: kernel {number}, {name}: unknown unit {unit[:40]!a}")
            return value * scale
    return float("nan")


def _kernels(path: Path) -> tuple[list[tuple[str, dict[str, tuple[str, str]]]], set[str]]:
    """Kernel name and its metrics (unit, text) of each launch, and all metrics' names."""
    rows = _table(path)
    header = next(rows, None)
    if header is None or "Kernel Name" not in header:
        raise DataError(f"{shown(path)}: no column Kernel Name; give the output of ncu --csv")
    held: list[dict[str, str]] = []
    for cells in rows:
        if len(cells) != len(header):
            raise DataError(
                f"{shown(path)}: row {len(held) + 1} has {len(cells)} of {len(header)} cells; "
                "is it cut off? profile again"
            )
        held.append(dict(zip(header, cells, strict=True)))
        if len(held) > MOST_ROWS:
            raise DataError(f"{shown(path)}: holds more than {MOST_ROWS:,} rows; split it")
    if not held:
        raise DataError(f"{shown(path)}: holds no kernel; profile again")
    return _long(held) if set(LONG) <= set(header) else _wide(held)


def _long(held: list[dict[str, str]]) -> tuple[list[Any], set[str]]:
    found: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {}
    for row in held:
        launch = found.setdefault(row.get("ID", row["Kernel Name"]), (row["Kernel Name"], {}))
        launch[1][row[LONG[0]]] = (row[LONG[1]], row[LONG[2]])
    return list(found.values()), {row[LONG[0]] for row in held}


def _wide(held: list[dict[str, str]]) -> tuple[list[Any], set[str]]:
    units = held[0] if not held[0]["Kernel Name"].strip() else dict.fromkeys(held[0], "")
    kernels = held[1:] if units is held[0] else held
    metrics = [name for name in held[0] if re.search(r"__|\.", name)]
    return [
        (row["Kernel Name"], {m: (units[m], row[m]) for m in metrics if row[m].strip()})
        for row in kernels
    ], set(metrics)


def _table(path: Path) -> Iterator[list[str]]:
    """Cells of the lines that are a table."""
    kept = (line for line in lines(path) if line.strip() and not line.startswith("=="))
    try:
        yield from csv.reader(
            (line + "\n" for line in kept if '"' in line or "," in line), strict=True
        )
    except csv.Error as fault:
        raise DataError(f"{shown(path)}: not a CSV table: {reason(fault)}; profile again") from None
