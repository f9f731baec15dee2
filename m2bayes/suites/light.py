"""Light kernels: unseen cells of the fitted card, and cards that were never fitted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.database import sha256
from m2bayes.errors import RecordError
from m2bayes.importers.designed import CELL, designed, vidur_cells
from m2bayes.kernels import card_of
from m2bayes.measurements import checked, content_hash
from m2bayes.mechanism.laws import LAWS
from m2bayes.mechanism.light import ITEM, PASSES
from m2bayes.outside import outside
from m2bayes.predictive import predict, summary
from m2bayes.traces import layer_times

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA: tuple[str, ...] = ()
JUDGED = ("light",)  # fields of the setting
FITTED, NEVER, OTHER = "a100", ("h100", "a40"), "rtx-pro-6000"  # folders and aliases of cards
BARS = {"a100": 0.08, "h100": 0.14, "a40": 0.17}  # mean error over operators to stay below [1]
LAYERS, LLM = "RTXPRO6000_llama3.1-8b_tp1_dense.csv", "llama-3.1-8b"  # of another engine
OPERATIONS = {"layernorm": "norm", "rotary_emb": "rope", "act_fn": "activation",
              "embedding": "embedding"}  # fmt: skip
NORMS = {"norm with residual sum": 2, "norm alone": 1}  # the file does not say which it timed
MASS = 0.9


def run(setting: Setting) -> dict[str, Any]:
    """Score the light kernels of profiled cards and of an engine, and rivals on the same cells.

    Returns
    -------
    dict
        By profiled card: ``cells``, ``bar`` [1]; ``kernels`` and ``operators``, each with a mean:
        errors and coverage as in `judged`. Of the engine the same for both readings of its norm.
        ``files``: hashes.

    Raises
    ------
    DataError, RecordError
        If the folder of outside data is not set or lacks the tables; if the fitted subset of
        them is not what the posterior was fitted to.
    """
    folder = outside("light", "vidur")
    draws = setting.database.draws(setting.light)
    files = {alias: sorted((folder / alias).rglob("mlp.csv")) for alias in (FITTED, *NEVER)}
    rows = {alias: profiled(setting, alias, paths, folder) for alias, paths in files.items()}
    train = fitted(setting, rows[FITTED])
    (source,) = {card_of(str(unit)) for unit in draws["sku"].values}
    out: dict[str, Any] = {}
    for alias, table in rows.items():
        setting.tell(f"light kernels of {alias}")
        unseen = without(table, train) if alias == FITTED else table
        known = _medians(rows[FITTED], "kernel") if alias in NEVER else None
        cells = predicted(setting, draws, unseen, source=source, known=known)
        out[alias] = {"cells": len(cells), "bar": BARS[alias]} | {
            f"{part}s": judged(cells, _medians(unseen, part), part)
            for part in ("kernel", "operator")
        }
    layers = outside("light", "llmservingsim") / LAYERS
    setting.tell(f"light kernels of {OTHER}")
    out[OTHER] = {}
    for reading, passes in NORMS.items():
        engine = engine_cells(setting, layers, norm=passes)
        cells = predicted(setting, draws, engine, source=source, known=None)
        out[OTHER][reading] = judged(cells, engine, "kernel")
    read = {f"{a} {p.parent.name}": p for a, paths in files.items() for p in paths}
    read[OTHER] = layers
    return out | {"files": {name: sha256(path)[:12] for name, path in read.items()}}


def profiled(setting: Setting, alias: str, paths: list[Path], folder: Path) -> pd.DataFrame:
    """Rows of all profiles of one card, dims (row,) [s]."""
    if not paths:
        raise RecordError(f"{folder / alias}: no mlp.csv in it; is it Vidur's folder?")
    sku = str(setting.database.datasheets([alias])["sku"].item())
    return vidur_cells(paths, sku).rename(columns={"op": "operator"})


def fitted(setting: Setting, rows: pd.DataFrame) -> pd.DataFrame:
    """Cells that the posterior was fitted to, dims (cell,) [1]; their hash is checked."""
    record = setting.database.posterior(setting.light)
    train = checked(designed(rows), origin=FITTED, law=LAWS["light_time"])
    if content_hash(train) != record.data[0]["sha256"]:
        raise RecordError(
            f"posterior {record.name}: was fitted to other rows than import makes of these tables; "
            "nothing can be called unseen"
        )
    return pd.DataFrame(train[CELL])


def without(rows: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    """Rows whose cell is not in `train`, dims (row,) [s]."""
    seen = rows.merge(train, on=CELL, how="left", indicator=True)["_merge"].to_numpy() == "both"
    return rows[~seen].reset_index(drop=True)


def _medians(rows: pd.DataFrame, part: str) -> pd.DataFrame:
    """Median time [s] over the replicates of each cell of a kernel kind, or of an operator."""
    labels = list(dict.fromkeys(["sku", part, *CELL]))
    return rows.groupby(labels)["op_time"].median().reset_index()


def engine_cells(setting: Setting, file: Path, *, norm: int) -> pd.DataFrame:
    """Light kernels of one layer of an LLM in a served engine, as rows [s].

    A norm that takes the residual sum along counts twice the tokens, as in `m2bayes.operators`;
    `norm` is that factor [1].
    """
    sku = str(setting.database.datasheets([OTHER])["sku"].item())
    llm, layers = setting.database.llm(LLM), layer_times(file)
    width = {
        "norm": llm.hidden,
        "rope": (llm.heads + llm.kv_heads) * llm.head_dim,
        "activation": llm.intermediate,
        "embedding": llm.hidden,
    }
    rows = layers[layers["layer"].isin(list(OPERATIONS))]
    kernel = rows["layer"].map(OPERATIONS)
    return pd.DataFrame(
        {
            "sku": sku,
            "kernel": kernel,
            "tokens": rows["tokens"] * np.where(kernel == "norm", norm, 1),
            "width": kernel.map(width),
            "op_time": rows["time"],
        }
    ).reset_index(drop=True)


def predicted(
    setting: Setting,
    draws: xr.Dataset,
    rows: pd.DataFrame,
    *,
    source: str,
    known: pd.DataFrame | None,
) -> pd.DataFrame:
    """Predictions of the posterior and of the rivals for each cell of one card.

    Parameters
    ----------
    setting : Setting
        Of the database and the seed.
    draws : Dataset, dims (chain, draw, sku, architecture)
        Of the posterior.
    rows : DataFrame, dims (row,)
        Cells of one card, repeated as they may be.
    source : str
        Name of the fitted card.
    known : DataFrame or None, dims (cell,)
        Its measured times [s], for the rival that scales them; None on that card itself.

    Returns
    -------
    DataFrame, dims (cell,)
        ``median``, ``low`` and ``high`` of the noise-free time [s], ``datasheet``, bytes over
        peak bandwidth, and ``scaled``, the fitted card's time by the ratio of bandwidths [s].
    """
    cells = rows[["sku", *CELL]].drop_duplicates(ignore_index=True)
    sheet = setting.database.datasheets([str(cells["sku"].iloc[0])])
    own, other = (
        float(held["peak_bandwidth"].item())
        for held in (sheet, setting.database.datasheets([source]))
    )
    time = predict(draws, _as_cells(cells), sheet, regime="benchmark", seed=setting.seed)
    found = summary(time.isel(sku=0), mass=MASS)
    out = cells.assign(**{k: found[k] for k in ("median", "low", "high")})
    out["datasheet"] = ITEM * cells["tokens"] * cells["width"] * cells["kernel"].map(PASSES) / own
    if known is not None:
        held = cells.merge(known[[*CELL, "op_time"]], on=CELL, how="left")
        out["scaled"] = held["op_time"].to_numpy() * other / own
    return out


def judged(cells: pd.DataFrame, observed: pd.DataFrame, part: str) -> dict[str, Any]:
    """Errors of the posterior median and of the rivals for each kernel kind or operator.

    Parameters
    ----------
    cells : DataFrame, dims (cell,)
        From `predicted` [s].
    observed : DataFrame, dims (cell,)
        Measured times [s], with a column `part`.
    part : str
        Column by which they are averaged, ``kernel`` or ``operator``.

    Returns
    -------
    dict
        By kind and ``mean`` over them: ``cells``, ``mape``, ``bias`` (median log of observed over
        predicted), ``coverage_90``; ``datasheet`` and ``scaled``, the rivals' mean error [1].
    """
    both = observed.merge(cells, on=["sku", *CELL], validate="many_to_one")
    by_kind = {str(kind): _scores(own) for kind, own in both.groupby(part)}
    keys = next(iter(by_kind.values())).keys()
    mean = {k: float(np.mean([held[k] for held in by_kind.values()])) for k in keys}
    return by_kind | {"mean": mean | {"cells": len(both)}}


def _as_cells(table: pd.DataFrame) -> xr.Dataset:
    """Sizes and kernels, dims (cell,) [1]."""
    return xr.Dataset(
        {v: ("cell", table[v].to_numpy(float)) for v in ("tokens", "width")}
        | {"kernel": ("cell", table["kernel"].to_numpy().astype(str))}
    )


def _scores(cells: pd.DataFrame) -> dict[str, float]:
    """Scores of one kind [1]."""
    observed = cells["op_time"]
    inside = observed.between(cells["low"], cells["high"])
    out: dict[str, float] = {
        "cells": len(cells),
        "mape": float(abs(cells["median"] / observed - 1).mean()),
        "bias": float(np.median(np.log(observed / cells["median"]))),
        "coverage_90": float(inside.mean()),
    }
    for rival in ("datasheet", "scaled"):
        if rival in cells:
            out[rival] = float(abs(cells[rival] / observed - 1).mean())
    return out
