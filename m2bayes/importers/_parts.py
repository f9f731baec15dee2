"""What a reader makes of a file: tidy rows in SI units, where each came from, what was left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from m2bayes._files import shown
from m2bayes.database import Database
from m2bayes.errors import DataError, UnknownNameError
from m2bayes.importers._rows import MOST_ROWS, columns, frames

UNKNOWN = "unknown"  # backend or version that no file and nobody says
PLACE = ("file", "row", "column")  # bookkeeping columns of tidy rows
MOST_TEXTS = 20  # cells that are no numbers and are kept to be shown


@dataclass(frozen=True)
class Ask:
    """What the files do not say.

    Parameters
    ----------
    database : Database
        Of datasheets and LLMs.
    sku : str or None
        Full name of the card.
    given : mapping
        Other facts, by column, as text.
    """

    database: Database
    sku: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str) -> float:
        """Return a given fact as a number, NaN where it is not given.

        Raises
        ------
        DataError
            If it is no number.
        """
        text = self.given.get(name)
        try:
            value = np.nan if text is None else float(text)
        except ValueError:
            value = np.inf
        if np.isinf(value):
            raise DataError(f"--given {name}={text!a}: is no finite number")
        return value


@dataclass(frozen=True)
class Part:
    """Measurements of one or several files.

    Parameters
    ----------
    kind : str
        What they are: a law of `m2bayes.mechanism.laws.LAWS`, or ``served``, ``steps``,
        ``clock``, ``eta``.
    rows : DataFrame, dims (measurement,)
        Columns of the kind, and `PLACE`: file, row, column that a number came from.
    raw : DataFrame, dims (row,)
        Of each row of the files ``file``, ``row``, and hashes of all its cells but the id
        (``whole``) and of its configuration (``key``).
    unused : frozenset of str
        Columns that nothing reads.
    left_out : mapping
        Number of rows that are no such measurement, by the reason.
    texts : mapping
        (file, row, column) of cells that are no numbers, and what they hold.
    key : tuple of str
        Columns of the configuration.
    """

    kind: str
    rows: pd.DataFrame
    raw: pd.DataFrame
    unused: frozenset[str] = frozenset()
    left_out: Mapping[str, int] = field(default_factory=dict)
    texts: Mapping[tuple[str, int, str], str] = field(default_factory=dict)
    key: tuple[str, ...] = ()


def numbers(
    frame: pd.DataFrame, name: str, texts: dict[tuple[str, int, str], str], origin: str
) -> pd.Series:
    """Column of a frame as numbers, dims (row,) [unit of the column]; NaN where it holds none."""
    cells = frame[name]
    if cells.dtype == object:
        stripped = cells.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
        empty = stripped.map(lambda cell: isinstance(cell, str) and not cell)
        cells = stripped.mask(empty, None)
    found = pd.to_numeric(cells, errors="coerce").astype(float)
    for row in frame.index[(found.isna() & cells.notna()).to_numpy()]:
        if len(texts) >= MOST_TEXTS:
            break
        texts.setdefault((origin, int(row), name), str(frame[name].loc[row]))
    return found


def hashes(frame: pd.DataFrame, origin: str, key: Sequence[str], ids: Sequence[str]) -> Any:
    """Frame of `Part.raw`, dims (row,) [1], of a block of a file."""
    text = frame.astype(str)
    whole = text[[name for name in names_of(frame) if name not in ids]]
    return pd.DataFrame(
        {
            "file": pd.Categorical([origin] * len(frame)),
            "row": frame.index.to_numpy(),
            "key": _hash(text[[name for name in key if name in frame]]),
            "whole": _hash(whole),
        }
    )


def _hash(text: pd.DataFrame) -> np.ndarray:
    if text.shape[1] == 0:
        return np.zeros(len(text), dtype="uint64")
    return pd.util.hash_pandas_object(text, index=False, categorize=True).to_numpy()


def names_of(frame: pd.DataFrame) -> list[str]:
    """Names of the columns of a frame, no dims [1]."""
    return [str(name) for name in frame]


def placed(rows: pd.DataFrame, origin: str, column: str) -> pd.DataFrame:
    """Tidy rows with their place, dims (row,) [1]; their index is the row of the file."""
    return rows.assign(
        file=pd.Categorical([origin] * len(rows)),
        row=rows.index.to_numpy(),
        column=pd.Categorical([column] * len(rows)),
    )


def joined(parts: Sequence[Part]) -> Part:
    """All parts as one.

    Raises
    ------
    DataError
        If they are of different kinds.
    """
    kinds = {part.kind for part in parts}
    if len(kinds) > 1:
        raise DataError(f"the files hold {' and '.join(sorted(kinds))}; import each kind by itself")
    left_out: dict[str, int] = {}
    for part in parts:
        for why, count in part.left_out.items():
            left_out[why] = left_out.get(why, 0) + count
    return Part(
        kind=parts[0].kind,
        rows=_together([part.rows for part in parts]),
        raw=_together([part.raw for part in parts]),
        unused=frozenset.union(*(part.unused for part in parts)),
        left_out=left_out,
        texts={place: cell for part in parts for place, cell in part.texts.items()},
        key=parts[0].key,
    )


def _together(frames_: Sequence[pd.DataFrame]) -> pd.DataFrame:
    held = [frame for frame in frames_ if len(frame)] or list(frames_[:1])
    whole = pd.concat(held, ignore_index=True)
    text = [name for name in whole if whole[name].dtype == object or name in PLACE[::2]]
    return whole.astype(dict.fromkeys(text, "category"))


def in_blocks(path: Path, read: Callable[[pd.DataFrame], Part], *, skip: int = 0) -> Part:
    """Read a file block by block.

    Parameters
    ----------
    path : Path
        A CSV or Parquet file.
    read : callable
        Turns one block, dims (row,) [units of the file], into a part.
    skip : int
        As of `m2bayes.importers._rows.frames`.

    Raises
    ------
    DataError
        If the file is no table, or holds more rows than a fit could ever use.
    """
    parts, held = [], 0
    for part in _counted(frames(path, skip=skip), read):
        held += len(part.rows)
        if held > MOST_ROWS:
            raise DataError(
                f"{shown(path)}: holds more than {MOST_ROWS:,} measurements, at row "
                f"{int(part.raw['row'].iloc[-1]):,}; a fit reads a few thousand: thin or split it"
            )
        parts.append(part)
    return joined(parts)


def _counted(
    blocks: Iterator[pd.DataFrame], read: Callable[[pd.DataFrame], Part]
) -> Iterator[Part]:
    for block in blocks:
        yield read(block)


def require(path: Path, wanted: Sequence[str], what: str) -> list[str]:
    """Columns of a file that has all that are wanted.

    Raises
    ------
    DataError
        Names the missing ones.
    """
    names = columns(path)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(f"{shown(path)}: no column {', '.join(missing)}; give {what}")
    return names


def card_named(database: Database, device: str) -> str:
    """Full name of the card that a driver or a benchmark calls `device`.

    Parameters
    ----------
    database : Database
        Of datasheets.
    device : str
        Such as ``NVIDIA A100-SXM4-80GB`` or ``h200_sxm``.

    Raises
    ------
    UnknownNameError
        If no card, or more than one, can be meant.
    """
    words = "".join(c if c.isalnum() else " " for c in device.lower()).split()
    found: list[tuple[str, list[str]]] = []
    for name in database.skus():
        *chip, memory, form = name.lower().split("-")
        forms = [w for w in words if w.startswith(("sxm", "pcie", "nvl"))]
        sizes = [w for w in words if w.endswith("gb") and w[:-2].isdigit()]
        if not set(chip) <= set(words) or (sizes and memory not in sizes):
            continue
        if forms and not forms[0].startswith(form):
            continue
        found.append((name, database.sku_card(name)[0]["aliases"]))
    if len(found) > 1:
        plain = [(name, aliases) for name, aliases in found if set(aliases) & set(words)]
        found = plain or found
    if len(found) != 1:
        raise UnknownNameError("SKU", device, database.skus())
    return found[0][0]
