"""Which SKU is best, and how sure: flips, regret and verdicts from joint draws of a metric.

Shared by every function below:

- `metric` : DataArray, dims (chain, draw, sku, ...) [any unit]. Joint draws: one draw index is one
  state of the world for all SKUs, so what they share cancels; marginals are never ranked.
- Lower is better unless `higher_is_better`. Other dims (workload) are kept, and come first.
- NaN: the SKU does not fit in that draw. It counts as worse than any number, so it is never best;
  a result that would be infinite is returned as NaN.
- `WorkloadError` if a dim is missing or empty, SKUs are named twice, or a value is infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import isqrt, prod, sqrt

import numpy as np
from xarray import DataArray, Dataset

from m2bayes.errors import WorkloadError

_BLOCK = 2**21  # numbers in one temporary array: 16 MB
NEGLIGIBLE = 0.01  # relative regret below which either SKU will do
_METRIC = {"posterior_median", "posterior_mean", "low", "high"}
_METRIC |= {"expected_regret", "expected_regret_mcse"}
_Arrays = dict[str, np.ndarray]  # (case, ...), (case, sku, ...) or (case, sku, sku)


def _floor(n: int) -> float:
    """Agresti and Coull's standard error of a probability after 0 (or n) successes in n draws."""
    p = 2 / (n + 4)
    return sqrt(p * (1 - p) / (n + 4))


def _mean(z: np.ndarray, probability: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Mean and Monte Carlo standard error of z (..., chain, draw), as in `mcse`."""
    chains, draws = z.shape[-2:]
    n, length = chains * draws, isqrt(draws)
    if chains * (draws // length) < 10:
        length = 1
    batches = draws // length
    split = z[..., : batches * length].reshape(*z.shape[:-1], batches, length)
    error = np.full(z.shape[:-2], np.nan)
    if n > 1:
        error = np.sqrt(split.mean(-1).var((-2, -1), ddof=1) * length / n)
    return z.mean((-2, -1)), np.fmax(error, _floor(n)) if probability else error


def _shares(x: np.ndarray) -> np.ndarray:
    best = x.min(1, keepdims=True)
    hit = (x == best) & (best < np.inf)
    return hit / np.maximum(hit.sum(1, keepdims=True), 1)


def _best(x: np.ndarray) -> _Arrays:
    return dict(zip(("p_best", "p_best_mcse"), _mean(_shares(x)), strict=True))


def _duels(x: np.ndarray) -> _Arrays:
    """P(other is better than sku), ties half, and the mean rank, which is 1 + its sum."""
    skus = x.shape[1]
    loses, error = np.zeros((2, len(x), skus, skus))
    for a in range(skus):
        for b in range(a):
            z = np.where(x[:, b] == x[:, a], 0.5, x[:, b] < x[:, a])
            loses[:, a, b], error[:, a, b] = _mean(z)
            loses[:, b, a], error[:, b, a] = 1 - loses[:, a, b], error[:, a, b]
    return {"expected_rank": 1 + loses.sum(-1), "loses": loses, "p_flip_mcse": error}


def _places(x: np.ndarray) -> _Arrays:
    skus = range(x.shape[1])
    better = np.stack([(x < x[:, [s]]).sum(1) for s in skus], 1)
    tied = np.stack([(x == x[:, [s]]).sum(1) for s in skus], 1)
    share = (((better <= k) & (k < better + tied)) / tied for k in skus)
    return {"place": np.stack([z.mean((-2, -1)) for z in share], -1)}


def _quantiles(x: np.ndarray, *levels: float) -> list[np.ndarray]:
    """Linear interpolation like `np.quantile`, which fails at inf."""
    ordered = np.sort(x.reshape(*x.shape[:2], -1), -1)
    result = []
    for at in (level * (ordered.shape[-1] - 1) for level in levels):
        low, part = ordered[..., int(at)], at % 1
        result.append(low * (1 - part) + ordered[..., int(at) + 1] * part if part else low)
    return result


def _key(x: np.ndarray, median: np.ndarray | None = None) -> np.ndarray:
    """Median that orders the SKUs; inf only where a SKU never fits."""
    median = _quantiles(x, 0.5)[0] if median is None else median
    never = np.isinf(x.min((-2, -1)))
    return np.where(never, np.inf, np.minimum(median, np.finfo(float).max))


def _flip(loses: np.ndarray, key: np.ndarray) -> np.ndarray:
    a, b = key[:, :, None], key[:, None, :]
    p = np.where(a < b, loses, np.where(a > b, 1 - loses, 0.5))
    return np.where(np.isinf(a) & np.isinf(b) | np.eye(p.shape[1], dtype=bool), 0.0, p)


def _any_flip(x: np.ndarray, key: np.ndarray) -> _Arrays:
    """Break each tie by fair coins: a group of g equal SKUs has g! orders, all as likely."""
    order = np.argsort(key, axis=1, kind="stable")
    key = np.take_along_axis(key, order, 1)
    x = np.take_along_axis(x, order[..., None, None], 1)
    equal = (key[:, 1:] == key[:, :-1]) & np.isfinite(key[:, 1:])
    for case in np.flatnonzero(equal.any(1)):  # equal medians: any order inside the group will do
        for value in np.unique(key[case]):
            x[case, key[case] == value] = np.sort(x[case, key[case] == value], axis=0)
    kept = np.ones_like(x[:, 0])
    drawn, median, both = kept, kept[:, :1, :1], kept  # lengths of the runs of ties so far
    for k in range(1, x.shape[1]):
        ties = (x[:, k] == x[:, k - 1]) & np.isfinite(key[:, k])[:, None, None]
        level = equal[:, k - 1][:, None, None]
        drawn, median = np.where(ties, drawn + 1, 1), np.where(level, median + 1, 1)
        both = np.where(ties & level, both + 1, 1)
        kept = kept * (x[:, k] >= x[:, k - 1]) * both / (drawn * median)
    return dict(zip(("p_any_flip", "p_any_flip_mcse"), _mean(1 - kept), strict=True))


def _top1_flip(x: np.ndarray, key: np.ndarray) -> _Arrays:
    best = key.min(1, keepdims=True)
    winners = key == best
    share = np.einsum("cs,csij->cij", winners / winners.sum(1, keepdims=True), _shares(x))
    p, error = _mean(1 - share)
    none = np.isinf(best[:, 0])
    return {
        "p_top1_flip": np.where(none, np.nan, p),
        "p_top1_flip_mcse": np.where(none, np.nan, error),
    }


def _regret(x: np.ndarray) -> _Arrays:
    best = x.min(1, keepdims=True)
    some = np.isfinite(best)
    excess = np.where(some, x, 0) - np.where(some, best, 0)
    scale = np.where(some & (best != 0), np.abs(best), 1)
    found, never = _Arrays(), np.isinf(x.min((-2, -1)))
    for name, z in (("expected_regret", excess), ("relative_regret", excess / scale)):
        endless = never | np.isinf(z).any((-2, -1))
        pair = _mean(np.where(endless[..., None, None], np.nan, z), probability=False)
        found |= dict(zip((name, f"{name}_mcse"), pair, strict=True))
    return found


def _evaluate(
    metric: DataArray,
    kernel: Callable[[np.ndarray], _Arrays],
    higher_is_better: bool,
    *,
    dim: Hashable = "sku",
    positive: bool = False,
) -> Dataset:
    """Apply `kernel` to blocks (case, sku, chain, draw): lower is better, inf does not fit."""
    if missing := [d for d in ("chain", "draw", dim) if d not in metric.dims]:
        raise WorkloadError(f"draws have dims {metric.dims}, without {missing}: name them so")
    if metric.size == 0:
        raise WorkloadError(f"nothing to compare: sizes {dict(metric.sizes)}; pass draws of a SKU")
    if len(set(metric[dim].values.tolist())) < metric.sizes[dim]:
        raise WorkloadError(f"a {dim} is named twice in {metric[dim].values.tolist()}: drop one")
    template = metric.isel(chain=0, draw=0, drop=True).transpose(..., dim)
    draws = metric.transpose(*template.dims, "chain", "draw").values
    view, shape = draws if draws.ndim > 3 else draws[None], template.shape[:-1]
    cases, step = prod(shape), max(1, _BLOCK // prod(view.shape[-3:]))
    parts = []
    for start in range(0, cases, step):
        index = np.unravel_index(np.arange(start, min(start + step, cases)), view.shape[:-3])
        x = np.array(view[index], dtype=float, order="C")
        if (bad := np.isinf(x)).any():
            raise WorkloadError(f"{bad.sum()} infinite draws: mark a SKU that does not fit by NaN")
        if positive and (bad := x <= 0).any():
            raise WorkloadError(f"{bad.sum()} draws are 0 or less: no relative regret; check units")
        parts.append(kernel(np.where(np.isnan(x), np.inf, -x if higher_is_better else x)))
    result = Dataset(coords=template.coords)
    dims = (*template.dims, f"{dim}_other")
    units = metric.attrs.get("units", "1")
    for name in parts[0]:
        value = np.concatenate([part[name] for part in parts])
        value = value.reshape((*shape, *value.shape[1:]))
        unit = units if name in _METRIC else "1"
        result[name] = DataArray(value, dims=dims[: value.ndim], attrs={"units": unit})
    if dims[-1] in result.dims:
        result = result.assign_coords({dims[-1]: template[dim].values})
    return result


def mcse(x: DataArray, sample_dims: Sequence[Hashable] = ("chain", "draw")) -> DataArray:
    r"""Monte Carlo standard error of the mean of autocorrelated draws, by batch means.

    Chains of N draws are cut into batches of :math:`b = \lfloor\sqrt N\rfloor` draws that do not
    overlap, :math:`\lfloor N/b\rfloor` a chain; the error is :math:`\sqrt{b/n}` times the standard
    deviation of all batch means, n the draws in all (Flegal and Jones). With fewer than 10
    batches draws are taken as independent (b = 1). If all draws are 0, or all 1, x is taken as
    an indicator and gets, for honesty, Agresti and Coull's :math:`\sqrt{p(1-p)/(n+4)}`,
    p = 2/(n+4): about 1.4/n. Right for chains much longer than b times their autocorrelation time.

    Parameters
    ----------
    x : DataArray, dims (*sample_dims, ...) [any unit]
    sample_dims : sequence of str
        The last one is the order of sampling.

    Returns
    -------
    DataArray, dims (...) [unit of x]; NaN for a single draw

    References
    ----------
    .. [1] Flegal, Jones (2010). https://doi.org/10.1214/09-AOS735
    .. [2] Agresti, Coull (1998). https://doi.org/10.1080/00031305.1998.10480550

    Examples
    --------
    Two draws, sd sqrt(2), over sqrt(2):

    >>> float(mcse(DataArray([[1.0, 3.0]], dims=("chain", "draw"))))
    1.0
    """
    if missing := [d for d in sample_dims if d not in x.dims] or not sample_dims:
        raise WorkloadError(f"draws have dims {x.dims}, without {missing}: see sample_dims")
    if x.size == 0:
        raise WorkloadError(f"no draws: sizes {dict(x.sizes)}")
    z = x.transpose(..., *sample_dims).astype(float)
    template = z.isel(dict.fromkeys(sample_dims, 0), drop=True)
    mean, error = _mean(z.values.reshape((*template.shape, -1, z.shape[-1])), probability=False)
    certain = np.isin(mean, (0, 1)) & ~(error > 0)
    return template.copy(data=np.where(certain, _floor(z.size // template.size), error))


def p_best(metric: DataArray, *, dim: str = "sku", higher_is_better: bool = False) -> DataArray:
    r"""Probability that each SKU is best: :math:`P(m_s = \min_k m_k)`, ties shared equally.

    Sums to 1 over SKUs, less the share of draws in which no SKU fits.

    Returns
    -------
    DataArray, dims (..., sku) [1]

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [1, 2], [4, 2]]], dims=("chain", "draw", "sku"))
    >>> p_best(time).values
    array([0.75, 0.25])
    """
    return _evaluate(metric, _best, higher_is_better, dim=dim)["p_best"]


def rank_distribution(metric: DataArray, *, higher_is_better: bool = False) -> DataArray:
    """Probability of each place (1 = best) for each SKU; ties share the places they fill equally.

    Returns
    -------
    DataArray, dims (..., sku, place) [1]

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [1, 2], [4, 2]]], dims=("chain", "draw", "sku"))
    >>> rank_distribution(time).sel(place=1).values
    array([0.75, 0.25])
    """
    share = _evaluate(metric, _places, higher_is_better)["place"].rename(sku_other="place")
    return share.assign_coords(place=np.arange(1, share.sizes["place"] + 1)).rename(None)


def expected_rank(metric: DataArray, *, higher_is_better: bool = False) -> DataArray:
    r"""Mean rank, :math:`1+\sum_{k≠s}P(m_k<m_s)+P(m_k=m_s)/2`; 1 is best, ties get the mean rank.

    Returns
    -------
    DataArray, dims (..., sku) [1]

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [1, 2], [4, 2]]], dims=("chain", "draw", "sku"))
    >>> expected_rank(time).values
    array([1.25, 1.75])
    """
    return _evaluate(metric, _duels, higher_is_better)["expected_rank"]


def p_flip(metric: DataArray, *, higher_is_better: bool = False) -> DataArray:
    r"""Probability that two SKUs stand in the opposite order of their posterior medians.

    For medians :math:`a < b` this is :math:`P(m_b < m_a) + P(m_a = m_b)/2`: ties of draws count
    half; equal medians give 0.5; a SKU with itself, and two that never fit, give 0.

    Returns
    -------
    DataArray, dims (..., sku, sku_other) [1]; symmetric

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [1, 2], [4, 2]]], dims=("chain", "draw", "sku"))
    >>> p_flip(time).values
    array([[0.  , 0.25],
           [0.25, 0.  ]])
    """
    result = _evaluate(
        metric, lambda x: {"p_flip": _flip(_duels(x)["loses"], _key(x))}, higher_is_better
    )
    return result["p_flip"]


def p_any_flip(metric: DataArray, *, higher_is_better: bool = False) -> DataArray:
    """Probability that the whole ranking differs from the ranking by posterior medians.

    Ties, of draws or of medians, are broken by fair coins, so two SKUs give their `p_flip`; SKUs
    that never fit have no place to change.

    Returns
    -------
    DataArray, dims (...) [1]

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [1, 2], [4, 2]]], dims=("chain", "draw", "sku"))
    >>> p_any_flip(time).item()
    0.25
    """
    return _evaluate(metric, lambda x: _any_flip(x, _key(x)), higher_is_better)["p_any_flip"]


def p_top1_flip(metric: DataArray, *, higher_is_better: bool = False) -> DataArray:
    """Probability that the SKU with the best median is not best: 1 - `p_best` of that SKU.

    Averaged over SKUs that share the best median; NaN if no SKU ever fits.

    Returns
    -------
    DataArray, dims (...) [1]

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [1, 2], [4, 2]]], dims=("chain", "draw", "sku"))
    >>> p_top1_flip(time).item()
    0.25
    """
    return _evaluate(metric, lambda x: _top1_flip(x, _key(x)), higher_is_better)["p_top1_flip"]


def expected_regret(
    metric: DataArray, relative: bool = False, *, higher_is_better: bool = False
) -> DataArray:
    r"""Regret of a SKU, the loss expected against knowing the best: :math:`E[m_s - \min_k m_k]`.

    With `relative`, :math:`E[(m_s - \min_k m_k) / \min_k m_k]`. Turned round (max - m) if more is
    better. NaN for a SKU that does not fit in some draw in which another does, or that never fits.

    Returns
    -------
    DataArray, dims (..., sku) [unit of the metric, or 1 if relative]

    Raises
    ------
    WorkloadError
        Relative regret of a metric that is 0 or less.

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [1, 2], [4, 2]]], dims=("chain", "draw", "sku"))
    >>> expected_regret(time).values
    array([0.5 , 0.75])
    """
    result = _evaluate(metric, _regret, higher_is_better, positive=relative)
    return result["relative_regret" if relative else "expected_regret"]


def _check_threshold(threshold: float) -> None:
    if not 0.5 < threshold <= 1:
        raise WorkloadError(f"threshold is {threshold}; give one above 0.5 and up to 1")


def _decide(result: Dataset, threshold: float = 1.0) -> Dataset:
    """Add choice, verdict and contenders; regrets that tie go to the larger p_best."""
    p, regret, relative = (
        result[k].values for k in ("p_best", "expected_regret", "relative_regret")
    )
    order = np.lexsort([-p, np.where(np.isnan(regret), np.inf, regret)], axis=-1)
    chosen = order[..., :1]
    fits = p.max(-1) > 0
    names = result["sku"].values.astype(str)[chosen[..., 0]]
    clear = np.take_along_axis(p, chosen, -1)[..., 0] >= threshold
    either = np.take_along_axis(relative, chosen, -1)[..., 0] < NEGLIGIBLE
    says = np.where(clear, "clear", np.where(either, "either will do", "too close to call"))
    dims = result["p_best"].dims
    result["contender"] = (dims, relative < NEGLIGIBLE, {"units": "1"})
    result["choice"] = (dims[:-1], np.where(fits, names, ""), {"units": "1"})
    attrs = {"units": "1", "threshold": threshold}
    result["verdict"] = (dims[:-1], np.where(fits, says, "nothing fits"), attrs)
    return result


def choose(metric: DataArray, *, higher_is_better: bool = False) -> DataArray:
    """Label of the SKU with the least expected regret; empty if no SKU fits.

    Regrets that tie go to the larger `p_best`, then to the SKU that comes first.

    Returns
    -------
    DataArray of str, dims (...) [label]

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [4, 2]]], {"sku": ["a", "b"]}, ("chain", "draw", "sku"))
    >>> choose(time).item()
    'a'
    """
    result = _evaluate(metric, lambda x: _best(x) | _regret(x), higher_is_better)
    return _decide(result)["choice"]


def evpi(metric: DataArray, *, higher_is_better: bool = False) -> DataArray:
    r"""Value expected of perfect information: the regret that is left with the best choice.

    :math:`\min_s E[m_s - \min_k m_k]`: measuring cannot be worth more (Howard 1966). NaN if every
    choice has a regret that is infinite, or none fits.

    Returns
    -------
    DataArray, dims (...) [unit of the metric]

    References
    ----------
    .. [1] Howard (1966). https://doi.org/10.1109/TSSC.1966.300074

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [1, 2], [4, 2]]], dims=("chain", "draw", "sku"))
    >>> evpi(time).item()
    0.5
    """
    regret = expected_regret(metric, higher_is_better=higher_is_better)
    return regret.min("sku").rename("evpi").assign_attrs(regret.attrs)


def contenders(metric: DataArray, *, higher_is_better: bool = False) -> DataArray:
    """Whether a SKU will do: its own relative expected regret is under 1 %.

    Returns
    -------
    DataArray of bool, dims (..., sku) [1]

    Raises
    ------
    WorkloadError
        A metric that is 0 or less.

    Examples
    --------
    >>> time = DataArray([[[1, 1.001, 2]]], dims=("chain", "draw", "sku"))
    >>> contenders(time).values
    array([ True,  True, False])
    """
    relative = expected_regret(metric, True, higher_is_better=higher_is_better)
    return (relative < NEGLIGIBLE).rename("contender").assign_attrs(units="1")


def verdict(
    metric: DataArray, threshold: float = 0.9, *, higher_is_better: bool = False
) -> DataArray:
    """Say whether the choice is clear.

    "clear" if `p_best` of the choice is `threshold` [1] or more; else "either will do" if its
    relative expected regret is under 1 % (`contenders` names the SKUs); else "too close to call".
    "nothing fits" if no SKU ever does.

    Returns
    -------
    DataArray of str, dims (...) [label]

    Raises
    ------
    WorkloadError
        Threshold outside (0.5, 1]; a metric that is 0 or less.

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [1, 2], [4, 2]]], dims=("chain", "draw", "sku"))
    >>> verdict(time, 0.75).item(), verdict(time, 0.9).item()
    ('clear', 'too close to call')
    """
    _check_threshold(threshold)
    result = _evaluate(metric, lambda x: _best(x) | _regret(x), higher_is_better, positive=True)
    return _decide(result, threshold)["verdict"]


def rank(
    metric: DataArray, *, threshold: float = 0.9, mass: float = 0.9, higher_is_better: bool = False
) -> Dataset:
    """Everything there is to know for choosing, from one pass over the joint draws.

    Parameters
    ----------
    metric : DataArray, dims (chain, draw, sku, ...) [``metric.attrs["units"]``]
        Joint draws, above 0, NaN where a SKU does not fit.
    threshold : float in (0.5, 1]
        Probability [1] from which the verdict is "clear".
    mass : float in (0, 1)
        Probability [1] between `low` and `high`, an equal-tailed interval.
    higher_is_better : bool

    Returns
    -------
    Dataset, dims (..., sku[, sku_other]) [each variable's ``attrs["units"]``]
        `posterior_median`, `posterior_mean`, `low`, `high` (``median`` and ``mean`` are methods of
        a Dataset), `p_best`, `expected_rank`, `expected_regret`, `relative_regret`, `contender`,
        `p_flip`, `p_any_flip`, `p_top1_flip`, `choice`, `verdict`, as in the functions of that
        name, and the `_mcse` of each probability and regret.

    Raises
    ------
    WorkloadError
        Threshold or mass out of range; a metric that is 0 or less.

    Examples
    --------
    >>> time = DataArray([[[1, 2], [1, 2], [4, 2]]], {"sku": ["a", "b"]}, ("chain", "draw", "sku"))
    >>> result = rank(time)
    >>> result["choice"].item(), result["verdict"].item(), result["posterior_mean"].values
    ('a', 'too close to call', array([2., 2.]))
    """
    _check_threshold(threshold)
    if not 0 < mass < 1:
        raise WorkloadError(f"mass of the interval is {mass}; give a number between 0 and 1")

    def kernel(x: np.ndarray) -> _Arrays:
        low, median, high = _quantiles(x, (1 - mass) / 2, 0.5, (1 + mass) / 2)
        times = {"posterior_median": median, "posterior_mean": x.mean((-2, -1))}
        times |= {"low": -high, "high": -low} if higher_is_better else {"low": low, "high": high}
        if higher_is_better:
            times |= {k: -times[k] for k in ("posterior_median", "posterior_mean")}
        times = {k: np.where(np.isinf(v), np.nan, v) for k, v in times.items()}
        duels, key = _duels(x), _key(x, median)
        duels["p_flip"] = _flip(duels.pop("loses"), key)
        return times | _best(x) | _regret(x) | duels | _any_flip(x, key) | _top1_flip(x, key)

    result = _evaluate(metric, kernel, higher_is_better, positive=True)
    for bound in ("low", "high"):
        result[bound].attrs |= {"kind": "eti", "mass": mass}
    return _decide(result, threshold)
