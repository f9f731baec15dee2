"""What was measured, as files: tidy tables with their cards, clocks as a fit reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from m2bayes._files import shown, write_whole
from m2bayes.measurements import content_hash

T_QUANTILE = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306}
STEP = 15e6  # [Hz] clocks come in steps
UNITS = {
    "op_time": "s", "sm_clock": "Hz", "power": "W", "temperature": "degC", "power_limit": "W",
    "boost_clock": "Hz", "sustained_clock": "Hz", "half_width": "Hz", "bytes": "byte",
}  # fmt: skip
TEXT = ("sku", "backend", "version", "op", "cache", "regime", "throttle")


def clocks(
    table: pd.DataFrame, *, boost_clock: float, power_limit: float, capped: bool = False
) -> pd.DataFrame:
    """Sustained clock of each cold matrix product, as a fit reads it.

    Parameters
    ----------
    table : DataFrame, dims (row,)
        Of ``gemm_time`` from `measured`.
    boost_clock, power_limit : float
        Boost clock of the card [Hz], and the limit that is set [W].
    capped : bool
        Whether that is below the card's own: then it is one step of a sweep.

    Returns
    -------
    DataFrame, dims (reading,)
        ``sustained_clock``, the median over the repeats, and ``half_width`` of its 95 % interval
        [Hz], which the step of the clock bounds below.
    """
    rows: list[dict[str, Any]] = []
    kept = table[(table["cache"] == "cold") & (table["regime"] == "sustained")]
    for (sku, op, *load), own in kept.groupby(["sku", "op", "M", "N", "K"]):
        held = own["sm_clock"].to_numpy(dtype=float)
        spread = float(held.std(ddof=1)) / np.sqrt(len(held)) if len(held) > 1 else 0.0
        width = T_QUANTILE.get(len(held), 2.0) * spread
        rows.append(
            {"sku": sku, "op": op, **dict(zip("MNK", load, strict=True)), "power_limit": np.nan,
             "boost_clock": boost_clock, "sustained_clock": float(np.median(held)),
             "half_width": max(width, STEP / 2)}
        )  # fmt: skip
    if capped and rows:  # a step of a sweep of power limits, not a reading of the card's own
        least = min(rows, key=lambda row: row["sustained_clock"])
        rows = [least | dict.fromkeys("MNK", np.nan) | {"power_limit": power_limit}]
    return pd.DataFrame(rows)


def files(
    tables: Mapping[str, pd.DataFrame], target: Path, facts: Mapping[str, str]
) -> Iterator[tuple[Path, bytes, dict[str, Any]]]:
    """Path, content and card of each table: matrix products under the name that was given.

    Parameters
    ----------
    tables : mapping of str to DataFrame, dims (row,)
        By law, from `measured`, and ``clock`` from `clocks` [s, Hz, W].
    target : Path
        Of the matrix products; the others are named after it.
    facts : mapping
        ``device``, ``software``, ``how``: of the card.
    """
    for law, table in tables.items():
        part = law.removesuffix("_time")
        own = target if part == "gemm" else target.with_stem(f"{target.stem}_{part}")
        content = table.to_csv(index=False, float_format="%.7g").encode()
        yield own, content, _card(own.stem, part, table, facts)


def _card(name: str, part: str, table: pd.DataFrame, facts: Mapping[str, str]) -> dict[str, Any]:
    columns = {
        str(c): {"units": "" if c in TEXT else UNITS.get(str(c), "1"), "description": str(c)}
        for c in table
    }
    return {
        "name": name,
        "title": f"{part} measured on {facts['device']}",
        "description": facts["how"],
        "source": f"m2bayes measure, {facts['software']}",
        "licence": "your own",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "columns": columns,
        "recipe": "m2bayes measure",
        "rows": len(table),
        "sha256": content_hash(table),
    }


def write(written: Sequence[tuple[Path, bytes, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Write tables and their cards, each file whole; return path, rows and hash of each.

    Raises
    ------
    RecordError
        If one cannot be written.
    """
    out = []
    for path, content, card in written:
        write_whole(path, content)
        text = json.dumps(card, indent=2, allow_nan=False) + "\n"
        write_whole(path.with_suffix(".json"), text.encode())
        out.append({"out": shown(path), "rows": card["rows"], "sha256": card["sha256"]})
    return out
