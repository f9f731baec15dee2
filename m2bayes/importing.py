"""Measurement files of any known format as tidy tables in SI units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from m2bayes._files import sha256, shown, write_whole
from m2bayes.database import Database
from m2bayes.errors import DataError, M2BayesError, RecordError, UnknownNameError
from m2bayes.importers._meaning import MEANINGS
from m2bayes.importers._parts import PLACE, Ask, Part, joined, names_of
from m2bayes.importers.engines import NUMBERS, TEXTS
from m2bayes.importers.formats import FORMATS, Format, Whole, recognised
from m2bayes.linting.floors import sound, weights_of
from m2bayes.linting.plausible import Finding, counted
from m2bayes.measurements import checked, content_hash
from m2bayes.mechanism.laws import LAWS

FACTS = {*MEANINGS, *NUMBERS, *TEXTS, "kernel_source"}  # that files may leave out


def read(
    database: Database,
    paths: Sequence[str],
    *,
    form: str = "",
    sku: str | None = None,
    given: Mapping[str, str] | None = None,
) -> Part:
    """Measurements of some files, whether they are sound or not.

    Parameters
    ----------
    database : Database
        Of datasheets and LLMs.
    paths : sequence of str
        Files of one format.
    form : str
        A key of `FORMATS`; empty to recognise each file's.
    sku : str, optional
        Name or alias of the card, or path of its datasheet, where the files do not say.
    given : mapping, optional
        Other facts that they do not say, by column.

    Returns
    -------
    Part
        Tidy rows [s, Hz, W, 1], dims (measurement,).

    Raises
    ------
    DataError, UnknownNameError
        If a format or card is unknown, or a file cannot be read.
    """
    if form and form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    for key in given or {}:
        if key not in FACTS:
            raise UnknownNameError("key of --given", key, FACTS)
    database = database.with_cards([sku] if sku else [])
    full = None if sku is None else str(database.sku_card(sku)[0]["name"])
    ask = Ask(database, full, dict(given or {}))
    parts = []
    for path in _once(paths):
        chosen = FORMATS[form or recognised(path)]
        if isinstance(chosen, Whole):
            raise DataError(f"{form}: reads the files of one card at once; import them")
        parts.append(_read_one(path, form, chosen, ask))
    part = joined(parts)
    stray = [key for key in ask.given if part.kind in LAWS and key not in _facts_of(part.kind)]
    if stray:
        raise DataError(f"--given {stray[0]}: rows of {part.kind} have no {stray[0]}; leave it out")
    return part


def _facts_of(law: str) -> set[str]:
    """Keys of --given that rows of a law have a use for."""
    return {*LAWS[law].columns, "dtype", "phase", "kernel_source", "op", "llm"}


def _read_one(path: Path, form: str, chosen: Format, ask: Ask) -> Part:
    """Part of one file; a failure says what the file looks like, if it is of another format."""
    try:
        return chosen.read(path, ask)
    except DataError as fault:
        try:
            looks = recognised(path) if form else form
        except M2BayesError:
            looks = form
        if looks in (form, "plain", ""):
            raise
        raise DataError(f"{fault}; it looks like a file for m2bayes import {looks}") from None


def _once(paths: Sequence[str]) -> list[Path]:
    files = [Path(path) for path in paths]
    for file in files:
        if sum(file.resolve() == other.resolve() for other in files) > 1:
            raise DataError(f"{shown(file)}: is given twice; give each file once")
    return files


def cards_of(database: Database, part: Part) -> xr.Dataset | None:
    """Datasheets of all cards of a part, dims (sku,) [SI units]; None if they are not known."""
    if "sku" not in part.rows or part.rows["sku"].isna().any():
        return None
    return database.datasheets(sorted(part.rows["sku"].astype(str).unique()))


def imported(
    database: Database,
    form: str,
    paths: Sequence[str],
    *,
    sku: str | None = None,
    given: Mapping[str, str] | None = None,
    tell: Callable[[Finding], None] = lambda finding: None,
) -> pd.DataFrame:
    """Read files of one format as a tidy table.

    Parameters
    ----------
    database : Database
        Of datasheets and LLMs.
    form : str
        A key of `FORMATS`; empty to recognise it.
    paths : sequence of str
        Files.
    sku : str, optional
        Name or alias of the card, or path of its datasheet, where the files do not say.
    given : mapping, optional
        Other facts that they do not say, by column.
    tell : callable
        Told what is left out, unused or doubtful.

    Returns
    -------
    DataFrame, dims (row,)
        Columns of a law and ``op_time`` [s], or of served runs [s], steps [s], clocks [Hz] or
        tensor activity [1]; sorted, so that row order never changes a result.

    Raises
    ------
    DataError, UnknownNameError
        If a format or card is unknown, or a file cannot be read or holds an impossible number.
    """
    chosen, database = FORMATS.get(form), database.with_cards([sku] if sku else [])
    if isinstance(chosen, Whole):
        return _whole(database, form, chosen, paths, sku)
    part = read(database, paths, form=form, sku=sku, given=given)
    if part.rows.empty:
        left = "; ".join(f"{count:,} rows of {why}" for why, count in sorted(part.left_out.items()))
        raise DataError(f"{_several(paths)}: no row that can be used: {left or 'it is empty'}")
    for finding in left_over(part) + sound(
        part, cards_of(database, part), weights_of(database, part)
    ):
        if finding.severity == "error":
            raise DataError(finding.message)
        tell(finding)
    return tidy(part)


def left_over(part: Part) -> list[Finding]:
    """Columns that nothing reads and rows that are no such measurement, dims (row,) [1]."""
    found = []
    if part.unused:
        names = ", ".join(sorted(part.unused))
        found.append(
            Finding("note", "unused", names, f"columns not read: {names}", len(part.unused))
        )
    for why, count in sorted(part.left_out.items()):
        found.append(Finding("note", "left out", why, f"{counted(count)} left out: {why}", count))
    return found


def tidy(part: Part) -> pd.DataFrame:
    """Rows of a part without their places, sorted, dims (row,) [s, Hz, W, 1]."""
    rows = part.rows.drop(columns=list(PLACE))
    if part.kind in LAWS:
        rows = rows.astype(dict.fromkeys(rows.select_dtypes("category"), object))
        origin = _several(sorted(part.raw["file"].astype(str).unique()))
        if "dtype" not in rows:
            return checked(rows, origin=origin, law=LAWS[part.kind])
        forms = [
            checked(held, origin=origin, law=LAWS[part.kind]).assign(dtype=form)
            for form, held in rows.groupby("dtype", sort=True)
        ]
        return pd.concat(forms, ignore_index=True)
    names = names_of(rows)
    text = [name for name in names if not pd.api.types.is_numeric_dtype(rows[name])]
    for name in text:
        rows[name] = rows[name].astype(object).fillna("").astype(str)
    return rows.sort_values(names, ignore_index=True)


def _whole(
    database: Database, form: str, chosen: Whole, paths: Sequence[str], sku: str | None
) -> pd.DataFrame:
    if sku is None:
        raise DataError(f"{form}: its files do not name the card; add --sku NAME")
    full = str(database.datasheets([sku])["sku"].item())
    table = chosen.read(database, _once(paths), full)
    return checked(table, origin=_several(paths), law=LAWS[chosen.law])


def _several(paths: Sequence[str]) -> str:
    return ", ".join(shown(path) for path in paths)


def read_measurements(
    path: str | Path | Sequence[str | Path],
    format: str = "",
    *,
    sku: str | None = None,
    database: Database | None = None,
    **given: Any,
) -> pd.DataFrame:
    """Measurements of one or several files as a tidy table in SI units.

    Parameters
    ----------
    path : str or Path, or a sequence of them
        CSV, Parquet, JSON or log.
    format : str
        As of ``m2bayes import``; empty to recognise it.
    sku : str, optional
        Name or alias of the card, or path of its datasheet, where the files do not say.
    database : Database, optional
        Of datasheets and LLMs; by default the installed one.
    **given
        Other facts that the files do not say, such as ``version="0.19.0"`` or ``tp=2``.

    Returns
    -------
    DataFrame, dims (row,)
        As ``m2bayes import`` writes it: times [s], clocks [Hz], powers [W], sizes [1].

    Raises
    ------
    DataError, UnknownNameError
        If a file cannot be read or holds an impossible number.
    """
    several = [path] if isinstance(path, str | Path) else list(path)
    return imported(
        database or Database(),
        format,
        [str(one) for one in several],
        sku=sku,
        given={name: str(value) for name, value in given.items()},
    )


def write(table: pd.DataFrame, target: Path, sources: Sequence[str]) -> dict[str, Any]:
    """Write an imported table, the whole file or none of it, and say what it is.

    Parameters
    ----------
    table : DataFrame, dims (row,)
        From `imported`.
    target : Path
        From `m2bayes.output.file_to_write`.
    sources : sequence of str
        The files that it comes from, which are never overwritten.

    Returns
    -------
    dict
        ``rows`` [1], ``columns``, ``sources`` with the SHA-256 of each, and ``sha256``: that of
        the file written, and what a posterior records of the table.

    Raises
    ------
    DataError, RecordError
        If the file cannot be written or is one of its sources.
    """
    if any(Path(source).resolve() == target for source in sources):
        raise DataError(f"--out {shown(target)}: is one of the files to read; name another")
    hashes = [{"file": source, "sha256": sha256(Path(source))} for source in sources]
    content = table.to_csv(index=False, float_format="%.7g").encode()
    write_whole(target, content)
    if sha256(target) != content_hash(table):
        raise RecordError(f"{shown(target)}: was changed while it was written; import again")
    return {
        "out": str(target),
        "rows": len(table),
        "columns": [str(name) for name in table.columns],
        "sha256": content_hash(table),
        "sources": hashes,
    }
