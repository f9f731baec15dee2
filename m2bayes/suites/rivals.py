"""Predictors to beat, each a function of training rows, datasheets and the cells to predict."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from m2bayes.evaluate import by_build, median_of_builds
from m2bayes.mechanism.roofline import activation_traffic, gemm_flops, weight_traffic
from m2bayes.mechanism.wave import eta_wave, tile_ladder

LADDER_FROM = 64  # tokens: the source read no tile below
SPREAD = 1000  # residuals that give a point predictor its distribution
Predictor = Callable[[xr.Dataset, xr.Dataset, xr.Dataset], np.ndarray]


def _branches(cells: xr.Dataset, sheets: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Datasheet compute and memory time of each cell [s], dims (cell,)."""
    M, N, K = (cells[v].values for v in ("M", "N", "K"))
    own = sheets.sel(sku=cells["sku"].values)
    traffic = weight_traffic(N, K) + activation_traffic(M, N, K)
    return (
        gemm_flops(M, N, K) / own["peak_flop_rate"].values,
        traffic / own["peak_bandwidth"].values,
    )


def _observed(cells: xr.Dataset) -> np.ndarray:
    return np.asarray(median_of_builds(by_build(cells)).values)


def roofline(train: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset) -> np.ndarray:
    """Datasheet roofline [s], dims (cell,); nothing is fitted."""
    return np.maximum(*_branches(cells, sheets))


def _by_architecture(
    share: np.ndarray, train: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset
) -> np.ndarray:
    """Median of `share` over the training cells of a cell's architecture, or over all."""
    own = sheets["architecture"].sel(sku=train["sku"].values).values
    asked = sheets["architecture"].sel(sku=cells["sku"].values).values
    level = {a: np.median(share[own == a]) for a in np.unique(own)}
    return np.array([level.get(a, np.median(share)) for a in asked])


def ceilings(
    train: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset, *, wave: bool = False
) -> np.ndarray:
    """One compute ceiling an architecture and one share of bandwidth [s], dims (cell,).

    With `wave`, the source's fix: the ceiling times the wave quantisation of its tile ladder, from
    M = 64 up.
    """

    def compute(at: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
        ideal, memory = _branches(at, sheets)
        return ideal / (_ladder_wave(at, sheets) if wave else 1.0), memory

    ideal, memory = compute(train)
    observed, bound = _observed(train), np.argmax(_branches(train, sheets), axis=0)
    share = ideal / observed
    at_compute = bound == 0
    eta_memory = np.median((memory / observed)[~at_compute])
    ceiling = _by_architecture(
        share[at_compute], train.isel(cell=np.flatnonzero(at_compute)), cells, sheets
    )
    ideal, memory = compute(cells)
    return np.maximum(ideal / ceiling, memory / eta_memory)


def _ladder_wave(cells: xr.Dataset, sheets: xr.Dataset) -> np.ndarray:
    tile_m, tile_n = tile_ladder(cells["M"].values)
    sms = sheets["sm_count"].sel(sku=cells["sku"].values).values
    share = eta_wave(
        cells["M"].values, cells["N"].values, tile_m=tile_m, tile_n=tile_n, sm_count=sms
    )
    return np.where(cells["M"].values >= LADDER_FROM, share, 1.0)


def intensity(train: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset) -> np.ndarray:
    """Ceiling of the architecture times ``min(1, AI / ridge)`` [s], dims (cell,)."""
    floor = np.maximum(*_branches(train, sheets))
    share = floor / _observed(train)
    return np.maximum(*_branches(cells, sheets)) / _by_architecture(share, train, cells, sheets)


def boosting(train: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset) -> np.ndarray:
    """Gradient boosting on shape and datasheet features [s], dims (cell,); needs scikit-learn."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(max_iter=400, learning_rate=0.05, random_state=0)
    scale = np.log(np.maximum(*_branches(train, sheets)))
    model.fit(_columns(train, sheets), np.log(_observed(train)) - scale)
    floor = np.log(np.maximum(*_branches(cells, sheets)))
    return np.exp(model.predict(_columns(cells, sheets)) + floor)


def _columns(cells: xr.Dataset, sheets: xr.Dataset) -> np.ndarray:
    own = sheets.sel(sku=cells["sku"].values)
    facts = ("peak_flop_rate", "peak_bandwidth", "sm_count", "boost_clock", "l2", "power_limit")
    sizes = [np.log2(cells[v].values) for v in ("M", "N", "K")]
    compute, memory = _branches(cells, sheets)
    return np.stack([*sizes, np.log2(compute / memory), *(np.log(own[f].values) for f in facts)], 1)


def everyone() -> dict[str, Predictor]:
    """Rivals by name; gradient boosting only where scikit-learn is installed."""
    out: dict[str, Predictor] = {
        "datasheet roofline": roofline,
        "ceiling per architecture": ceilings,
        "ceiling x min(1, AI/ridge)": intensity,
        "eta_wave x ceiling": lambda t, c, s: ceilings(t, c, s, wave=True),
    }
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return out
    return out | {"gradient boosting": boosting}


def with_spread(
    predict: Predictor, train: xr.Dataset, cells: xr.Dataset, sheets: xr.Dataset, *, seed: int
) -> xr.DataArray:
    """Draws of a point predictor [s], dims (chain, draw, cell): its own training residuals added.

    The residuals are those of its fit to the training rows, so a rival that overfits is narrow.
    """
    rng = np.random.default_rng(seed)
    residual = np.log(_observed(train) / predict(train, train, sheets))
    spread = rng.choice(residual, size=(1, SPREAD, cells.sizes["cell"]))
    draws = predict(train, cells, sheets) * np.exp(spread)
    return xr.DataArray(
        draws, dims=("chain", "draw", "cell"), coords={"cell": cells["cell"].values}
    )
