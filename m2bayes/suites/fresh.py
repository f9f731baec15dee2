"""A card and a profile that played no part in any choice: the A40 in Vidur's projection tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.database import sha256
from m2bayes.evaluate import scores
from m2bayes.inputs import Inputs
from m2bayes.outside import numbers, outside
from m2bayes.predictive import predict
from m2bayes.suites import rivals

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA: tuple[str, ...] = ()
JUDGED = ("posterior",)  # fields of the setting
ALIAS = "a40"
PROJECTIONS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
WIDTHS = ("n_embd", "n_head", "n_kv_head", "n_expanded_embd")
SIZES = ("num_tokens", "num_tensor_parallel_workers", *WIDTHS, "use_gated_mlp")
TABLES = ("Llama-2-7b-hf", "Llama-2-70b-hf")


def run(setting: Setting) -> dict[str, Any]:
    """Score the projections of a card whose architecture nobody measured, and rivals.

    Returns
    -------
    dict
        ``model, benchmark regime`` and ``served``, and each rival: scores as in
        `m2bayes.evaluate.scores` [1]; ``projections``: the model's by operator; ``files``: hashes.

    Raises
    ------
    DataError
        If the folder of outside data is not set or lacks the tables.
    """
    folder = outside("fresh", "vidur") / ALIAS / "meta-llama"
    files = [folder / name / "mlp.csv" for name in TABLES]
    table = pd.concat([projections(profile(file)) for file in files], ignore_index=True)
    database = setting.database
    inputs = Inputs.recorded(database, database.posterior(setting.posterior))
    sheets = database.datasheets([*inputs.skus, ALIAS])
    sku = str(sheets["sku"].values[-1])
    cells = as_cells(table, sku)
    observed = cells["op_time"].isel(run=0, drop=True).drop_vars(("sku", "backend"))
    draws = database.draws(setting.posterior)
    out: dict[str, Any] = {}
    for regime in ("benchmark", "served"):
        time = predict(
            draws,
            cells.drop_vars("backend"),
            sheets.sel(sku=[sku]),
            regime=regime,
            noise=1,
            seed=setting.seed,
        ).squeeze("sku", drop=True)
        out[f"model, {regime} regime"] = scores(time, observed)
        if regime == "benchmark":
            by_op = {
                op: np.flatnonzero(table["op"].to_numpy() == op) for op in table["op"].unique()
            }
            out["projections"] = {
                op: scores(time.isel(cell=at), observed.isel(cell=at)) for op, at in by_op.items()
            }
    train = inputs.cells()
    for name, rival in rivals.everyone().items():
        guess = rivals.with_spread(rival, train, cells, sheets, seed=setting.seed)
        out[name] = scores(guess, observed, rival(train, cells, sheets))
    return out | {"files": {file.parent.name: sha256(file)[:12] for file in files}}


def profile(file: Path) -> pd.DataFrame:
    """One of Vidur's tables, checked for the columns that `projections` reads, times [ms]."""
    columns = (*SIZES, *(f"time_stats.{op}.median" for op in PROJECTIONS))
    return numbers(file, columns, remedy="fetch microsoft/vidur's profile tables")


def projections(table: pd.DataFrame) -> pd.DataFrame:
    """Tidy rows of the four projections: ``op``, ``M``, ``N``, ``K`` [1], ``op_time`` [s].

    Rows that repeat tokens and parallelism are replicates; their median is kept.
    """
    tp, width = table["num_tensor_parallel_workers"], table["n_embd"]
    head = width // table["n_head"]
    qkv = (table["n_head"] + 2 * table["n_kv_head"]) * head // tp
    inner = table["n_expanded_embd"] // tp
    gate = np.where(table["use_gated_mlp"], 2, 1)
    sides = ((qkv, width), (width, width // tp), (gate * inner, width), (width, inner))
    shapes = dict(zip(PROJECTIONS, sides, strict=True))
    parts = [
        pd.DataFrame(
            {
                "op": op,
                "M": table["num_tokens"],
                "N": n,
                "K": k,
                "op_time": table[f"time_stats.{op}.median"] / 1e3,
            }
        )
        for op, (n, k) in shapes.items()
    ]
    rows = pd.concat(parts, ignore_index=True)
    return rows.groupby(["op", "M", "N", "K"])["op_time"].median().reset_index()


def as_cells(table: pd.DataFrame, sku: str) -> xr.Dataset:
    """Rows as cells of one SKU with one run of an unnamed build, dims (cell, run)."""
    n = len(table)
    return xr.Dataset(
        {
            "op_time": (("cell", "run"), table["op_time"].to_numpy()[:, None]),
            **{v: ("cell", table[v].to_numpy(dtype=float)) for v in ("M", "N", "K")},
        },
        coords={
            "cell": np.arange(n),
            "sku": ("cell", np.full(n, sku)),
            "backend": (("cell", "run"), np.full((n, 1), "any")),
        },
    )
