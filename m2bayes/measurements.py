"""A tidy table of kernel times, checked at the door, and its cells as a Dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.errors import DataError, UnknownNameError
from m2bayes.kernels import unit_labels
from m2bayes.mechanism.laws import LAWS, Law

GEMM = LAWS["gemm_time"]
COLUMNS, SIZES = GEMM.columns, GEMM.sizes
FLOOR, CEILING = 1e-7, 1e3  # [s] no kernel launch is faster, no kernel in these tables slower


def checked(table: pd.DataFrame, *, origin: str, law: Law = GEMM) -> pd.DataFrame:
    """Return the measurements of `table`, or say what is wrong with the first bad row.

    Parameters
    ----------
    table : DataFrame
        One row a measurement: ``sku``, ``backend``, ``version`` (text), the sizes of the law,
        such as ``M``, ``N``, ``K`` (whole numbers), and ``op_time`` [s].
    origin : str
        Where the table comes from, for the message.
    law : Law
        Of the kernels: which columns there are.

    Returns
    -------
    DataFrame
        The needed columns, sorted, so that row order never changes a result.

    Raises
    ------
    DataError
        Names the missing column, or the row and what its number should be.
    """
    missing = [c for c in law.columns if c not in table.columns]
    if missing:
        raise DataError(
            f"{origin}: no column {', '.join(missing)}; needed are {', '.join(law.columns)} "
            "(m2bayes import makes such a table of other files and units)"
        )
    if table.empty:
        raise DataError(f"{origin}: the table holds no row; give at least one measurement")
    table = table[list(law.columns)].copy()
    for name in (*law.sizes, "op_time"):
        number = _numbers(table[name])
        _refuse(table, name, number.isna() | np.isinf(number), origin, "a finite number")
        table[name] = number
    for name in law.sizes:
        least = law.smallest.get(name, 1)
        _refuse(table, name, table[name] < least, origin, f"at least {least}")
        _refuse(table, name, table[name] % 1 != 0, origin, "a whole number")
        _refuse(table, name, table[name] > law.largest, origin, f"at most {law.largest:,}")
    _refuse(table, "op_time", table["op_time"] <= 0, origin, "a time above zero, in seconds")
    absurd = ~table["op_time"].between(FLOOR, CEILING)
    _refuse(
        table, "op_time", absurd, origin, f"between {FLOOR} and {CEILING} s; is the unit right?"
    )
    for name in ("sku", "backend", "version", *law.labels):
        _refuse(table, name, table[name].isna(), origin, "a name")
        table[name] = table[name].astype(str)
        _refuse(table, name, table[name].str.strip() == "", origin, "a name")
    nobody = table["backend"].str.strip() == "any"
    _refuse(table, "backend", nobody, origin, "the name of a build: 'any' means an unknown one")
    return table.sort_values(list(law.columns), ignore_index=True)


def content_hash(table: pd.DataFrame) -> str:
    """SHA-256 of a table's content as CSV with seven digits: what a posterior was fitted to."""
    content = table.to_csv(index=False, float_format="%.7g")
    return hashlib.sha256(content.encode()).hexdigest()


def _numbers(column: pd.Series) -> pd.Series:
    """Cells as numbers, NaN where they are none; what no double can hold is infinite."""
    whole = column.map(lambda cell: isinstance(cell, int) and abs(cell) > 1e300)
    return pd.to_numeric(column.mask(whole, np.inf), errors="coerce").astype(float)


def _refuse(table: pd.DataFrame, name: str, bad: pd.Series, origin: str, wanted: str) -> None:
    """Raise for the first row where `bad` holds."""
    if bad.any():
        at = int(np.flatnonzero(bad.to_numpy())[0])
        given = str(table[name].iloc[at])[:60]
        given = given if given.isprintable() else ascii(given)
        raise DataError(f"{origin}: row {at + 1}, column {name}: {given} is not {wanted}")


def runs_by_cell(table: pd.DataFrame, *, skus: Sequence[str], law: Law = GEMM) -> xr.Dataset:
    """Cells of a checked table: one unit and shape each, its repeated runs along ``run``.

    Parameters
    ----------
    table : DataFrame
        From `checked`.
    skus : sequence of str
        The SKUs, or units of `m2bayes.kernels`, whose datasheets are at hand.
    law : Law
        Of the kernels.

    Returns
    -------
    Dataset, dims (cell, run)
        ``op_time`` [s], NaN where a cell has fewer runs; the sizes of the law (cell) [1];
        coordinates ``sku`` (cell), ``backend`` (cell, run; empty where there is no run).

    Raises
    ------
    UnknownNameError
        For a SKU that is not among `skus`.
    """
    sizes = list(law.sizes)
    table = table.assign(sku=unit_labels(law, table["sku"], table, table["backend"]))
    for name in table["sku"].unique():
        if name not in skus:
            raise UnknownNameError("SKU", name, skus)
    cell = table.groupby(["sku", *sizes], sort=True)
    at, run = cell.ngroup().to_numpy(), cell.cumcount().to_numpy()
    heads = table.drop_duplicates(["sku", *sizes]).sort_values(["sku", *sizes])
    times = np.full((len(heads), run.max() + 1), np.nan)
    backends = np.full(times.shape, "", dtype=object)
    times[at, run] = table["op_time"]
    backends[at, run] = table["backend"]
    labels = [
        f"{sku}/{'x'.join(f'{size:.0f}' for size in shape)}"
        for sku, *shape in heads[["sku", *sizes]].to_numpy()
    ]
    return xr.Dataset(
        {
            "op_time": (("cell", "run"), times, {"units": "s"}),
            **{v: ("cell", heads[v].to_numpy(), {"units": "1"}) for v in sizes},
            **{v: ("cell", heads[v].to_numpy().astype(str)) for v in law.labels},
            **{v: ("cell", np.full(len(heads), float(x))) for v, x in law.given.items()},
        },
        coords={
            "cell": labels,
            "sku": ("cell", heads["sku"].to_numpy().astype(str)),
            "backend": (("cell", "run"), backends.astype(str)),
        },
    )


def clock_readings(table: pd.DataFrame, datasheets: xr.Dataset, *, origin: str) -> xr.Dataset:
    """Clock telemetry as readings under a GEMM load, and as steps of a power-cap sweep.

    Parameters
    ----------
    table : DataFrame
        ``sku``; ``M``, ``N``, ``K`` [1] of the load, ``sustained_clock`` and ``half_width`` of its
        95 % interval [Hz]; for a sweep ``power_limit`` [W] instead of a load.
    datasheets : Dataset, dims (sku,)
        Readings of other SKUs are left out; sweeps are kept, as ratios within one card.
    origin : str
        Where the table comes from, for the message.

    Returns
    -------
    Dataset, dims (reading, sweep)
        ``reading_log_share``, log of sustained over boost, and its ``reading_error`` [1]; ``M``,
        ``N``, ``K`` (reading) [1], coordinate ``sku``; ``cap_log_power``, ``cap_log_clock``
        (sweep), log ratios [1] of neighbouring steps.

    Raises
    ------
    DataError
        If a column is missing, or names the row whose number is none above zero or lacking.
    """
    needed = ("sku", *SIZES, "power_limit", "sustained_clock", "half_width")
    missing = [c for c in needed if c not in table.columns]
    if missing:
        raise DataError(f"{origin}: no column {', '.join(missing)}; needed are {', '.join(needed)}")
    table = _telemetry(table[list(needed)].copy(), origin)
    loaded = table[table["M"].notna() & table["sku"].isin(datasheets["sku"].values)]
    clocks = loaded["sustained_clock"].to_numpy()
    boost = datasheets["boost_clock"].sel(sku=loaded["sku"].to_numpy()).values
    power, clock = [], []
    for _, steps in table[table["M"].isna()].groupby("sku"):
        ordered = np.log(steps.sort_values("power_limit")[["power_limit", "sustained_clock"]])
        power += list(np.diff(ordered["power_limit"]))
        clock += list(np.diff(ordered["sustained_clock"]))
    return xr.Dataset(
        {
            "reading_log_share": ("reading", np.log(clocks / boost)),
            "reading_error": ("reading", loaded["half_width"].to_numpy() / 1.96 / clocks),
            **{v: ("reading", loaded[v].to_numpy(dtype=float)) for v in SIZES},
            "cap_log_power": ("sweep", np.array(power)),
            "cap_log_clock": ("sweep", np.array(clock)),
        },
        coords={"sku": ("reading", loaded["sku"].to_numpy().astype(str))},
    )


def _telemetry(table: pd.DataFrame, origin: str) -> pd.DataFrame:
    """Refuse the first row that is neither a reading under a load nor a step of a sweep."""
    if table.empty:
        raise DataError(f"{origin}: the table holds no row; give at least one reading")
    _refuse(table, "sku", table["sku"].isna(), origin, "a name")
    table["sku"] = table["sku"].astype(str)
    given = table[list(SIZES)].notna()
    loaded = given.any(axis=1)
    needed = {"sustained_clock": loaded | True, "half_width": loaded, "power_limit": ~loaded}
    wanted = {
        "sustained_clock": "a clock above zero",
        "half_width": "a half width above zero, in Hz",
        "power_limit": "a power above zero, in W; give it, or the M, N, K of a load",
    }
    for name in SIZES:
        _refuse(table, name, loaded & ~given[name], origin, "a size: give all of M, N, K or none")
    for name in (*SIZES, *needed):
        number = _numbers(table[name])
        bad = ~(number > 0) | np.isinf(number)
        _refuse(table, name, bad & needed.get(name, loaded), origin, wanted.get(name, "a size"))
        table[name] = number
    return table
