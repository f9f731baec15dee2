"""A file of measurements or a datasheet, checked before it is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from m2bayes._files import shown
from m2bayes.database import FOLDERS, Database, read_card
from m2bayes.datasheet import lint as lint_card
from m2bayes.errors import DataError, M2BayesError
from m2bayes.importers._parts import Part
from m2bayes.importers.formats import FORMATS, Format
from m2bayes.importing import cards_of, left_over, read
from m2bayes.linting import disagreement, tails
from m2bayes.linting.cards import doubts
from m2bayes.linting.floors import sound, weights_of
from m2bayes.linting.plausible import Finding, counted
from m2bayes.mechanism.laws import LAWS


def linted(
    database: Database,
    files: Sequence[str],
    *,
    sku: str | None = None,
    given: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Everything wrong with some files.

    Parameters
    ----------
    database : Database
        Of datasheets, posteriors and LLMs.
    files : sequence of str
        Datasheet cards (JSON) or measurements (CSV, Parquet, JSON, logs).
    sku : str, optional
        The card of measurements whose file does not name it.
    given : mapping, optional
        Other facts that the files do not say, by column.
    tell : callable
        Told what is being done.

    Returns
    -------
    list of dict
        ``severity``, ``place``, ``message``, ``file``; of measurements also ``rule``, ``count``
        [1] and ``rows``, in an order that does not depend on that of the rows.

    Raises
    ------
    DataError, DatasheetError
        If a file cannot be read at all.
    """
    files = list(dict.fromkeys(files))
    cards = {file: card for file in files if (card := _card(file)) is not None}
    found = []
    for file in files:
        if file in cards:
            found += _of_card(database, file, cards)
        else:
            told = measurements(database, file, sku=sku, given=given, tell=tell)
            found += [asdict(finding) | {"file": file} for finding in told]
    return found


def _card(file: str) -> Mapping[str, Any] | None:
    """Content of a datasheet card; None for a file of measurements."""
    if Path(file).suffix.lower() != ".json":
        return None
    content = read_card(Path(file))
    if "facts" in content or "form_factor" in content:
        return content
    names = frozenset(content)
    known = (f for n, f in FORMATS.items() if isinstance(f, Format) and n != "plain")
    return None if any(form.suits(names) for form in known) else content


def _of_card(
    database: Database, file: str, cards: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    folder = database.root / FOLDERS["sku"]
    known: dict[str, Mapping[str, Any]] = {
        os.path.realpath(folder / f"{n}.json"): database.sku_card(n)[0] for n in database.skus()
    }
    known |= {os.path.realpath(other): card for other, card in cards.items()}
    others = [card for path, card in known.items() if path != os.path.realpath(file)]
    found = lint_card(cards[file], origin=file, others=others)
    if not any(f.severity == "error" for f in found):
        found += doubts(cards[file], origin=file, others=others)
    return [asdict(f) | {"file": file} for f in found]


def measurements(
    database: Database,
    file: str,
    *,
    sku: str | None = None,
    given: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Finding]:
    """Everything wrong with one file of measurements [s, Hz, W, 1].

    Parameters
    ----------
    database : Database
        Of datasheets, posteriors and LLMs.
    file : str
        CSV, Parquet, JSON or log.
    sku : str, optional
        The card, where the file does not name it; without it neither floors nor the posterior
        predictive are looked at.
    given : mapping, optional
        Other facts that the file does not say, by column.
    tell : callable
        Told what is being done.

    Returns
    -------
    list of Finding
        Errors first.

    Raises
    ------
    DataError
        If the file cannot be read at all.
    """
    database = database.with_cards([sku] if sku else [])
    part, unnamed = _read(database, file, sku, given)
    sheets = None if unnamed else _sheets(database, part)
    found = sound(part, sheets, weights_of(database, part))
    if not any(finding.severity == "error" for finding in found):
        if part.kind == "served":
            found += disagreement.served(part)
        elif part.kind in LAWS and sheets is not None:
            tell(f"{shown(file)}: holding {counted(len(part.rows))} against the posterior")
            found += tails.kernels(database, part, sheets)
    if "unknown SKU" in unnamed:
        found.append(Finding("error", "card", "sku", unnamed))
    elif unnamed and part.kind in LAWS:
        text = f"{shown(file)}: names no card; add --sku NAME to hold it against its datasheet"
        found.append(Finding("note", "card", "sku", text))
    found += [replace(f, message=f"{shown(file)}: {f.message}") for f in left_over(part)]
    rank = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda finding: rank[finding.severity])


def _read(
    database: Database, file: str, sku: str | None, given: Mapping[str, str] | None
) -> tuple[Part, str]:
    """Part of a file, and why its card is not known, if it is not."""
    try:
        return read(database, [file], sku=sku, given=given), ""
    except DataError as fault:
        if sku is not None or "add --sku NAME" not in str(fault):
            raise
        unnamed = str(fault)
    stand_in = database.skus()[0]
    return read(database, [file], sku=stand_in, given=given), unnamed


def _sheets(database: Database, part: Part) -> Any:
    try:
        return cards_of(database, part)
    except M2BayesError:
        return None
