"""What the time of a step depends on, as draws that its uncertainty can be laid to."""

from __future__ import annotations

import numpy as np
import xarray as xr

from m2bayes.factors import of_sku, with_skus
from m2bayes.predictive import own_seed
from m2bayes.prices import price_draws
from m2bayes.quantisation import of_dtype
from m2bayes.question import Question

GROUPS = {"attention": "attention", "all_reduce": "all-reduce", "host": "host"}
PRODUCTS = ("qkv", "o", "gate_up", "up", "down", "lm_head")


def factors_of(question: Question) -> xr.Dataset:
    """Factors of the matrix products on each SKU asked for, dims (chain, draw, sku) [as named]."""
    sheets = of_dtype(question.datasheets, str(question.posterior.attrs["dtype"]))
    seed = own_seed(question.posterior, question.seed)
    return with_skus(question.posterior, sheets, seed=seed)


def drivers(
    question: Question, time: xr.DataArray, factors: xr.Dataset | None = None
) -> dict[tuple[str, str], np.ndarray]:
    """Factors of the matrix products, their discrepancy, and the other parts of a step.

    Parameters
    ----------
    question : Question
        What is asked.
    time : DataArray, dims (chain, draw, sku, op)
        Time of each operator of one step [s]; NaN where it does not fit. Of some SKUs of the
        question.
    factors : Dataset, dims (chain, draw, sku), optional
        From `factors_of`, if they are known already.

    Returns
    -------
    dict of ndarray, dims (draw,)
        By SKU and name: factors on the scale of their link, logs of times [1]. ``discrepancy`` is
        what the factors leave of the products' time; ``price`` where cost is asked for.
    """
    factors = factors_of(question) if factors is None else factors
    known = [str(s) for s in question.datasheets["sku"].values]
    found: dict[tuple[str, str], np.ndarray] = {}
    for at, sku in enumerate(str(s) for s in time["sku"].values):
        own = of_sku(factors, known.index(sku), "chain", "draw")
        held = {k: v.ravel() for k, v in own.items()}
        found |= {(sku, name): draws for name, draws in held.items()}
        if question.prices and question.metric == "cost_per_million_tokens":
            price = price_draws(question.prices, [sku], time, seed=question.seed)
            found[sku, "price"] = _flat(price.isel(sku=0))
        for name, draws in _parts(time.isel(sku=at)).items():
            kept = np.isfinite(draws)
            if name != "products":
                found[sku, name] = draws
            elif kept.sum() > 2 * len(held):
                found[sku, "discrepancy"] = _left(draws, np.stack([*held.values()], axis=-1), kept)
    return found


def _parts(time: xr.DataArray) -> dict[str, np.ndarray]:
    """Log time of each part of a step, dims (draw,)."""
    ops = [str(op) for op in time["op"].values]
    names = [
        "products" if op in PRODUCTS else next((v for k, v in GROUPS.items() if k in op), "light")
        for op in ops
    ]
    flat = time.variable.transpose("chain", "draw", "op").values.reshape(-1, len(ops))
    found = {}
    for name in dict.fromkeys(names):
        part = flat[:, [n == name for n in names]].sum(-1)
        if (part > 0).any():
            found[name] = np.log(np.where(part > 0, part, np.nan))
    return found


def _flat(draws: xr.DataArray) -> np.ndarray:
    return np.asarray(draws.transpose("chain", "draw").values, dtype=float).ravel()


def _left(target: np.ndarray, factors: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """What a linear fit on the factors leaves of the target, dims (draw,)."""
    design = np.column_stack([np.ones(len(factors)), factors - factors.mean(0)])
    scale = np.maximum(np.abs(design).max(0), 1e-300)
    weights = np.linalg.lstsq((design / scale)[kept], target[kept], rcond=None)[0]
    return np.where(kept, target - (design / scale) @ weights, np.nan)
