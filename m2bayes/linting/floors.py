"""Times that no card can reach: floors from the datasheet, and what a time below one may mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.database import Database
from m2bayes.errors import M2BayesError
from m2bayes.importers._meaning import understood
from m2bayes.importers._parts import Part
from m2bayes.linting.plausible import (
    Finding,
    counted,
    named_rows,
    origin_of,
    repeats,
    values,
    versions,
)
from m2bayes.mechanism.light import PASSES
from m2bayes.mechanism.roofline import activation_traffic, gemm_flops, weight_traffic
from m2bayes.residency import weight_bytes

NOTHING = 1e-5  # [s] that even an empty kernel may take in a benchmark
TOO_SLOW = 30.0  # times the roofline that half of a table takes only in another unit
LADDER = ("s", "ms", "us", "ns")
SLACK = 0.97  # of a floor, for rounding and the clock's own tolerance
HEAD = 128  # elements of an attention head that the laws hold for
ITEM = 2.0  # [byte] of bf16
WIDTHS = {"bf16": 1.0, "fp16": 1.0, "fp8": 0.5, "int8": 0.5, "fp4": 0.25, "int4": 0.25}
Arrays = Mapping[str, np.ndarray]


def _gemm(rows: Arrays) -> tuple[np.ndarray, np.ndarray]:
    M, N, K = rows["M"], rows["N"], rows["K"]
    return gemm_flops(M, N, K), weight_traffic(N, K) + activation_traffic(M, N, K)


def _prefill(rows: Arrays) -> tuple[np.ndarray, np.ndarray]:
    pairs = rows["batch"] * rows["heads"] * rows["length"] ** 2 / 2
    size = ITEM * HEAD * rows["batch"] * rows["length"]
    return 4 * HEAD * pairs, 2 * size * (rows["heads"] + rows["kv_heads"])


def _decode(rows: Arrays) -> tuple[np.ndarray, np.ndarray]:
    cache = 2 * ITEM * HEAD * rows["batch"] * rows["length"] * rows["kv_heads"]
    return 4 * HEAD * rows["batch"] * rows["length"] * rows["heads"], cache


def _light(rows: Arrays) -> tuple[np.ndarray, np.ndarray]:
    passes = pd.Series(rows["kernel"].astype(str)).map(PASSES).fillna(1.0).to_numpy(dtype=float)
    return 0.0 * rows["tokens"], passes * ITEM * rows["tokens"] * rows["width"]


WORK: dict[str, Callable[[Arrays], tuple[np.ndarray, np.ndarray]]] = {
    "gemm_time": _gemm,
    "prefill_time": _prefill,
    "decode_time": _decode,
    "light_time": _light,
}


def floors(part: Part, sheets: xr.Dataset) -> pd.DataFrame:
    """Times below which no card can do the work of each row, dims (measurement,) [s].

    Parameters
    ----------
    part : Part
        Kernels of one law.
    sheets : Dataset, dims (sku,)
        Datasheets of all its cards.

    Returns
    -------
    DataFrame, dims (measurement,)
        ``compute``: all tensor cores at the boost clock; ``memory``: what L2 cannot hold at the
        peak bandwidth; ``cold``: all bytes at the peak bandwidth [s].
    """
    rows = {str(name): part.rows[name].to_numpy() for name in part.rows}
    at = sheets.sel(sku=part.rows["sku"].astype(str).to_numpy())
    if part.kind == "allreduce_time":
        link = rows["bytes"] / at["interconnect_bandwidth"].values
        return pd.DataFrame({"compute": 0.0 * link, "memory": link, "cold": link})
    flops, traffic = WORK[part.kind](rows)
    peak = (at["tensor_flop_per_clock"] * at["sm_count"] * at["boost_clock"]).values
    bandwidth = at["peak_bandwidth"].values
    return pd.DataFrame(
        {
            "compute": flops / peak,
            "memory": np.maximum(traffic - at["l2"].values, 0) / bandwidth,
            "cold": traffic / bandwidth,
        }
    )


def physical(part: Part, sheets: xr.Dataset | None) -> list[Finding]:
    """Times that no card can reach, or that only another unit explains; and the likely cause.

    Parameters
    ----------
    part : Part
        From a reader, its values sound; dims (measurement,) [s].
    sheets : Dataset, dims (sku,), or None
        Datasheets of all its cards; without them nothing is said.
    """
    if sheets is None or part.kind not in (*WORK, "allreduce_time"):
        return []
    floor = floors(part, sheets)
    time = part.rows["op_time"].to_numpy(dtype=float)
    least = floor[["compute", "memory"]].max(axis=1).to_numpy()
    ratio = time / (floor[["compute", "cold"]].max(axis=1).to_numpy() + NOTHING)
    found = [*_slow(part, ratio)]
    impossible = time < SLACK * least
    if impossible.any():
        found.append(_impossible(part, impossible, least, time, floor))
    warm = ~impossible & (time < SLACK * floor["cold"].to_numpy())
    if warm.any() and part.kind != "allreduce_time":
        count = int(warm.sum())
        text = (
            f"{origin_of(part)}: {counted(count)} faster than the memory: operands come from "
            "L2; a benchmark of warm kernels, not a served step"
        )
        found.append(
            Finding("note", "warm cache", "op_time", text, count, named_rows(part.rows[warm]))
        )
    return found


def _slow(part: Part, ratio: np.ndarray) -> Iterator[Finding]:
    """Columns half of whose rows take far longer than the card needs."""
    for (file, column), at in sorted(_groups(part).items()):
        middle = float(np.median(ratio[at]))
        if middle > TOO_SLOW:
            unit = _smaller(column, 1 if middle < 2e4 else 2)
            yield Finding(
                "error",
                "unit",
                column,
                f"{file}: column {column}: half of the rows take {middle:,.0f} times what the card "
                f"needs or more; are they in {unit}? write the unit: time [{unit}]",
                len(at),
            )


def _smaller(column: str, by: int) -> str:
    """Unit of time that is `by` thousands [1] smaller than the one that a header states.

    >>> _smaller("time", 1), _smaller("time [ms]", 1), _smaller("latency_us", 2)
    ('ms', 'us', 'ns')
    """
    known = understood(column, "op_time") or understood(column, "step_time")
    stated = round(-np.log10(known.factor if known else 1.0) / 3)
    return LADDER[min(stated + by, len(LADDER) - 1)]


def _groups(part: Part) -> dict[tuple[str, str], np.ndarray]:
    labels = part.rows["file"].astype(str) + "\n" + part.rows["column"].astype(str)
    codes, names = pd.factorize(labels, sort=True)
    return {
        (str(n).split("\n")[0], str(n).split("\n")[1]): np.flatnonzero(codes == i)
        for i, n in enumerate(names)
    }


def _impossible(
    part: Part, bad: np.ndarray, least: np.ndarray, time: np.ndarray, floor: pd.DataFrame
) -> Finding:
    """Error of all rows under the floor: names the worst one and what it may come from."""
    short = np.where(bad, least / np.maximum(time, 1e-300), 0.0)
    order = np.lexsort((part.rows["row"].to_numpy(), -short))
    at = int(order[0])
    row, ratio = part.rows.iloc[at], float(short[at])
    if ratio > 50:
        cause = "another unit (seconds read as milliseconds?)"
    elif floor["compute"].iloc[at] >= floor["memory"].iloc[at]:
        cause = "a narrower dtype, or tensor parallelism, that the table does not say"
    else:
        cause = "tensor parallelism or a narrower dtype that the table does not say, or a cache"
    count = int(bad.sum())
    more = f" (and {count - 1:,} more)" if count > 1 else ""
    text = (
        f"{row['file']}: row {row['row']}, column {row['column']}: {time[at]:.3g} s is {ratio:.3g} "
        f"times faster than {row['sku']} can be ({least[at]:.3g} s); likely {cause}{more}"
    )
    return Finding(
        "error", "impossible", str(row["column"]), text, count, named_rows(part.rows[bad])
    )


def weights_of(database: Database, part: Part) -> dict[str, float]:
    """Bytes of the bf16 weights of each known LLM of served runs, dims (measurement,) [byte]."""
    found = {}
    names = part.rows["llm"].astype(str).unique() if "llm" in part.rows else ()
    for name in names:
        with suppress(M2BayesError):
            short = name.rpartition("/")[2].lower()
            found[name] = weight_bytes(database.llm(short))
    return found


def served(part: Part, sheets: xr.Dataset | None, weights: Mapping[str, float]) -> list[Finding]:
    """Served runs whose time per output token is below one reading of the weights.

    Parameters
    ----------
    part : Part
        Served runs, dims (measurement,) [s].
    sheets : Dataset, dims (sku,), or None
        Datasheets of their cards; without them nothing is said.
    weights : mapping
        From `weights_of` [byte].
    """
    rows = part.rows
    if sheets is None or part.kind != "served" or "tpot" not in rows or not weights:
        return []
    size = rows["llm"].astype(str).map(weights).to_numpy(dtype=float)
    dtype = rows["dtype"].astype(str).str.lower() if "dtype" in rows else pd.Series("", rows.index)
    share = dtype.map(WIDTHS).fillna(min(WIDTHS.values())).to_numpy(dtype=float)
    tp = rows["tp"].to_numpy(dtype=float) if "tp" in rows else np.full(len(rows), np.nan)
    told = np.isfinite(tp)
    at = sheets.sel(sku=rows["sku"].astype(str).to_numpy())
    read = size * share / np.where(told, tp, 1.0) - at["l2"].values
    least = np.maximum(np.nan_to_num(read), 0.0) / at["peak_bandwidth"].values
    time = rows["tpot"].to_numpy(dtype=float)
    found = []
    for bad, severity, cause in (
        (told, "error", "another unit, dtype or tp"),
        (~told, "warning", "several GPUs share the LLM: add a column tp"),
    ):
        fast = bad & (time < SLACK * least)
        if fast.any():
            worst = int(np.argmax(np.where(fast, least / time, 0.0)))
            row = rows.iloc[worst]
            text = (
                f"{row['file']}: row {row['row']}, tpot: {row['tpot']:.3g} s is less than "
                f"{row['sku']} takes to read the weights once ({least[worst]:.3g} s); likely "
                f"{cause} ({counted(int(fast.sum()))})"
            )
            count, named = int(fast.sum()), named_rows(rows[fast])
            found.append(Finding(severity, "impossible", "tpot", text, count, named))  # type: ignore[arg-type]
    return found


def sound(
    part: Part, sheets: xr.Dataset | None, weights: Mapping[str, float] | None = None
) -> list[Finding]:
    """Everything but outliers: values first, floors only where they are sound.

    Parameters
    ----------
    part : Part
        From a reader; dims (measurement,) [s, Hz, W, 1].
    sheets : Dataset, dims (sku,), or None
        Datasheets of its cards, where they are known.
    weights : mapping, optional
        Of the LLMs of served runs, from `weights_of` [byte].
    """
    found = values(part)
    if not any(finding.severity == "error" for finding in found):
        found += [*physical(part, sheets), *served(part, sheets, weights or {})]
    return [*found, *repeats(part), *versions(part)]
