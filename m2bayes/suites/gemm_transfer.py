"""One SKU, or one architecture, left out of everything and predicted from its datasheet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes.evaluate import (
    averaged,
    by_build,
    cell_times,
    judged,
    median_of_builds,
    of_sku,
    scores,
)
from m2bayes.leaveout import LeftOut, not_measured
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.suites import rivals

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("gemm_bf16_test", "gemm_bf16_dense")
JUDGED = ("posterior",)  # fields of the setting


def run(setting: Setting) -> dict[str, Any]:
    """Score the held-out SKUs and the rivals on the same rows.

    Returns
    -------
    dict
        ``unseen``: no peer was measured on the scored cells; ``peers``: some peer was, for the
        SKUs that have one; ``rivals``; ``architecture``: all its SKUs left out at once; each by
        SKU and ``mean``, scores as in `m2bayes.evaluate.scores` [1].
    """
    database = setting.database
    left = setting.left_out(setting.posterior)
    inputs = left.inputs
    test, dense = (
        runs_by_cell(checked(database.table(name), origin=name), skus=inputs.skus) for name in DATA
    )
    out: dict[str, Any] = {k: {} for k in ("unseen", "unseen wide", "peers", "peers wide")}
    out["rivals"] = {name: {} for name in rivals.everyone()}
    alone = [[sku] for sku in setting.few(inputs.skus)]
    left.ahead([*alone, *_families(setting, left).values()])
    for (sku,) in alone:
        draws, own = left.fit([sku]), of_sku(test, sku)
        setting.tell(f"scoring {sku}")
        blind = not_measured(draws, _shapes(own))
        found = judged(blind, own, inputs.datasheets, seed=setting.seed)
        out["unseen"][sku], out["unseen wide"][sku] = found["all"], found["wide"]
        shared = _shared_cells(of_sku(dense, sku), draws, inputs.datasheets, sku)
        if shared.sizes["cell"]:
            found = judged(draws, shared, inputs.datasheets, seed=setting.seed)
            out["peers"][sku], out["peers wide"][sku] = found["all"], found["wide"]
        train = left.inputs.without([sku]).cells()
        observed = median_of_builds(by_build(own)).drop_vars("sku", errors="ignore")
        for name, predict in rivals.everyone().items():
            guess = rivals.with_spread(predict, train, own, inputs.datasheets, seed=setting.seed)
            out["rivals"][name][sku] = scores(
                guess, observed, predict(train, own, inputs.datasheets)
            )
    out["architecture"] = _architectures(setting, left, test)
    out["pooled"] = _pooled(setting, left, test)
    for held in [v for k, v in out.items() if k not in ("rivals", "pooled")]:
        held["mean"] = averaged(held)
    for held in out["rivals"].values():
        held["mean"] = averaged(held)
    return out


def _shapes(cells: xr.Dataset) -> np.ndarray:
    return np.stack([cells[v].values for v in ("M", "N", "K")], axis=1)


def _shared_cells(own: xr.Dataset, draws: xr.Dataset, sheets: xr.Dataset, sku: str) -> xr.Dataset:
    """Cells of a SKU whose shape another card of its architecture measured."""
    family = str(sheets["architecture"].sel(sku=sku).item())
    peers = draws["residual_shape"].values[draws["residual_architecture"].values == family]
    known = {tuple(row) for row in peers.astype(int).tolist()}
    keep = [tuple(row) in known for row in _shapes(own).astype(int).tolist()]
    return own.isel(cell=np.flatnonzero(keep))


def _architectures(setting: Setting, left: LeftOut, test: xr.Dataset) -> dict[str, Any]:
    """Scores of the architectures with several SKUs, all of them left out together."""
    sheets, out = left.inputs.datasheets, dict[str, Any]()
    for members in _families(setting, left).values():
        draws = left.fit(members)
        for sku in members:
            out[sku] = judged(draws, of_sku(test, sku), sheets, seed=setting.seed)["all"]
    return out


def _families(setting: Setting, left: LeftOut) -> dict[str, list[str]]:
    """SKUs of each architecture that has several."""
    families = left.inputs.datasheets["architecture"].values.astype(str)
    names, sizes = np.unique(families, return_counts=True)
    return {
        family: [left.inputs.skus[i] for i in np.flatnonzero(families == family)]
        for family in setting.few([str(name) for name in names[sizes > 1]])
    }


def _pooled(setting: Setting, left: LeftOut, test: xr.Dataset) -> dict[str, float]:
    """Coverage of the 90 % interval over the cells of all held-out SKUs [1]."""
    inside = []
    for sku in setting.few(left.inputs.skus):
        own = of_sku(test, sku)
        draws = cell_times(
            not_measured(left.fit([sku]), _shapes(own)),
            own,
            left.inputs.datasheets,
            seed=setting.seed,
        ).values.reshape(-1, own.sizes["cell"])
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        observed = median_of_builds(by_build(own)).values
        inside.append((observed >= low) & (observed <= high))
    return {"coverage_90": float(np.concatenate(inside).mean())}
