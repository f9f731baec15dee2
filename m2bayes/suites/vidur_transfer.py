"""The 2x2: a profiled forest and the model, on the card it was profiled on and on unseen ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.database import sha256
from m2bayes.leaveout import LeftOut
from m2bayes.suites import _forest as forest
from m2bayes.suites._profiles import (
    LIGHT,
    PARTS,
    compared,
    covered,
    folds,
    log_draws,
    point,
    roofline,
    rows,
    tables,
    unfitted,
)

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA: tuple[str, ...] = ()
JUDGED = ("posterior", "light")  # fields of the setting
SUITE, HOME, UNSEEN = "vidur-transfer", "a100", ("h100", "a40")
FOLDS = 5
MODEL, FOREST, SCALED, ROOFLINE = "model", "forest", "forest x roofline", "datasheet roofline"
REGIME, OTHER = "served", "benchmark"  # the profiler runs whole blocks: weights are cold


def run(setting: Setting) -> dict[str, Any]:
    """Score forest, scaled forest, roofline and model at home and on cards without a profile.

    Returns
    -------
    dict
        By card and part, as `m2bayes.suites._profiles.compared` [1], with ``coverage_90`` of the
        model; ``seen``: rows of each card in what the posterior of projections was fitted to;
        ``files``: hashes.

    Raises
    ------
    DataError, RecordError
        If the folder of outside data is not set or lacks the tables; if the fitted subset of
        them is not what the posterior of light kernels was fitted to.
    """
    files = _common({alias: tables(setting, SUITE, alias) for alias in (HOME, *UNSEEN)})
    skus = {a: str(setting.database.datasheets([a])["sku"].item()) for a in files}
    left = setting.left_out(setting.posterior)
    out: dict[str, Any] = {alias: {} for alias in files}
    for part in PARTS:
        held = {a: rows(part, files[a], skus[a], quick=setting.quick) for a in files}
        setting.tell(f"training forests for {part} of {HOME}")
        forests = forest.trained(held[HOME], quick=setting.quick)
        for alias, whole in held.items():
            setting.tell(f"predicting {part} of {alias}")
            home = alias == HOME
            table = unfitted(setting, SUITE, HOME, whole) if home and part == LIGHT else whole
            if home:
                fold = folds(table, FOLDS, seed=setting.seed)
                guess = {FOREST: forest.out_of_fold(table, fold, quick=setting.quick)}
            else:
                guess = copied(setting, part, table, forests, skus[HOME])
            guess[ROOFLINE] = roofline(setting, part, table, skus[alias])
            out[alias][part] = judged(setting, part, table, guess, left)
    seen = {a: _seen(left, sku) for a, sku in skus.items()}
    names = {f"{a} {f.parent.name}": sha256(f)[:12] for a, own in files.items() for f in own}
    return out | {"seen": seen, "files": names}


def _common(files: Mapping[str, list[Path]]) -> dict[str, list[Path]]:
    """Tables of the LLMs that every card has."""
    names = set.intersection(*({file.parent.name for file in own} for own in files.values()))
    return {alias: [f for f in own if f.parent.name in names] for alias, own in files.items()}


def _seen(left: LeftOut, sku: str) -> dict[str, int]:
    """Rows of a card in each table that the posterior of projections was fitted to [1]."""
    inputs = left.inputs
    held = {"times": inputs.times, "shapes": inputs.shapes, "clock": inputs.clock}
    return {
        role: int((table["sku"] == sku).sum()) if table is not None and len(table) else 0
        for role, table in held.items()
    }


def copied(
    setting: Setting, part: str, table: pd.DataFrame, forests: forest.Forests, home: str
) -> dict[str, np.ndarray]:
    """Times of another card's forest, as they are and by the ratio of rooflines [s], dims (row,).

    Parameters
    ----------
    setting : Setting
        Of the database.
    part : str
        Of `PARTS`.
    table : DataFrame, dims (row,)
        Rows of the card that nobody profiled [1].
    forests : mapping
        Trained on the profile of `home`.
    home : str
        Full name of that card.
    """
    own = forest.forecast(forests, table)
    there, here = (roofline(setting, part, table, sku) for sku in (str(table["sku"].iloc[0]), home))
    return {FOREST: own, SCALED: own * there / here}


def judged(
    setting: Setting,
    part: str,
    table: pd.DataFrame,
    guess: Mapping[str, np.ndarray],
    left: LeftOut,
) -> dict[str, Any]:
    """Scores of the model, with all it saw and with the card left out, beside rivals [1].

    Parameters
    ----------
    setting : Setting
        Of the database and the seed.
    part : str
        Of `PARTS`.
    table : DataFrame, dims (row,)
        Rows of one card, ``op_time`` [s].
    guess : mapping of str to ndarray, dims (row,)
        Times that the rivals give [s].
    left : LeftOut
        Of the posterior of projections.
    """
    times = {
        name: log_draws(setting, draws, part, table, regime)
        for name, draws, regime in versions(setting, part, str(table["sku"].iloc[0]), left)
    }
    points = {name: point(own) for name, own in times.items()} | dict(guess)
    out = compared(table, points, rivals=list(guess), seed=setting.seed)
    for name, own in times.items():
        out[name]["coverage_90"] = covered(own, table)
    return out


def versions(
    setting: Setting, part: str, sku: str, left: LeftOut
) -> list[tuple[str, xr.Dataset, str]]:
    """Name, draws and regime of each version of the model that is judged on a card.

    Its light kernels were fitted to one card, so nothing of another can be left out of them.
    """
    if part == LIGHT:
        return [(MODEL, setting.database.draws(setting.light), REGIME)]
    draws = setting.database.draws(setting.posterior)
    found = [(MODEL, draws, REGIME), (f"model, {OTHER} regime", draws, OTHER)]
    home = str(setting.database.datasheets([HOME])["sku"].item())
    if sku == home or sku not in left.inputs.skus:
        return found
    sheets = left.inputs.datasheets
    family = str(sheets["architecture"].sel(sku=sku).item())
    peers = [s for s in left.inputs.skus if sheets["architecture"].sel(sku=s).item() == family]
    left.ahead([[sku], peers])
    for name, gone in (("card", [sku]), ("architecture", peers)):
        fit = left.fit(gone)
        found += [
            (f"model, {name} left out", fit, REGIME),
            (f"model, {name} left out, {OTHER} regime", fit, OTHER),
        ]
    return found
