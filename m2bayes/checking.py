"""Verify a stored posterior: hashes, diagnostics, its own rows or new ones, fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.database import Database, Posterior, digest
from m2bayes.diagnostics import uniformity
from m2bayes.errors import RecordError
from m2bayes.evaluate import by_build, cell_times, median_of_builds, scores
from m2bayes.inputs import Inputs
from m2bayes.measurements import checked, content_hash
from m2bayes.mechanism.laws import LAWS
from m2bayes.records import ROWS
from m2bayes.score import pit
from m2bayes.updating.drift import drift
from m2bayes.updating.refused import refuse_known, sheets_of_rows
from m2bayes.updating.update import past_rows

TOLERANCE = 1e-9  # relative, of a log density summed in another order


def report(
    database: Database,
    name: str,
    *,
    rebuild: bool,
    tell: Callable[[str], None],
    data: str | None = None,
    cards: Sequence[str] = (),
    keep: Callable[[str, xr.DataArray, xr.DataArray], None] = lambda sku, draws, observed: None,
) -> dict[str, Any]:
    """Diagnostics of a posterior, and how its predictive covers the rows it was fitted to.

    Parameters
    ----------
    database : Database
        That holds model, data and posterior.
    name : str
        Of the posterior, or path of its record.
    rebuild : bool
        Compile the model and compare its log density at fixed points with the stored one.
    tell : callable
        Told what is being done.
    data : str, optional
        File of the rows that it was fitted to, where the database does not include them; or of
        other rows, which are held against the posterior predictive.
    cards : sequence of str
        Paths of datasheets of other rows' SKUs that the database lacks.
    keep : callable
        Given each SKU, its predictive draws, dims (chain, draw, cell), and measurements [s].

    Returns
    -------
    dict
        ``checks``, ``calibration`` by SKU and ``mean`` [1]: each cell is predicted as if its
        shape were new; ``uniformity``, see `m2bayes.diagnostics.uniformity`, of the PIT of all
        cells; ``fingerprint`` when `rebuild`. Where the rows are not here ``skipped``
        says so instead, and only diagnostics and hashes are verified. Of other rows ``drift``,
        see `m2bayes.updating.drift.drift`, in place of ``calibration``.

    Raises
    ------
    RecordError
        If a file, a datasheet or the log density is not what the record says.
    """
    draws, record = database.draws(name), database.posterior(name)
    here = set(database.skus())  # a user's own card is compared when it is asked for
    for sku, stored in record.datasheets.items():
        if sku in here and digest(database.sku_card(sku)[0]) != stored:
            raise RecordError(
                f"posterior {record.name}: the datasheet of {sku} changed since the fit; fit again"
            )
    out: dict[str, Any] = {
        "posterior": record.name,
        "checks": record.checks,
        "inference": record.inference,
        "calibration": {},
    }
    if data and not rebuild and (new := _new_rows(database, name, data)) is not None:
        sheets, _ = sheets_of_rows(database.with_cards(cards), record, new, data)
        return out | {"drift": drift(draws, new, sheets, tell=tell) | {"posterior": record.name}}
    if data is None and not rebuild and (skipped := _without_rows(database, record)):
        return out | {"skipped": skipped}
    inputs = Inputs.recorded(database, fitted(record), times=data or "")
    cells, sheets = inputs.cells(), inputs.datasheets
    if rebuild:
        tell(f"compiling {record.model}: half a minute the first time")
        out["fingerprint"] = _compare(database, record, inputs)
    unconditioned = draws.drop_vars([v for v in draws.data_vars if str(v).startswith("residual")])
    transforms = list[xr.DataArray]()
    for sku in inputs.skus:
        tell(f"posterior predictive on {sku}")
        own = cells.isel(cell=np.flatnonzero(cells["sku"].values == sku))
        observed = median_of_builds(by_build(own)).drop_vars("sku", errors="ignore")
        predictive = cell_times(unconditioned, own, sheets, seed=0).drop_vars(
            "sku", errors="ignore"
        )
        keep(sku, predictive, observed)
        out["calibration"][sku] = scores(predictive, observed)
        transforms.append(pit(predictive, observed))
    keys = next(iter(out["calibration"].values())).keys()
    out["calibration"]["mean"] = {
        k: float(np.mean([s[k] for s in out["calibration"].values()])) for k in keys
    }
    out["uniformity"] = uniformity(xr.concat(transforms, dim="cell"))
    return out


def fitted(record: Posterior) -> Posterior:
    """Record without the rows that updated the posterior, no dims: what its model was fitted to."""
    return replace(record, data=[source for source in record.data if source["role"] != ROWS])


def _new_rows(database: Database, name: str, data: str) -> pd.DataFrame | None:
    """Checked rows of a file, unless they are those that the posterior was fitted to.

    Some of those, and rows that it was updated with, are refused: they would agree.
    """
    record = database.posterior(name)
    law = LAWS[database.model(record.model).law]
    rows = checked(database.table(data), origin=data, law=law)
    times = next(source for source in record.data if source["role"] == "times")
    if content_hash(rows) == times["sha256"]:
        return None
    refuse_known(database, record, rows, past_rows(database, name), data)
    return rows


def _without_rows(database: Database, record: Posterior) -> str:
    """Why there is no posterior predictive, or nothing; the hash must be the card's anyway."""
    source = next(source for source in record.data if source["role"] == "times")
    if source["name"] not in database.data() or database.included(source["name"]):
        return ""
    card = database.data_record(source["name"])
    if card.sha256 != source["sha256"]:
        raise RecordError(f"posterior {record.name}: its data changed since the fit; fit again")
    return (
        f"the rows of {card.name} are not here, so the posterior predictive is skipped; "
        f"make them with {card.recipe} and give them with --data"
    )


def _compare(database: Database, record: Posterior, inputs: Inputs) -> dict[str, list[float]]:
    from m2bayes.diagnostics import fingerprint

    model = inputs.build(database.builder(record.model))
    now = fingerprint(model, points=len(record.fingerprint))
    if not np.allclose(now, record.fingerprint, rtol=TOLERANCE, atol=0):
        raise RecordError(
            f"model {record.model}: its log density {now} is not the stored {record.fingerprint}; "
            "the model, a law, a datasheet or the data changed: fit again, or rename the model"
        )
    return {"stored": record.fingerprint, "now": now}
