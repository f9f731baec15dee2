"""A SKU left out of everything, then updated with a few designed cells of its own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.evaluate import averaged, by_build, cell_times, median_of_builds, of_sku, scores
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.updating.conditioned import unsampled
from m2bayes.updating.design import design, places_of

if TYPE_CHECKING:
    import pandas as pd

    from m2bayes.suites import Setting

DATA = ("gemm_bf16", "gemm_bf16_test")
JUDGED = ("posterior",)  # fields of the setting
CELLS, DESIGNS = (0, 3, 10, 30, 100), 20
LEAST = 200.0  # effective draws of the left-out fits' 2,000: the tenth that an update asks for
DRAWS = 500  # that are scored


def run(setting: Setting) -> dict[str, Any]:
    """Score every SKU by the number of its cells that an update has seen.

    Returns
    -------
    dict
        ``cells``: by number of cells and SKU, and their ``mean``, scores as in
        `m2bayes.evaluate.scores`, means over the designs, and ``ratio`` of MAPE to the fully
        measured posterior's, ``mape_sd`` over designs, ``in_band``, the share of designs whose
        coverage lies in its band [1]; ``full``: the fully measured posterior; ``factors``: the
        same without what its own cells say of the discrepancy; ``paths``: how often each path
        was taken, by number of cells.
    """
    database = setting.database
    left = setting.left_out(setting.posterior)
    inputs, whole = left.inputs, database.draws(setting.posterior)
    test = runs_by_cell(checked(database.table(DATA[1]), origin=DATA[1]), skus=inputs.skus)
    skus, counts, designs = inputs.skus, [*CELLS], DESIGNS
    if setting.quick:
        skus, counts, designs = skus[:1], counts[1:3], 1
    out: dict[str, Any] = {"cells": {str(n): {} for n in counts}, "full": {}, "factors": {}}
    paths: dict[str, Counter[str]] = {str(n): Counter() for n in counts}
    left.ahead([[sku] for sku in skus])
    for sku in skus:
        own, sheet = of_sku(test, sku), inputs.datasheets.sel(sku=[sku])
        draws = left.fit([sku])
        out["full"][sku] = on_unseen(whole, own, sheet, setting.seed)
        out["factors"][sku] = on_unseen(_own_shapes_unknown(whole, sku), own, sheet, setting.seed)
        rows = inputs.times[inputs.times["sku"] == sku]
        cells, places = candidates(rows, draws, sheet)
        for n in counts:
            setting.tell(f"{n} cells of {sku}")
            found = []
            for i in range(designs if n else 1):
                changed = draws
                if n:
                    chosen = cells.iloc[design(places, n, seed=setting.seed + i)]
                    table = checked(rows.merge(chosen), origin=DATA[0])
                    done = unsampled(draws, table, sheet, seed=setting.seed + i, least=LEAST)
                    paths[str(n)][done.path] += 1
                    changed = done.draws
                found.append(on_unseen(changed, own, sheet, setting.seed))
            out["cells"][str(n)][sku] = _mean(found, out["full"][sku]["mape"])
    for held in (out["full"], out["factors"], *out["cells"].values()):
        held["mean"] = averaged(held)
    out["paths"] = {n: dict(sorted(held.items())) for n, held in paths.items() if held}
    return out


def candidates(
    rows: pd.DataFrame, draws: xr.Dataset, sheet: xr.Dataset
) -> tuple[pd.DataFrame, np.ndarray]:
    """Cells of one SKU's rows that a design may choose, and where they lie, dims (cell, …) [1]."""
    cells = rows[["M", "N", "K"]].drop_duplicates().reset_index(drop=True)
    sizes = {v: ("cell", cells[v].to_numpy(dtype=float)) for v in cells}
    return cells, places_of(draws, xr.Dataset(sizes), sheet)


def on_unseen(
    posterior: xr.Dataset, own: xr.Dataset, sheet: xr.Dataset, seed: int
) -> dict[str, float]:
    """Scores on the test cells of one SKU, dims (cell,) [1]; few draws of each."""
    step = max(1, posterior.sizes["chain"] * posterior.sizes["draw"] // DRAWS)
    some = posterior.isel(draw=slice(None, None, step)).assign_attrs(posterior.attrs)
    drawn = cell_times(some, own, sheet, seed=seed).drop_vars("sku", errors="ignore")
    observed = median_of_builds(by_build(own)).drop_vars("sku", errors="ignore")
    return scores(drawn, observed)


def _own_shapes_unknown(posterior: xr.Dataset, sku: str) -> xr.Dataset:
    """Draws that have forgotten what a SKU's own cells say of its discrepancy."""
    keep = np.flatnonzero(posterior["residual_sku"].values != sku)
    return posterior.isel(cell=keep).assign_attrs(posterior.attrs)


def _mean(found: list[dict[str, float]], full: float) -> dict[str, float]:
    """Means over designs, the ratio to the full posterior, and the spread [1]."""
    inside = [f["band_low"] <= f["coverage_90"] <= f["band_high"] for f in found]
    mean = averaged({str(i): held for i, held in enumerate(found)})
    return mean | {
        "ratio": mean["mape"] / full,
        "mape_sd": float(np.std([f["mape"] for f in found])),
        "in_band": float(np.mean(inside)),
    }
