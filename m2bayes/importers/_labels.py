"""Whose measurements they are: card, backend and version, from the file or from the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from m2bayes._files import shown
from m2bayes.database import Database
from m2bayes.errors import DataError, UnknownNameError
from m2bayes.importers._parts import UNKNOWN, Ask, card_named

OWN = "or add --sku NAME, of a card of your own its datasheet"


def cards(cells: pd.Series, ask: Ask, origin: str, column: str) -> pd.Series:
    """Full SKU names of a column of devices, dims (row,), without unit [1].

    Parameters
    ----------
    cells : Series, dims (row,)
        Names as a file has them; empty where it says nothing.
    ask : Ask
        Its SKU stands where the file says nothing, and must agree where it does.
    origin, column : str
        For the message.

    Raises
    ------
    DataError, UnknownNameError
        If a device is no known card, is another card than the one given, or nothing names it.
    """
    text = cells.fillna("").astype(str).str.strip()
    names: dict[str, str] = {}
    for device in text.unique():
        where = f"{origin}: row {int(text.index[text == device][0])}, column {column}"
        if not device and ask.sku is None:
            raise DataError(f"{where}: names no card; add --sku NAME")
        names[device] = ask.sku if not device else _card(device, ask, where)  # type: ignore[assignment]
    return text.map(names)


def _card(device: str, ask: Ask, where: str) -> str:
    try:
        name = _known(ask.database, device)
    except UnknownNameError as fault:
        if ask.sku is not None:
            return ask.sku
        raise DataError(f"{where}: {fault} ({OWN})") from None
    if ask.sku is not None and name != ask.sku:
        raise DataError(
            f"{where}: {device[:60]!a} is {name}, not --sku {ask.sku}; give the right one"
        )
    return name


def _known(database: Database, device: str) -> str:
    if not device.lower().endswith(".json"):  # a path is no name
        with suppress(UnknownNameError):
            return str(database.sku_card(device)[0]["name"])
    return card_named(database, device)


def whose(
    frame: pd.DataFrame,
    ask: Ask,
    path: Path,
    *,
    sku: str = "",
    backend: str = "",
    version: str = "",
    default: Sequence[str] = (UNKNOWN, UNKNOWN),
) -> dict[str, pd.Series]:
    """Columns ``sku``, ``backend`` and ``version`` of tidy rows, dims (row,), without unit [1].

    Parameters
    ----------
    frame : DataFrame, dims (row,)
        A block of a file.
    ask : Ask
        What the file does not say.
    path : Path
        The file, for the message.
    sku, backend, version : str
        Columns that hold them, empty where there is none.
    default : sequence of str
        Backend and version where neither file nor user says them.

    Raises
    ------
    DataError
        If nothing names the card.
    """
    empty = pd.Series("", index=frame.index, dtype=object)
    origin = shown(path)
    found = {"sku": cards(frame[sku] if sku else empty, ask, origin, sku or "sku")}
    named: Mapping[str, str] = {"backend": backend, "version": version}
    for (label, column), otherwise in zip(named.items(), default, strict=True):
        said = ask.given.get(label, otherwise)
        text = (frame[column] if column else empty).fillna("").astype(str).str.strip()
        found[label] = text.mask(text == "", said)
    found["backend"] = found["backend"].str.lower()
    return found
