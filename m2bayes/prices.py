"""Prices of GPUs: given one by one or as a dated table, exactly or as a range."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from m2bayes._files import read_json, shown
from m2bayes._random import labelled_rng
from m2bayes.errors import DataError, WorkloadError

EXAMPLE = "example"  # the word that stands for the table that comes along
HOURS_A_YEAR = 8760.0  # [h]
_PRICE = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
Prices = dict[str, tuple[float, float]]  # by SKU, lowest and highest [USD/h]


def read_prices(
    texts: Sequence[str], folder: Path, full_name: Callable[[str], str]
) -> tuple[Prices, str]:
    """Read ``SKU=USD``, ``SKU=LOW-HIGH``, a file of such, or ``example``; a later table counts.

    Parameters
    ----------
    texts : sequence of str
        As given to ``--price`` [USD/h], of one GPU.
    folder : Path
        Where the example table is.
    full_name : callable
        From any name of a SKU to its full one; raises if there is none.

    Returns
    -------
    tuple of dict and str
        Lowest and highest price by SKU [USD/h]; where a table was read, its name and date.

    Raises
    ------
    WorkloadError, DataError
        If a price is no number above 0, a range is upside down, a SKU is given twice, or a file
        holds no prices.
    """
    found: Prices = {}
    dated, single = "", set[str]()
    for text in texts:
        if text == EXAMPLE or text.lower().endswith(".json"):
            path = folder / f"{EXAMPLE}.json" if text == EXAMPLE else Path(text)
            table, date = _table(path, full_name)
            found, dated = found | table, f"{shown(path.name)} of {date}"
            continue
        name, equals, price = text.partition("=")
        held = re.fullmatch(f"{_PRICE}(?:-{_PRICE})?", price)
        if not equals or not name or not held:
            raise WorkloadError(
                f"--price {text}: give SKU=USD_PER_HOUR or SKU=LOW-HIGH of one GPU, "
                f"a .json table, or {EXAMPLE}"
            )
        low = float(held[1])
        high = float(held[2] or held[1])
        sku = full_name(name)
        if sku in single:
            raise WorkloadError(f"--price {text}: {sku} is given twice; name each once")
        single.add(sku)
        found[sku] = _checked(low, high, f"--price {text}")
    return found, dated


def price_draws(
    prices: Mapping[str, tuple[float, float]],
    skus: Sequence[str] | np.ndarray,
    like: xr.Dataset | xr.DataArray,
    *,
    seed: int,
) -> xr.DataArray:
    """Price of an hour of one GPU, uniform over its range, the same draw wherever it is asked for.

    Parameters
    ----------
    prices : mapping
        From `read_prices` [USD/h].
    skus : sequence of str
        Full names.
    like : Dataset or DataArray, dims (chain, draw, …)
        Whose draws these go with.
    seed : int
        Of the draws; a SKU's depend on it and on its name alone.

    Returns
    -------
    DataArray, dims (chain, draw, sku)
        Price [USD/h].

    Raises
    ------
    WorkloadError
        If a SKU has no price.
    """
    names = [str(sku) for sku in skus]
    require(prices, names)
    shape = tuple(like.sizes[d] for d in ("chain", "draw"))
    columns = [labelled_rng(seed, "price", sku).uniform(*prices[sku], size=shape) for sku in names]
    coords = {"chain": like["chain"], "draw": like["draw"], "sku": names}
    return xr.DataArray(np.stack(columns, -1), coords, ("chain", "draw", "sku"))


def require(prices: Mapping[str, tuple[float, float]], skus: Sequence[str]) -> None:
    """Refuse SKUs without a price.

    Raises
    ------
    WorkloadError
        Names the first.
    """
    for sku in skus:
        if sku not in prices:
            raise WorkloadError(
                f"cost needs the price of {sku}: give --price {sku}=USD_PER_HOUR, or {EXAMPLE}"
            )


def _table(path: Path, full_name: Callable[[str], str]) -> tuple[Prices, str]:
    """Prices of a file, and its date."""
    where, content = shown(path), read_json(path, DataError)
    held, date = content.get("prices"), content.get("date")
    if not isinstance(held, Mapping) or not held or not isinstance(date, str):
        raise DataError(f'{where}: expected "date" and "prices", by SKU in USD an hour')
    found: Prices = {}
    for name, price in held.items():
        ends = price if isinstance(price, list) else [price, price]
        numbers = all(isinstance(e, int | float) and not isinstance(e, bool) for e in ends)
        if len(ends) != 2 or not numbers:
            raise DataError(f"{where}: price of {name}: give a number, or a list of low and high")
        found[full_name(str(name))] = _checked(float(ends[0]), float(ends[1]), f"{where}: {name}")
    return found, date


def _checked(low: float, high: float, where: str) -> tuple[float, float]:
    if not 0 < low <= high < np.inf:
        raise WorkloadError(f"{where}: a price must be above 0, and LOW no more than HIGH")
    return low, high
