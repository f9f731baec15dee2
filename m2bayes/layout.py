"""Tables of text no wider than the terminal: what gives way first, and what never does."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

GAP = "  "
SPARED = 3  # signs of a line that take two columns where the encoding lacks them
NARROWEST = 40  # columns of a terminal that tables are still fitted to
ERROR = re.compile(r" ± [-+0-9.,e]+")  # Monte Carlo error inside a cell
PIECE = re.compile(r"[^\s,]*,|[^\s,]+|,")  # what a cell may be broken after
_Cells = list[list[str]]


def width() -> int:
    """Columns of the terminal [1]: COLUMNS where set, 80 where there is no terminal.

    Where the output's encoding has no ±, which then takes two columns, there are fewer.
    """
    columns = max(shutil.get_terminal_size().columns, NARROWEST)
    try:
        "±".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return columns - SPARED
    return columns


def wrapped(text: str, indent: str = "") -> str:
    """Text of one or several lines, each broken at blanks to fit, its continuation indented."""
    return "\n".join(
        textwrap.fill(
            line,
            width(),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def columns(rows: Sequence[dict[str, Any]], indent: str = "") -> str:
    """Align the rows' values under their keys; numbers to the right.

    A table that is too wide gives way in this order: headings take several lines; columns that
    hold the same in all rows are said once above; text is broken into lines; Monte Carlo errors
    are left out; the table is broken in two, the first column in both. A single row is a sentence.

    Parameters
    ----------
    rows : sequence of dict
        All with the same keys [units in the cells].
    indent : str
        Before each line.

    Examples
    --------
    >>> print(columns([{"SKU": "a", "p": "1 %"}, {"SKU": "b", "p": "99 %"}]))
    SKU     p
    a     1 %
    b    99 %
    """
    if not rows:
        return f"{indent}(none)"
    names = [*rows[0]]
    table = [[str(row[name]) for row in rows] for name in names]  # one list a column
    right = [all(c == "-" or c.lstrip("+-")[:1].isdigit() for c in column) for column in table]
    room, said = width() - len(indent), []
    heads = _headings(names, table, room)
    if _wide(heads, table) > room and len(rows) == 1:
        pairs = (f"{name}: {cells[0]}" for name, cells in zip(names, table, strict=True))
        return wrapped(indent + "; ".join(pairs), indent + GAP)
    while _wide(heads, table) > room and (at := _constant(table)):
        said.append(f"{names[at]}: {table[at][0]}")
        for held in (names, table, right):
            del held[at]
        heads = _headings(names, table, room)
    if _wide(heads, table) > room:
        table = _narrowed(heads, table, right, room)
    if _wide(heads, table) > room:
        table = [[ERROR.sub("", cell) for cell in column] for column in table]
        heads = _headings(names, table, room)
    blocks = [wrapped(indent + "; ".join(said[::-1]), indent)] if said else []
    parts = _parts(heads, table, room)
    for part in parts:
        own = [heads[i] for i in part], [table[i] for i in part], [right[i] for i in part]
        blocks.append(_aligned(*own, indent))
    return "\n\n".join(blocks) if len(parts) > 1 else "\n".join(blocks)


def _wide(heads: _Cells, table: _Cells) -> int:
    """Columns that a table takes [1]."""
    return sum(map(_width, heads, table)) + len(GAP) * (len(table) - 1)


def _width(head: Sequence[str], column: Sequence[str]) -> int:
    return max(len(line) for text in (*head, *column) for line in text.split("\n"))


def _headings(names: Sequence[str], table: _Cells, room: int) -> _Cells:
    """Lines of each heading: no more than it takes to fit."""
    heads: _Cells = []
    for lines in range(1, 1 + max(1, *(len(name.split()) for name in names))):
        heads = [_heading(name, column, lines) for name, column in zip(names, table, strict=True)]
        if _wide(heads, table) <= room:
            break
    return heads


def _heading(name: str, column: Sequence[str], lines: int) -> list[str]:
    """A heading in some lines, as narrow as its words and the cells below it allow."""
    most = max(_width([], column), *(len(word) for word in name.split() or [""]))
    while len(found := textwrap.wrap(name, most, break_on_hyphens=False)) > lines:
        most += 1
    return found or [""]


def _constant(table: _Cells) -> int:
    """Place of the last column but the first that holds the same in several rows; 0 for none."""
    same = (i for i in range(len(table) - 1, 0, -1) if len(set(table[i])) == 1)
    return next(same, 0) if len(table[0]) > 1 else 0


def _narrowed(heads: _Cells, table: _Cells, right: Sequence[bool], room: int) -> _Cells:
    """Table whose widest columns of text are broken into lines, as far as is needed."""
    table = [[*column] for column in table]
    fixed: set[int] = set()
    while (over := _wide(heads, table) - room) > 0:
        able = [i for i in range(len(table)) if not right[i] and i not in fixed]
        if not able:
            break
        at = max(able, key=lambda i: _width(heads[i], table[i]))
        have = _width(heads[at], table[at])
        table[at] = [_broken(cell, max(have - over, 1)) for cell in table[at]]
        if _width(heads[at], table[at]) >= have or over > 0:
            fixed.add(at)
    return table


def _broken(cell: str, most: int) -> str:
    """Cell in lines of at most `most` columns, broken at blanks and after commas."""
    lines = [""]
    for found in PIECE.finditer(cell.replace("\n", " ")):
        gap = " " if found.start() and cell[found.start() - 1] in " \n" else ""
        piece = found[0]
        if lines[-1] and len(lines[-1]) + len(gap) + len(piece) > most:
            lines.append(piece)
        else:
            lines[-1] += (gap if lines[-1] else "") + piece
    return "\n".join(lines)


def _parts(heads: _Cells, table: _Cells, room: int) -> list[list[int]]:
    """Columns of each of the tables that one is broken into; the first is in all."""
    widths = [_width(*pair) for pair in zip(heads, table, strict=True)]
    parts, held = [[0]], widths[0]
    for i in range(1, len(table)):
        if held + len(GAP) + widths[i] > room and len(parts[-1]) > 1:
            parts.append([0])
            held = widths[0]
        parts[-1].append(i)
        held += len(GAP) + widths[i]
    return parts


def _aligned(heads: _Cells, table: _Cells, right: Sequence[bool], indent: str) -> str:
    """Lines of a table whose cells and headings may have several; headings stand at the bottom."""
    widths = [_width(*pair) for pair in zip(heads, table, strict=True)]
    deepest = max(map(len, heads))
    lines = [[""] * (deepest - len(head)) + head for head in heads]
    for row in zip(*table, strict=True):
        cells = [cell.split("\n") for cell in row]
        most = max(map(len, cells))
        for column, cell in zip(lines, cells, strict=True):
            column.extend(cell + [""] * (most - len(cell)))
    joined = (
        GAP.join(
            c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)
        )
        for line in zip(*lines, strict=True)
    )
    return "\n".join((indent + line).rstrip() for line in joined)
