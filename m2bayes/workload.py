"""Workloads: read from a SPEC, a CSV or a TOML; and, passed on, what they ask of a GPU."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from m2bayes._spec import Attention, Kernel, Step, Workload, build, fail, form_of
from m2bayes.gemm import gemm_cells
from m2bayes.residency import DTYPE_BYTES, kv_bytes_per_token, weight_bytes

__all__ = [
    "DTYPE_BYTES",
    "Attention",
    "Kernel",
    "Step",
    "Workload",
    "gemm_cells",
    "kv_bytes_per_token",
    "parse_workload",
    "read_workload_rows",
    "read_workload_toml",
    "weight_bytes",
]

_shown = reprlib.Repr(maxstring=120).repr


def parse_workload(spec: str) -> Workload:
    """Read one SPEC, ``kind:key=number,…``; see `Step`, `Kernel`, `Attention` for the keys.

    Parameters
    ----------
    spec : str
        ``decode:batch=64,context=2048``, ``prefill:tokens=4096[,context=0,batch=1]``,
        ``mixed:prefill=512,batch=64,context=2048``, ``gemm:m=64,n=6144,k=4096`` or
        ``attention:phase=decode,batch=64,context=2048,heads=32,kv_heads=8``; sizes
        [token], of a gemm [1]: whole numbers up to 1e6 (batch), 1e8 (others), 1e7 (of a gemm).

    Returns
    -------
    Step or Kernel
        The workload, no dims; its `label` is the canonical SPEC.

    Raises
    ------
    WorkloadError
        If kind or key is unknown, a key is missing or given twice, or a number is out of range.

    Examples
    --------
    >>> parse_workload("prefill:tokens=4096,context=0").label
    'prefill:tokens=4096'
    """
    where = f"workload {_shown(spec)}"
    if not isinstance(spec, str) or not spec.strip():
        fail(where, "expected kind:key=number,…")
    kind, _, body = (part.strip() for part in spec.partition(":"))
    example, _ = form_of(kind, where)
    given: dict[str, str] = {}
    for entry in body.split(","):
        key, equals, number = (part.strip() for part in entry.partition("="))
        if body and not entry.strip():
            fail(where, "an entry is empty; remove the stray comma", example)
        if not equals or not key:
            fail(where, f"expected key=number, got {_shown(entry)}", example)
        if key in given:
            fail(where, f"{key} is given twice", example)
        given[key] = number
    return build(kind, given, where)


def read_workload_rows(rows: Iterable[Mapping[str, str]], origin: str) -> list[Workload]:
    """Read a table with a ``kind`` column and one column a key, as ``csv.DictReader`` yields it.

    Parameters
    ----------
    rows : iterable of Mapping
        One workload a row [token]; an empty cell means that the key is absent.
    origin : str
        Name of the file, for messages, which also give the line (the header is line 1).

    Returns
    -------
    list of Step or Kernel
        In the order of the rows, no dims.

    Raises
    ------
    WorkloadError
        If there is no row, or one cannot be read; reading stops at the first.

    Examples
    --------
    >>> rows = [{"kind": "gemm", "m": "1", "n": "2", "k": "3"}]
    >>> [workload.label for workload in read_workload_rows(rows, "a.csv")]
    ['gemm:m=1,n=2,k=3']
    """
    names = [name.strip() for name in getattr(rows, "fieldnames", None) or ()]
    for name in names:
        if name and names.count(name) > 1:
            fail(origin, f"two columns named {_shown(name)}; keep one")
    if len(names) == 1 and ";" in names[0]:
        fail(origin, "columns are separated by ';'; write commas")
    if names and "kind" not in names:
        fail(origin, "the header has no column kind; add one, with decode and so on under it")
    found = []
    for number, row in enumerate(rows, start=2):
        where = f"{origin} line {getattr(rows, 'line_num', number)}"
        found.append(_from_mapping(row, where))
    if not found:
        fail(origin, "holds no workload; expected a header with a kind column, and rows under it")
    return found


def read_workload_toml(doc: Mapping[str, Any], origin: str) -> list[Workload]:
    """Read the ``[[workload]]`` tables of a parsed TOML document.

    Parameters
    ----------
    doc : Mapping
        ``{"workload": [{"kind": "decode", "batch": 64, "context": 2048}, …]}``; sizes [token].
    origin : str
        Name of the file, for messages, which also give the table's place, from 1.

    Returns
    -------
    list of Step or Kernel
        In the order of the tables, no dims.

    Raises
    ------
    WorkloadError
        If there is no such table, or anything else beside them, or one cannot be read.

    Examples
    --------
    >>> doc = {"workload": [{"kind": "prefill", "tokens": 9}]}
    >>> [workload.label for workload in read_workload_toml(doc, "a.toml")]
    ['prefill:tokens=9']
    """
    tables = doc.get("workload")
    whole = isinstance(tables, list) and all(isinstance(t, Mapping) for t in tables)
    if not tables or not whole or set(doc) != {"workload"}:
        fail(origin, 'expected [[workload]] tables with kind = "decode" and so on, nothing else')
    return [_from_mapping(t, f"{origin} workload {i}") for i, t in enumerate(tables, start=1)]


def _from_mapping(row: Mapping[str, Any], where: str) -> Workload:
    if None in row:
        fail(where, "more cells than the header has columns")
    given = {k.strip(): v for k, v in row.items() if v is not None}
    if len(given) < sum(v is not None for v in row.values()):
        fail(where, "a key is given twice but for blanks; keep one")
    given = {k: v for k, v in given.items() if not isinstance(v, str) or v.strip()}
    kind = given.pop("kind", "")
    if not isinstance(kind, str):
        fail(where, "kind must be text")
    return build(kind.strip(), given, where)
