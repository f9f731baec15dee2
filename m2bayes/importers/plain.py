"""Tables of the user's own: columns by meaning, units in the header, SI where it states none."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd

from m2bayes._files import shown
from m2bayes.errors import DataError
from m2bayes.importers._labels import whose
from m2bayes.importers._meaning import Column, matched, meant, units_of, unused
from m2bayes.importers._parts import Ask, Part, hashes, in_blocks, names_of, numbers, placed
from m2bayes.importers._rows import columns
from m2bayes.mechanism.laws import LAWS

LABELS = ("sku", "backend", "version")
TIMES = ("ttft", "tpot", "e2e_time")
# kind: what a table of it must hold, and what it may; the first that fits is taken
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "steps": (("workload", "step_time"), ("tp",)),
    "eta": (("eta_active",), ("op", "kernel", "M", "N", "K", "op_time")),
    "clock": (
        ("sustained_clock",),
        ("op", "M", "N", "K", "power_limit", "boost_clock", "half_width"),
    ),
    "gemm_time": (("M", "N", "K", "op_time"), ("dtype",)),
    "attention": (("batch", "length", "heads", "kv_heads", "op_time"), ("phase", "dtype")),
    "light_time": (("kernel", "tokens", "width", "op_time"), ()),
    "allreduce_time": (("gpus", "bytes", "op_time"), ()),
    "host_time": (("kernels", "sequences", "mode", "op_time"), ()),
    "served": (
        ("tpot",),
        ("llm", "dtype", "tp", "concurrency", "input_tokens", "output_tokens", *TIMES),
    ),
}
ORDER = {  # as in the tables that come with the models
    "clock": (
        *("sku", "op", "M", "N", "K", "power_limit", "boost_clock"),
        *("sustained_clock", "half_width"),
    )
}
PHASES = {"prefill": "prefill_time", "context": "prefill_time", "decode": "decode_time"}
PHASES |= {"generation": "decode_time"}
FORMS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8": "fp8", "fp8_e4m3": "fp8"}
WHAT = (
    "sku, backend, version and the sizes of a kernel (M, N, K; batch, length, heads, kv_heads and "
    "phase; kernel, tokens, width; gpus, bytes) with op_time [s]; or workload and step_time [s]"
)


def kind_of(names: Collection[str], origin: str) -> tuple[str, dict[str, Column]]:
    """Kind of measurement that a table holds, and its columns by meaning.

    Parameters
    ----------
    names : collection of str
        Columns of the file.
    origin : str
        Where they come from, for the message.

    Raises
    ------
    DataError
        If they are of no kind, or ambiguous.
    """
    for kind, (needed, extra) in KINDS.items():
        if all(meant(names, name) for name in needed):
            used = matched(names, (*needed, *(e for e in extra if e not in needed)), origin)
            taken = {column.name for column in used.values()}
            return kind, used | matched([n for n in names if n not in taken], LABELS, origin)
    best = max(KINDS, key=lambda kind: sum(meant(names, name) for name in KINDS[kind][0]))
    missing = [name for name in KINDS[best][0] if not meant(names, name)]
    missing = missing if len(missing) < len(KINDS[best][0]) else []
    lacking = f"no column {', '.join(missing)}" if missing else "holds no measurement that is known"
    raise DataError(f"{origin}: {lacking}; needed are {WHAT}")


def read(path: Path, ask: Ask) -> Part:
    """Read a CSV or Parquet table whose header states units, such as ``time [ms]``.

    Parameters
    ----------
    path : Path
        The file.
    ask : Ask
        SKU, backend, version, phase where it does not say them.

    Returns
    -------
    Part
        Its rows in SI units [s, Hz, W, 1], dims (measurement,).

    Raises
    ------
    DataError
        If a column is missing or ambiguous, or phases are mixed.
    """
    names = columns(path)
    kind, used = kind_of(names, shown(path))
    rest = unused(names, used)
    return in_blocks(path, lambda frame: _block(frame, (kind, used, rest), ask, path))


def _block(
    frame: pd.DataFrame,
    known: tuple[str, dict[str, Column], frozenset[str]],
    ask: Ask,
    path: Path,
) -> Part:
    kind, used, rest = known
    origin = shown(path)
    texts: dict[tuple[str, int, str], str] = {}
    named = {name: used[name].name if name in used else "" for name in LABELS}
    tidy: dict[str, Any] = dict(whose(frame, ask, path, **named))
    if kind == "attention":
        kind = _phase(frame, used, ask, origin)
    for meaning, column in used.items():
        if meaning in (*LABELS, "phase"):
            continue
        if units_of(meaning):
            tidy[meaning] = numbers(frame, column.name, texts, origin) * column.factor
        else:
            tidy[meaning] = frame[column.name].fillna("").astype(str).str.strip()
    if kind in LAWS and ("dtype" in used or "dtype" in ask.given):
        said = tidy.get("dtype", pd.Series(ask.given.get("dtype", ""), index=frame.index))
        tidy["dtype"] = said.mask(said == "", ask.given.get("dtype", "")).replace(FORMS)
    time = next((used[t].name for t in ("op_time", "step_time", *TIMES) if t in used), "")
    rows = placed(pd.DataFrame(_with_kind(tidy, kind, ask), index=frame.index), origin, time)
    key = [c.name for m, c in used.items() if m not in ("op_time", "step_time", *TIMES)]
    raw = hashes(frame, origin, key, [n for n in names_of(frame) if n.lower() == "id"])
    return Part(kind, rows, raw, rest, texts=texts, key=tuple(key))


def _with_kind(tidy: dict[str, Any], kind: str, ask: Ask) -> dict[str, Any]:
    """Tidy columns in the order of their kind; a load of a clock may be given."""
    if kind in ("clock", "eta"):
        tidy = {name: cells for name, cells in tidy.items() if name not in LABELS[1:]}
        for name in ("M", "N", "K", "power_limit", "boost_clock", "half_width"):
            tidy.setdefault(name, ask.number(name))
    order = (*LAWS[kind].columns, "dtype") if kind in LAWS else ORDER.get(kind, tuple(tidy))
    return {name: tidy[name] for name in order if name in tidy}


def _named_phase(origin: str) -> str:
    """Phase that the name of a file says, if it says one."""
    said = [phase for phase in ("prefill", "decode") if phase in Path(origin).name.lower()]
    return said[0] if len(said) == 1 else ""


def _phase(frame: pd.DataFrame, used: dict[str, Column], ask: Ask, origin: str) -> str:
    """Law of attention kernels, all of one phase."""
    said = {ask.given.get("phase", "") or _named_phase(origin)}
    if "phase" in used:
        said = set(frame[used["phase"].name].fillna("").astype(str).str.strip().str.lower())
    known = {PHASES[phase] for phase in said if phase in PHASES}
    if len(known) != 1 or not said <= set(PHASES):
        raise DataError(
            f"{origin}: column phase: must be prefill in all rows, or decode in all; "
            "split the table, or add --given phase=decode"
        )
    return known.pop()
