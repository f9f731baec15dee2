"""A stored posterior, or a part of an assembly, conditioned on a file of new measurements."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from m2bayes._files import write_whole
from m2bayes.database import Database, store
from m2bayes.errors import DataError, RecordError, UnknownNameError
from m2bayes.inputs import Inputs
from m2bayes.measurements import checked, content_hash
from m2bayes.mechanism.laws import LAWS
from m2bayes.posterior import versions
from m2bayes.records import ROWS, Assembly, Posterior
from m2bayes.updating.condition import Unit
from m2bayes.updating.conditioned import PATHS, Sampled, Updated, updated
from m2bayes.updating.moves import moves
from m2bayes.updating.refused import (
    refuse_foreign,
    refuse_impossible,
    refuse_known,
    refuse_other_unit,
    sheets_of_rows,
)

LONGEST = 120  # name of a posterior
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Update:
    """An updated posterior, ready to be stored.

    Parameters
    ----------
    record : Posterior
        Names its parent in ``inference``.
    found : Updated
        Draws, path and outliers.
    rows : DataFrame
        All rows that this posterior was updated with, its parent's too.
    assembly : Assembly or None
        That the posterior is a part of, if one was updated.
    """

    record: Posterior
    found: Updated
    rows: pd.DataFrame
    assembly: Assembly | None = None


def update(
    database: Database,
    name: str,
    file: str,
    *,
    part: str | None = None,
    cards: Sequence[str] = (),
    path: str | None = None,
    seed: int = 0,
    tell: Tell = lambda text: None,
) -> Update:
    """Condition a posterior on the rows of a file.

    Parameters
    ----------
    database : Database
        Of models, data and datasheets.
    name : str
        Of a posterior, path of its record, or name of an assembly.
    file : str
        Table in the columns of `m2bayes.measurements.checked`, or a data set.
    part : str, optional
        Of the assembly; by default the one part whose columns the file has.
    cards : sequence of str
        Paths of datasheets that the database lacks.
    path : str, optional
        One of `m2bayes.updating.conditioned.PATHS`; by default the first that may be trusted.
    seed : int
        Of everything drawn.
    tell : callable
        Told what is being done.

    Returns
    -------
    Update
        For `write`; its draws have dims (chain, draw, sku, architecture, backend).

    Raises
    ------
    DataError, DatasheetError, RecordError, UnknownNameError
        If a name is unknown or the rows cannot be used.
    ConvergenceError
        If no path can be trusted.
    """
    if path is not None and path not in PATHS:
        raise UnknownNameError("path", path, PATHS)
    table, assembly, posterior = database.table(file), None, name
    if database.is_assembly(name):
        assembly = database.assembly(name)
        part = part or _part(database, assembly, table, file)
        if part not in assembly.parts:
            raise UnknownNameError("part", part, assembly.parts)
        posterior = assembly.parts[part]
    record, parent = database.posterior(posterior), database.draws(posterior)
    law = LAWS[database.model(record.model).law]
    rows = _once(checked(table, origin=file, law=law), tell)
    refuse_foreign(record, law, table, file)
    sheets, digests = sheets_of_rows(database.with_cards(cards), record, rows, file)
    old = past_rows(database, posterior)
    refuse_known(database, record, rows, old, file)
    refuse_impossible(database.model(record.model).law, rows, sheets, file)
    refuse_other_unit(parent, rows, sheets, file)

    def sample(units: list[Unit]) -> Sampled:
        if old is not None:
            raise RecordError(
                f"posterior {record.name} was updated before, and these rows need its model "
                "sampled: update the posterior that it came from with the rows of both files"
            )
        from m2bayes.updating.refit import refitted

        inputs = Inputs.recorded(database, record)
        tell(f"sampling {record.model} on its own data and the new rows: some minutes")
        return refitted(inputs.build(database.builder(record.model)), parent, units, seed=seed)

    found = updated(parent, rows, sheets, seed=seed, path=path, sample=sample, tell=tell)
    everything = rows if old is None else pd.concat([old, rows], ignore_index=True)
    everything = everything.sort_values(list(law.columns), ignore_index=True)
    made = _record(record, found, everything, digests, Path(file).stem)
    if assembly is not None and part is not None:
        assembly = _assembly(assembly, part, made, Path(file).stem)
    return Update(made, found, everything, assembly)


def _once(rows: pd.DataFrame, tell: Tell) -> pd.DataFrame:
    """Rows, dims (row,) [s], those that repeat another to the last digit left out.

    Repeats of a measurement differ; copies of it would count it twice.
    """
    found = rows.drop_duplicates(ignore_index=True)
    if len(found) < len(rows):
        tell(f"{len(rows) - len(found)} rows repeat another to the last digit: each counts once")
    return found


def _part(database: Database, assembly: Assembly, table: pd.DataFrame, file: str) -> str:
    """Part of an assembly whose columns a table has."""
    fitting = []
    for part, name in assembly.parts.items():
        law = LAWS[database.model(database.posterior(name).model).law]
        if set(law.columns) <= set(table.columns):
            fitting.append(part)
    if not fitting and "step_time" in table:
        raise DataError(
            f"{file}: holds whole steps, which no part is of: rank, predict and plan learn from "
            "them with --calibrate"
        )
    if not fitting and "op_time" not in table:
        raise DataError(
            f"{file}: no column op_time; m2bayes import makes such a table of other files and units"
        )
    if len(fitting) != 1:
        said = f"fits parts {', '.join(fitting)}" if fitting else "fits no part"
        raise DataError(
            f"{file}: {said} of {assembly.name}; name one of {', '.join(assembly.parts)} "
            "with --part"
        )
    return fitting[0]


def past_rows(database: Database, name: str) -> pd.DataFrame | None:
    """Rows that a posterior was updated with before, dims (row,) [s]; None for one never updated.

    Raises
    ------
    RecordError
        If their file, beside the record, is not what the record says.
    """
    record = database.posterior(name)
    source = next((s for s in record.data if s["role"] == ROWS), None)
    if source is None:
        return None
    law = LAWS[database.model(record.model).law]
    file = Path(name).with_name(f"{source['name']}.csv")
    rows = checked(database.table(str(file)), origin=str(file), law=law)
    if content_hash(rows) != source["sha256"]:
        raise RecordError(f"{file}: is not what posterior {record.name} was updated with")
    return rows


def _record(
    parent: Posterior, found: Updated, rows: pd.DataFrame, digests: dict[str, str], stem: str
) -> Posterior:
    """Record of the updated posterior."""
    name = _longer(parent.name.partition("-")[0], stem)
    ess = found.figures.get("ess", parent.checks["ess_bulk_min"])
    checks = parent.checks | {
        "ess_bulk_min": min(parent.checks["ess_bulk_min"], ess),
        "ess_tail_min": min(parent.checks["ess_tail_min"], ess),
    }
    if found.path == "sampling":
        checks = found.figures
    sources = [s for s in parent.data if s["role"] != ROWS]
    return replace(
        parent,
        name=f"{name}-{parent.model}",
        data=[*sources, {"role": ROWS, "name": name, "sha256": content_hash(rows)}],
        datasheets=dict(sorted((parent.datasheets | digests).items())),
        inference=parent.inference
        | {"update": found.path, "parent": parent.name, "parent_draws": parent.draws["sha256"]}
        | {"update_seed": found.seed, "update_figures": found.figures},
        checks=checks,
        draws={},
        versions=versions(),
        created=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _assembly(old: Assembly, part: str, made: Posterior, stem: str) -> Assembly:
    """The assembly with one part replaced."""
    return replace(
        old,
        name=_longer(old.name, stem),
        description=f"{old.description} Its part {part} was updated with {stem}.",
        parts=old.parts | {part: made.name},
    )


def _longer(name: str, stem: str) -> str:
    """Name of what was updated with a file."""
    tail = re.sub("[^A-Za-z0-9]+", "_", stem).strip("_")
    return f"{name}_and_{tail}"[:LONGEST]


def report(database: Database, done: Update) -> dict[str, Any]:
    """What the update did, as plain values, no dims.

    ``posterior``, ``parent``, ``path`` and its ``figures`` [1], ``outliers``, and what
    `m2bayes.updating.moves.moves` tells; ``assembly`` where one was updated.
    """
    cards, others = done.record.datasheets, None
    if set(cards) <= set(database.skus()):
        others = database.datasheets(list(cards), dtype=done.record.dtype)
    named = {} if done.assembly is None else {"assembly": done.assembly.name}
    outliers = [{k: v for k, v in row.items() if k != "place"} for row in done.found.outliers]
    return {
        "posterior": done.record.name,
        "parent": done.record.inference["parent"],
        **named,
        "path": done.found.path,
        "figures": done.found.figures,
        "outliers": outliers,
        **moves(done.found, others),
    }


def write(done: Update, folder: Path) -> dict[str, str]:
    """Write rows, draws and record, and the assembly, into `folder`, all of them or none.

    Returns
    -------
    dict
        Paths of ``rows``, ``posterior`` and, if there is one, ``assembly``; no dims.
    """
    source = next(s for s in done.record.data if s["role"] == ROWS)
    names = {"rows": f"{source['name']}.csv", "posterior": f"{done.record.name}.json"}
    if done.assembly is not None:
        names["assembly"] = f"{done.assembly.name}.json"
    out = {kind: folder / name for kind, name in names.items()}
    files = [*out.values(), folder / f"{done.record.name}.nc"]
    new = [file for file in files if not file.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_whole(out["rows"], done.rows.to_csv(index=False, float_format="%.7g").encode())
        store(done.record, done.found.draws, folder)
        if done.assembly is not None:
            text = json.dumps(asdict(done.assembly), indent=2)
            write_whole(out["assembly"], f"{text}\n".encode())
    except RecordError:
        for file in new:
            file.unlink(missing_ok=True)
        raise
    return {kind: str(file) for kind, file in out.items()}
