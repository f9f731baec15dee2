"""Updates of a left-out SKU beside fits of the whole model to the same rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.decision import mcse
from m2bayes.evaluate import of_sku
from m2bayes.factors import with_skus
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.suites import _grid
from m2bayes.suites.few_shot import LEAST, candidates, on_unseen
from m2bayes.updating.conditioned import unsampled
from m2bayes.updating.design import design

if TYPE_CHECKING:
    from m2bayes.suites import Setting
    from m2bayes.updating.conditioned import Updated

DATA = ("gemm_bf16", "gemm_bf16_test", _grid.DATA)
JUDGED = ("posterior",)  # fields of the setting
SKUS = ("H200-141GB-SXM", "L40S-48GB-PCIe")  # with a sister card, and alone in its architecture
CELLS = (10, 100)
LENGTH = (1000, 1000)  # draws and tuning of the refits, whose means are compared
MOST = 4.0  # Monte Carlo standard errors that two samples of one posterior are apart, and no more


def run(setting: Setting) -> dict[str, Any]:
    """Compare every update with the fit that reads its rows from the start.

    Returns
    -------
    dict
        By SKU and number of cells: ``path``, ``seconds`` of the update, its ``pareto_k`` and
        ``ess`` where weights were taken; of the variables that all SKUs share (``shared``), of
        the SKU's factors, as logs (``own``), and of the probability of being the fastest, by SKU
        and token count (``p_best``): the largest difference of the means, as such (``gap``), in
        MCSE (``mcse``, and whose it is, ``of``) and in posterior sd (``sd``), and the share
        within 4 MCSE (``within``); ``mape_update`` and ``mape_refit`` on unseen cells [1].
    """
    left, whole_fits = (setting.left_out(setting.posterior) for _ in range(2))
    whole_fits.length = LENGTH
    test = runs_by_cell(
        checked(setting.database.table(DATA[1]), origin=DATA[1]), skus=left.inputs.skus
    )
    times = _grid.measured(setting, left.inputs.skus)
    out: dict[str, Any] = {}
    left.ahead([[sku] for sku in setting.few(SKUS)])
    for sku in setting.few(SKUS):
        draws, sheet = left.fit([sku]), left.inputs.datasheets.sel(sku=[sku])
        rows = left.inputs.times[left.inputs.times["sku"] == sku]
        cells, places = candidates(rows, draws, sheet)
        out[sku], tables = {}, {}
        for n in setting.few([str(n) for n in CELLS]):
            chosen = cells.iloc[design(places, int(n), seed=setting.seed)]
            tables[n] = checked(rows.merge(chosen), origin=DATA[0])
        whole_fits.ahead([[sku]] * len(tables), kept=[*tables.values()])
        for n, table in tables.items():
            start = time.perf_counter()
            done = unsampled(draws, table, sheet, seed=setting.seed, least=LEAST)
            seconds = time.perf_counter() - start
            setting.tell(f"{n} cells of {sku}: {done.path}; fitting to the same rows")
            whole = whole_fits.fit([sku], kept=table)
            found = {"path": done.path, "seconds": seconds}
            found |= {k: done.figures[k] for k in ("pareto_k", "ess") if k in done.figures}
            found |= _compared(setting, left.inputs.datasheets, done, whole, times)
            for name, held in {"update": done.draws, "refit": whole}.items():
                found[f"mape_{name}"] = on_unseen(held, of_sku(test, sku), sheet, setting.seed)[
                    "mape"
                ]
            out[sku][n] = found
    return out


def _compared(
    setting: Setting, sheets: xr.Dataset, done: Updated, whole: xr.Dataset, times: xr.DataArray
) -> dict[str, Any]:
    """Differences of the factors' means, shared and the SKU's own, and of who is fastest."""
    draws = done.draws.sizes["chain"] * done.draws.sizes["draw"]
    repeats = float(np.sqrt(draws / done.figures.get("ess", draws)))  # draws taken twice
    names = [str(k) for k in whole.data_vars if {*whole[k].dims} == {"chain", "draw"}]
    sides: dict[str, list[dict[str, xr.DataArray]]] = {"shared": [], "own": [], "p_best": []}
    for held in (done.draws, whole):
        sides["shared"].append({k: held[k] for k in names})
        factors = with_skus(held, done.sheets, seed=setting.seed)
        mine = {str(k): v.isel(sku=0) for k, v in factors.items() if "sku" in v.dims}
        sides["own"].append({k: xr.apply_ufunc(np.log, v) for k, v in mine.items()})
        steps = _grid.noisy(held, sheets, times, noise=0, seed=setting.seed).sum("op")
        fastest = (steps == steps.min("sku")).astype(float)
        sides["p_best"].append({str(s): fastest.sel(sku=s) for s in sheets["sku"].values})
    return {k: _apart(update, refit, repeats) for k, (update, refit) in sides.items()}


def _apart(
    update: dict[str, xr.DataArray], refit: dict[str, xr.DataArray], repeats: float
) -> dict[str, Any]:
    """How far two sets of means are apart: in own units, in MCSE, in sd of a draw [1]."""
    gaps, errors, spreads, names = [], [], [], []
    for name, other in refit.items():
        held = update[name]
        gap = np.abs(held.mean(("chain", "draw")) - other.mean(("chain", "draw")))
        gaps += np.ravel(gap).tolist()
        errors += np.ravel(np.hypot(repeats * mcse(held), mcse(other))).tolist()
        spreads += np.ravel(other.std(("chain", "draw"))).tolist()
        names += [name] * gap.size
    z = np.array(gaps) / np.array(errors)
    moving = np.array(spreads) > 0
    return {
        "of": names[int(np.argmax(z))],
        "mcse": float(z.max()),
        "within": float((z < MOST).mean()),
        "gap": float(np.max(gaps)),
        "sd": float((np.array(gaps)[moving] / np.array(spreads)[moving]).max(initial=0.0)),
    }
