"""Rows that a posterior must not be held against: of other cards, kernels or units, or known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.database import Database, digest
from m2bayes.errors import DataError, DatasheetError, UnknownNameError
from m2bayes.importers._parts import Part
from m2bayes.kernels import unit_labels, unit_sheets
from m2bayes.linting.floors import SLACK, WORK, floors
from m2bayes.measurements import checked
from m2bayes.mechanism.laws import LAWS, Law
from m2bayes.predictive import law_of
from m2bayes.records import Posterior
from m2bayes.timings import BEYOND
from m2bayes.updating.condition import filled, unit
from m2bayes.updating.coordinates import coordinates
from m2bayes.updating.enlarge import with_builds

TIMES = ("times", "shapes")  # roles of kernel times that a posterior was fitted to
PHASES = ("prefill", "decode")


def sheets_of_rows(
    database: Database, record: Posterior, rows: pd.DataFrame, file: str
) -> tuple[xr.Dataset, dict[str, str]]:
    """Datasheets of the SKUs of new rows, dims (sku,), and their digests.

    Parameters
    ----------
    database : Database
        With the user's own cards, see `m2bayes.database.Database.with_cards`.
    record : Posterior
        That the rows are held against; its cards have the numbers that it was fitted with.
    rows : DataFrame, dims (row,)
        Times [s] of some SKUs.
    file : str
        Where they are from, for messages.

    Raises
    ------
    DataError, DatasheetError
        For a SKU that is unknown or an alias, and for a card of other numbers.
    """
    digests = {}
    for sku in sorted(rows["sku"].unique()):
        try:
            card, origin = database.sku_card(sku)
        except UnknownNameError as unknown:
            raise DataError(
                f"{file}: column sku: {unknown} (of your own card give the datasheet with --sku)"
            ) from None
        if card["name"] != sku:
            raise DataError(f"{file}: column sku: {sku!r} is an alias; write {card['name']}")
        digests[sku] = digest(card)
        if record.datasheets.get(sku, digests[sku]) != digests[sku]:
            raise DatasheetError(
                f"{origin}: {sku} has other numbers than the datasheet that the "
                "posterior was fitted with; give the card, and its rows, another name"
            )
    return database.datasheets([*digests], dtype=record.dtype), digests


def refuse_foreign(record: Posterior, law: Law, table: pd.DataFrame, file: str) -> None:
    """Refuse rows, dims (row,), that say themselves that they are of another phase or dtype [1]."""
    phase = next((p for p in PHASES if law is LAWS[f"{p}_time"]), None)
    for column, own in (("phase", phase), ("dtype", record.dtype)):
        if column in table and (own is None or not (table[column].astype(str) == own).all()):
            raise DataError(
                f"{file}: column {column}: posterior {record.name} is of "
                f"{own or 'neither phase'}; leave other rows out"
            )


def refuse_known(
    database: Database, record: Posterior, rows: pd.DataFrame, old: pd.DataFrame | None, file: str
) -> None:
    """Refuse rows, dims (row,) [s], that count already."""
    law = LAWS[database.model(record.model).law]
    held = [] if old is None else [old]
    for source in record.data:
        name = source["name"]
        if source["role"] in TIMES and name in database.data() and database.included(name):
            held.append(checked(database.table(name), origin=name, law=law))
    twice = sum(len(rows.merge(table)) for table in held)
    if twice:
        raise DataError(
            f"{file}: holds {twice} rows that posterior {record.name} knows already; leave them out"
        )


def refuse_impossible(law: str, rows: pd.DataFrame, sheets: xr.Dataset, file: str) -> None:
    """Refuse rows, dims (row,) [s], half of which are faster than their card can be.

    Of a few such rows `m2bayes.updating.outlying` says that they are not believed.
    """
    if law not in WORK:
        return
    floor = floors(Part(law, rows, rows), sheets)
    least = floor[["compute", "memory"]].max(axis=1).to_numpy()
    for sku, at in rows.reset_index(drop=True).groupby("sku").groups.items():
        ratio = float(np.median(rows["op_time"].to_numpy()[at] / np.maximum(least[at], 1e-12)))
        if ratio < SLACK:
            raise DataError(
                f"{file}: column op_time: half of the rows of {sku} take {ratio:.0%} or less of "
                "the time that the card needs at its peak: another unit, tensor parallelism or a "
                "narrower dtype; leave them out, or give seconds (m2bayes import reads other units)"
            )


def refuse_other_unit(
    parent: xr.Dataset, rows: pd.DataFrame, sheets: xr.Dataset, file: str
) -> None:
    """Refuse rows, dims (row,) [s], whose middle only another unit of time explains."""
    law = law_of(parent)
    labels = unit_labels(law, rows["sku"], rows, rows["backend"])
    names = [str(label) for label in np.unique(labels)]
    units = unit_sheets(law, sheets, names)
    known = with_builds(parent, [] if law.variant else sorted(set(rows["backend"])))
    for name in names:
        one = unit(known, units.sel(sku=[name]), rows[labels == name], alone=True)
        centre = coordinates(known, one.variables).centre.mean(axis=0)[None]
        modelled = np.log(one.runs.law.time(one.runs.terms, filled(one.variables, centre)[0]))
        new = (one.runs.log_time - modelled)[0, -len(one.table) :]
        ratio = float(np.exp(np.median(new)))
        if not 1 / BEYOND < ratio < BEYOND:
            raise DataError(
                f"{file}: column op_time: half of the rows of {name} take {ratio:.2g} times what "
                "is expected; give seconds (m2bayes import reads other units: op_time [ms])"
            )
