"""Profile tables of several cards as rows, and what predictors err on them, blocks resampled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.errors import DataError
from m2bayes.mechanism.light import ITEM, PASSES
from m2bayes.outside import outside
from m2bayes.predictive import predict
from m2bayes.suites import fresh, light
from m2bayes.suites.rivals import roofline as gemm_roofline
from m2bayes.vidur import OPERATORS, PARALLEL, read_operators

if TYPE_CHECKING:
    from m2bayes.suites import Setting

ROW = ["op", "llm", "tp", "tokens"]  # labels of one row
PROJECTION, LIGHT = "projections", "light operators"
PARTS = (PROJECTION, LIGHT)
KEPT = 1000  # draws that are evaluated, of those stored
QUICK = (100, 16)  # draws, and every how many token counts are kept, in small versions
RESAMPLES, MASS = 2000, 0.9


def tables(setting: Setting, suite: str, alias: str) -> list[Path]:
    """Profile tables of one card in the folder of outside data.

    Raises
    ------
    DataError
        If the folder is not set or holds none.
    """
    folder = outside(suite, "vidur") / alias
    files = sorted(folder.rglob("mlp.csv"))
    if not files:
        raise DataError(f"{folder}: no mlp.csv in it; fetch microsoft/vidur's profile tables")
    return files[:1] if setting.quick else files


def rows(part: str, files: list[Path], sku: str, *, quick: bool = False) -> pd.DataFrame:
    """Rows of one part of the profiles of one card; replicates are one row, their median.

    Parameters
    ----------
    part : str
        One of `PARTS`.
    files : list of Path
        From `tables`.
    sku : str
        Full name of the card.
    quick : bool
        Keep a few token counts only.

    Returns
    -------
    DataFrame, dims (row,)
        ``sku``, `ROW` [1], ``op_time`` [s]; of projections ``M``, ``N``, ``K`` [1], of light
        operators ``kernel`` and ``width`` [element].
    """
    read = _projections if part == PROJECTION else _light_operators
    found = pd.concat([read(file, sku) for file in files], ignore_index=True).assign(sku=sku)
    if quick:
        kept = np.unique(found["tokens"])[:: QUICK[1]]
        found = found[found["tokens"].isin(kept)]
    return found.sort_values(ROW, ignore_index=True)


def _projections(file: Path, sku: str) -> pd.DataFrame:
    parts = [
        fresh.projections(own).assign(tp=tp) for tp, own in fresh.profile(file).groupby(PARALLEL)
    ]
    found = pd.concat(parts, ignore_index=True).assign(llm=file.parent.name)
    return found.assign(tokens=found["M"])


def _light_operators(file: Path, sku: str) -> pd.DataFrame:
    found = read_operators(file, sku=sku)  # the rows of the file, once for each operator
    parallel = np.tile(fresh.profile(file)[PARALLEL].to_numpy(), len(OPERATORS))
    found = found.assign(llm=file.parent.name, tp=parallel)
    return found.groupby([*ROW, "kernel", "width"])["op_time"].median().reset_index()


def unfitted(setting: Setting, suite: str, alias: str, table: pd.DataFrame) -> pd.DataFrame:
    """Light operators' rows whose cell the stored posterior was not fitted to, dims (row,) [s].

    Raises
    ------
    RecordError
        If the posterior was fitted to other tables than these.
    """
    files = tables(replace(setting, quick=False), suite, alias)
    held = light.profiled(setting, alias, files, outside(suite, "vidur"))
    return light.without(table, light.fitted(setting, held))


def folds(table: pd.DataFrame, number: int, *, seed: int) -> np.ndarray:
    """Fold of each row [1], dims (row,): whole token counts, so that replicates stay together.

    Parameters
    ----------
    table : DataFrame, dims (row,)
        With a column ``tokens`` [token].
    number : int
        Of folds.
    seed : int
        Of the split.
    """
    counts = np.unique(table["tokens"])
    order = labelled_rng(seed, "profiles", "folds").permutation(len(counts))
    return np.asarray(order[np.searchsorted(counts, table["tokens"].to_numpy())] % number)


def roofline(setting: Setting, part: str, table: pd.DataFrame, sku: str) -> np.ndarray:
    """Datasheet roofline of each row on a card [s], dims (row,): bytes alone for light operators.

    Parameters
    ----------
    setting : Setting
        Of the database.
    part : str
        One of `PARTS`.
    table : DataFrame, dims (row,)
        From `rows`, of any card [1].
    sku : str
        Whose datasheet.
    """
    sheets = setting.database.datasheets([sku])
    if part == PROJECTION:
        cells = fresh.as_cells(table, sku)
        return gemm_roofline(cells, cells, sheets)
    passes = table["kernel"].map(PASSES).to_numpy(float)
    traffic = ITEM * passes * table["tokens"].to_numpy() * table["width"].to_numpy()
    return np.asarray(traffic / float(sheets["peak_bandwidth"].item()))


def log_draws(
    setting: Setting,
    draws: xr.Dataset,
    part: str,
    table: pd.DataFrame,
    regime: str,
    *,
    backend: str = "any",
) -> np.ndarray:
    """Log time [s] of one new run of each row under each posterior draw, dims (draw, row).

    Parameters
    ----------
    setting : Setting
        Of the database and the seed.
    draws : Dataset, dims (chain, draw, sku, architecture)
        Of the posterior of the part.
    part : str
        One of `PARTS`.
    table : DataFrame, dims (row,)
        From `rows`, of one card [1].
    regime : str
        ``served`` or ``benchmark``.
    backend : str
        Build that the draws know, or ``any``.
    """
    most = QUICK[0] if setting.quick else KEPT
    step = max(1, draws.sizes["chain"] * draws.sizes["draw"] // most)
    sheet = setting.database.datasheets([str(table["sku"].iloc[0])])
    labels = ["M", "N", "K"] if part == PROJECTION else ["kernel", "tokens", "width"]
    cells = table[labels].drop_duplicates()
    types = {v: str if v == "kernel" else float for v in labels}
    held = xr.Dataset({v: ("cell", cells[v].to_numpy().astype(types[v])) for v in labels})
    thin = draws.isel(draw=slice(None, None, step))
    time = predict(thin, held, sheet, regime=regime, backend=backend, noise=1, seed=setting.seed)
    flat = np.log(time.isel(sku=0).values.reshape(-1, len(cells)))
    where = table.groupby(labels, sort=False).ngroup()  # cells stand in order of appearance
    return np.asarray(flat[:, where])


def point(log_times: np.ndarray) -> np.ndarray:
    """Median time [s] of each row, dims (row,), of log times with dims (draw, row)."""
    return np.asarray(np.exp(np.median(log_times, axis=0)))


def covered(log_times: np.ndarray, table: pd.DataFrame) -> float:
    """Share of rows whose time the central 90 % of the draws holds [1].

    Parameters
    ----------
    log_times : ndarray, dims (draw, row)
        From `log_draws` [log s].
    table : DataFrame, dims (row,)
        Measured, ``op_time`` [s].
    """
    low, high = np.quantile(log_times, [(1 - MASS) / 2, (1 + MASS) / 2], axis=0)
    observed = np.log(table["op_time"].to_numpy())
    return float(((low <= observed) & (observed <= high)).mean())


def layers(
    parts: Iterable[tuple[pd.DataFrame, Mapping[str, np.ndarray]]],
) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Sum of the operators of one layer, where each of them has a row, measured and predicted.

    Parameters
    ----------
    parts : iterable of (DataFrame, mapping of str to ndarray), dims (row,)
        Rows of each part and the times [s] that predictors give them; those that all parts have
        are summed. The embedding is not in a layer.

    Returns
    -------
    tuple of DataFrame and dict of str to ndarray, dims (row,)
        As for `compared`, one row for each LLM, TP and token count [s].
    """
    held = [(table, dict(points)) for table, points in parts]
    names = [n for n in held[0][1] if all(n in points for _, points in held)]
    both = pd.concat([table.assign(**points)[[*ROW, "op_time", *names]] for table, points in held])
    both = both[both["op"] != "emb"]
    groups = both.groupby(ROW[1:])
    found = groups[["op_time", *names]].sum().reset_index().assign(op="layer")
    whole = groups["op"].nunique().to_numpy() == both["op"].nunique()
    found = found[whole].reset_index(drop=True)
    return found, {name: found[name].to_numpy() for name in names}


def compared(
    table: pd.DataFrame, points: Mapping[str, np.ndarray], *, rivals: Sequence[str], seed: int
) -> dict[str, Any]:
    """Errors of predictors on the same rows, and how each compares with its rivals [1].

    Parameters
    ----------
    table : DataFrame, dims (row,)
        Measured, ``op_time`` [s].
    points : mapping of str to ndarray, dims (row,)
        Predicted times [s] by name.
    rivals : sequence of str
        Names that every other predictor is held against.
    seed : int
        Of the bootstrap, which draws blocks: all rows of an LLM with one token count. Neighbouring
        counts err alike, so ratios have a second interval, from blocks of an octave of counts.

    Returns
    -------
    dict
        ``rows``, ``blocks``, and by name ``mape``, its 90 % interval ``low`` to ``high``,
        ``median_ape``, ``bias`` (median log of observed over predicted), ``by op``, ``by llm``
        and ``over``: by rival the ``ratio`` of its MAPE to the rival's, ``low`` to ``high``, and
        ``octave_low`` to ``octave_high``.
    """
    observed, tokens = table["op_time"].to_numpy(), table["tokens"].to_numpy()
    error = {name: np.abs(times / observed - 1) for name, times in points.items()}
    again, total = _resampled(error, table["llm"], tokens, seed)
    octaves, _ = _resampled(error, table["llm"], np.floor(np.log2(tokens)), seed)
    out: dict[str, Any] = {"rows": len(table), "blocks": total}
    for name, times in points.items():
        held = out[name] = {
            "mape": float(error[name].mean()),
            **_interval(again[name]),
            "median_ape": float(np.median(error[name])),
            "bias": float(np.median(np.log(observed / times))),
        }
        for label in ("op", "llm"):
            means = pd.Series(error[name]).groupby(table[label].to_numpy()).mean()
            held[f"by {label}"] = {str(k): float(v) for k, v in means.items()}
        if name not in rivals:
            held["over"] = {
                rival: {"ratio": float(error[name].mean() / error[rival].mean())}
                | _interval(again[name] / again[rival])
                | _interval(octaves[name] / octaves[rival], "octave_")
                for rival in rivals
            }
    return out


def _resampled(
    error: Mapping[str, np.ndarray], llm: pd.Series, label: np.ndarray, seed: int
) -> tuple[dict[str, np.ndarray], int]:
    """Mean errors [1], dims (resample,), of blocks drawn anew, those of one LLM and label."""
    block = pd.DataFrame({"llm": llm.to_numpy(), "label": label}).groupby(["llm", "label"]).ngroup()
    total = int(block.max()) + 1
    drawn = labelled_rng(seed, "profiles", "blocks").integers(total, size=(RESAMPLES, total))
    number = np.bincount(block)[drawn].sum(axis=1)
    return {n: np.bincount(block, e)[drawn].sum(axis=1) / number for n, e in error.items()}, total


def _interval(values: np.ndarray, prefix: str = "") -> dict[str, float]:
    low, high = np.quantile(values, [(1 - MASS) / 2, (1 + MASS) / 2])
    return {f"{prefix}low": float(low), f"{prefix}high": float(high)}
