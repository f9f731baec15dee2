"""Unseen cells of measured SKUs, benchmark regime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from m2bayes.evaluate import averaged, by_build, judged, median_of_builds, of_sku, scores
from m2bayes.inputs import Inputs
from m2bayes.measurements import checked, runs_by_cell
from m2bayes.suites import rivals

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = ("gemm_bf16_test",)
JUDGED = ("posterior", "baseline")  # fields of the setting


def run(setting: Setting) -> dict[str, Any]:
    """Score the posterior, its baseline and the rivals on every SKU.

    Returns
    -------
    dict
        ``<predictor>``, ``all`` or ``wide`` cells, SKU or ``mean``: scores as in
        `m2bayes.evaluate.scores` [1].
    """
    database = setting.database
    inputs = Inputs.recorded(database, database.posterior(setting.posterior))
    cells = runs_by_cell(checked(database.table(DATA[0]), origin=DATA[0]), skus=inputs.skus)
    out: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for name in (setting.posterior, setting.baseline):
        draws = database.draws(name)
        out[name] = {"all": {}, "wide": {}}
        for sku in setting.few(inputs.skus):
            setting.tell(f"{name} on {sku}")
            found = judged(draws, of_sku(cells, sku), inputs.datasheets, seed=setting.seed)
            for part, held in found.items():
                out[name][part][sku] = held
    for name, predict in rivals.everyone().items():
        setting.tell(name)
        out[name] = {"all": {}}
        for sku in setting.few(inputs.skus):
            own, train = of_sku(cells, sku), inputs.cells()
            guess = rivals.with_spread(predict, train, own, inputs.datasheets, seed=setting.seed)
            observed = median_of_builds(by_build(own)).drop_vars("sku", errors="ignore")
            out[name]["all"][sku] = scores(guess, observed, predict(train, own, inputs.datasheets))
    for parts in out.values():
        for by_sku in parts.values():
            by_sku["mean"] = averaged(by_sku)
    return out
