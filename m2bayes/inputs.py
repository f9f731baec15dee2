"""Everything that a fit reads, by the role it plays: times, clock telemetry, more shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.database import Database, Model, Posterior, labelled
from m2bayes.errors import DataError, RecordError, UnknownNameError
from m2bayes.kernels import unit_labels, unit_sheets
from m2bayes.measurements import GEMM, checked, clock_readings, content_hash, runs_by_cell
from m2bayes.mechanism.laws import LAWS, Law
from m2bayes.residuals import residuals


@dataclass(frozen=True)
class Inputs:
    """Tables of one fit and the datasheets of their SKUs.

    Parameters
    ----------
    times, shapes : DataFrame
        Checked kernel times [s]; `shapes` is empty when there are no more.
    clock : DataFrame or None
        Clock telemetry [Hz].
    datasheets : Dataset, dims (sku,)
        Of the measured SKUs, or of the units of `m2bayes.kernels`, for one dtype.
    sources : list of dict
        ``role``, ``name`` and ``sha256`` of each table.
    """

    times: pd.DataFrame
    shapes: pd.DataFrame
    clock: pd.DataFrame | None
    datasheets: xr.Dataset
    sources: list[dict[str, str]]
    law: Law = GEMM

    @classmethod
    def read(
        cls,
        database: Database,
        times: str,
        clock: str | None,
        shapes: str | None,
        dtype: str,
        *,
        law: Law = GEMM,
    ) -> Inputs:
        """Read and check the tables by data set name or path, of the kernels of one law.

        Raises
        ------
        DataError, RecordError, UnknownNameError
            If a table cannot be used.
        """
        held = checked(database.table(times), origin=times, law=law)
        more = held.iloc[:0]
        if shapes is not None:
            more = checked(database.table(shapes), origin=shapes, law=law)
        readings = None if clock is None else database.table(clock)
        skus = sorted(held["sku"].unique())
        _check_names(database, skus, times)
        _check_names(database, sorted(more["sku"].unique()), str(shapes))
        if len(more.merge(held)):
            raise DataError(f"{shapes}: holds rows of {times}, which count already; leave them out")
        stray = sorted(set(more["sku"]) - set(skus))
        if stray:
            raise DataError(f"{shapes}: {stray[0]} is not in {times}; leave its rows out")
        sheets = database.datasheets(skus, dtype=dtype)
        if clock is not None and readings is not None:
            clock_readings(readings, sheets, origin=clock)
            _check_names(database, sorted(set(readings["sku"].astype(str))), clock)
        tables = {"times": (times, held), "clock": (clock, readings), "shapes": (shapes, more)}
        sources = [
            {"role": role, "name": _stem(database, name), "sha256": content_hash(table)}
            for role, (name, table) in tables.items()
            if name is not None and table is not None
        ]
        labels = unit_labels(law, held["sku"], held, held["backend"])
        units = [str(unit) for unit in np.unique(labels)]
        return cls(held, more, readings, unit_sheets(law, sheets, units), sources, law)

    @classmethod
    def recorded(cls, database: Database, record: Posterior, *, times: str = "") -> Inputs:
        """Read the tables that a stored posterior was fitted to, and only those.

        Of a data set whose rows are not included, `times` is the user's file.

        Raises
        ------
        RecordError
            If a table is no longer here or no longer the same.
        """
        names = {source["role"]: source["name"] for source in record.data}
        for name in names.values():
            if name not in database.data():
                raise RecordError(
                    f"posterior {record.name}: its data set {name} is not in the database"
                )
        law = LAWS[database.model(record.model).law]
        tables = times or names["times"], names.get("clock"), names.get("shapes")
        found = cls.read(database, *tables, record.dtype, law=law)
        if times:
            found.sources[0]["name"] = names["times"]  # a file may bear any name
            if found.sources[0] != record.data[0]:
                raise DataError(
                    f"{times}: holds other rows than posterior {record.name} was fitted to"
                )
        if found.sources != record.data:
            raise RecordError(f"posterior {record.name}: its data changed since the fit; fit again")
        return found

    @property
    def skus(self) -> list[str]:
        """Names of the measured SKUs or units."""
        return [str(sku) for sku in self.datasheets["sku"].values]

    def without(self, skus: list[str], *, telemetry_only: bool = False) -> Inputs:
        """Leave every row of some SKUs out of every table; their datasheets stay."""

        def rest(table: pd.DataFrame) -> pd.DataFrame:
            return table[~table["sku"].isin(skus)].reset_index(drop=True)

        clock = None if self.clock is None else rest(self.clock)
        if telemetry_only:
            return replace(self, clock=clock)
        return replace(self, times=rest(self.times), shapes=rest(self.shapes), clock=clock)

    def more(self, times: pd.DataFrame) -> Inputs:
        """Add rows of kernel times [s], dims (row,), of SKUs whose datasheets are here."""
        return replace(self, times=pd.concat([self.times, times], ignore_index=True))

    def cells(self) -> xr.Dataset:
        """Kernel times, dims (cell, run) [s]."""
        return runs_by_cell(self.times, skus=self.skus, law=self.law)

    def readings(self) -> xr.Dataset | None:
        """Clock telemetry, dims (reading, sweep) [1], if there is any."""
        if self.clock is None:
            return None
        return clock_readings(self.clock, self.datasheets, origin="clock telemetry")

    def build(self, builder: Callable[..., Any]) -> Any:
        """Build the model that `builder` makes of these inputs."""
        readings = self.readings()
        if readings is None:
            return builder(self.cells(), self.datasheets)
        if "clock" not in signature(builder).parameters:
            raise DataError("this model takes no clock telemetry; leave --clock out")
        return builder(self.cells(), self.datasheets, clock=readings)

    def residuals(self, draws: xr.Dataset, card: Model) -> xr.Dataset:
        """Residuals of all cells at the posterior mean, dims (cell,) [1]."""
        together = pd.concat([self.times, self.shapes], ignore_index=True)
        together = checked(together, origin="shapes", law=self.law)
        cells = runs_by_cell(together, skus=self.skus, law=self.law)
        return residuals(labelled(draws, card, name="", dtype=""), cells, self.datasheets)


def _check_names(database: Database, names: list[str], origin: str) -> None:
    """Refuse what is no full name of a SKU of the database; a path, too, is no name."""
    known = database.skus()
    for name in names:
        try:
            if name.strip().lower().endswith(".json"):
                raise UnknownNameError("SKU", name, known)
            full = str(database.sku_card(name)[0]["name"])
        except UnknownNameError as unknown:
            raise DataError(f"{origin}: column sku: {unknown}") from None
        if full != name:
            what = "has blanks around it" if full == name.strip() else "is an alias"
            raise DataError(f"{origin}: column sku: {name!r} {what}; write {full}")


def _stem(database: Database, name: str) -> str:
    """Name of a stored data set; of a file its stem, hyphens turned into underscores."""
    return name if name in database.data() else Path(name).stem.replace("-", "_")
