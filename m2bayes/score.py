"""How good forecasts were: proper scores, calibration and errors of points, all as losses.

Scores of draws take `draws`, DataArray, dims (*sample_dims, ...) and `observed`, a number or a
DataArray, dims among those of the draws [the same unit]; dims that only the draws have are
broadcast. Scores of points take two DataArrays with the same dims.

`DataError` (a ValueError) if a dim is missing, labels or units differ, or a value is NaN.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import xarray as xr
from xarray import DataArray, Dataset

from m2bayes.errors import DataError

_SAMPLE = ("chain", "draw")


def _aligned(first: DataArray, second: DataArray | float, what: str) -> tuple[DataArray, DataArray]:
    """Two arrays of floats, whole and with the same labels and units, or an error."""
    second = second if isinstance(second, DataArray) else DataArray(second)
    for name, array in zip(what.split(), (first, second), strict=True):
        if missing := int(array.isnull().sum()):
            raise DataError(f"{missing} of {array.size} values of {name} are NaN: drop them first")
    units = {a.attrs["units"] for a in (first, second) if "units" in a.attrs}
    if len(units) > 1:
        raise DataError(f"{what} are in {sorted(units)}: convert to one unit")
    try:
        first, second = xr.align(first, second, join="exact", copy=False)
    except ValueError as error:
        raise DataError(f"labels of {what} differ; select the same ones from both") from error
    return first.astype(float), second.astype(float)


def _split(
    draws: DataArray, observed: DataArray | float, sample_dims: Sequence[Hashable]
) -> tuple[np.ndarray, np.ndarray, DataArray]:
    """Draws (..., sample), observations (..., 1), and a template (...) for the result."""
    missing = [d for d in sample_dims if d not in draws.dims]
    if missing or not sample_dims:
        raise DataError(f"draws have dims {draws.dims}, without {missing}: see sample_dims")
    if not all(draws.sizes[d] for d in sample_dims):
        raise DataError(f"no draws: sizes {dict(draws.sizes)}")
    draws, observed = _aligned(draws, observed, "draws observed")
    template = draws.isel(dict.fromkeys(sample_dims, 0), drop=True)
    if extra := [d for d in observed.dims if d not in template.dims]:
        raise DataError(f"observed has dims {extra}, which forecasts {template.dims} do not")
    x = draws.transpose(*template.dims, *sample_dims).values.reshape((*template.shape, -1))
    y = observed.broadcast_like(template).transpose(*template.dims).values
    return x, y[..., None], template


def _result(template: DataArray, value: np.ndarray, name: str, units: str | None) -> DataArray:
    return DataArray(
        value, template.coords, template.dims, name, {} if units is None else {"units": units}
    )


def crps(
    draws: DataArray, observed: DataArray | float, *, sample_dims: Sequence[Hashable] = _SAMPLE
) -> DataArray:
    r"""Continuous ranked probability score, a loss in the unit of the observation.

    :math:`E|X - y| - \frac12 E|X - X'|` [1]_ (eq. 21, sign turned), by the fair estimator
    :math:`\frac1n\sum_i|x_i-y| - \frac1{2n(n-1)}\sum_{i,j}|x_i-x_j|`, unbiased for independent
    draws whatever n [2]_; the pairs cost a sort. ``arviz_stats.loo_score`` returns minus this.

    Parameters
    ----------
    draws, observed : DataArray, dims (*sample_dims, ...) and (...) [any unit]
    sample_dims : sequence of str

    Returns
    -------
    DataArray, dims (...) [unit of the draws]; below 0 by chance when the true score is near 0

    Raises
    ------
    DataError
        Fewer than two draws; see also the module.

    References
    ----------
    .. [1] Gneiting, Raftery (2007). https://doi.org/10.1198/016214506000001437
    .. [2] Zamo, Naveau (2018). https://doi.org/10.1007/s11004-017-9709-7

    Examples
    --------
    Draws 0 and 2, observed 3: mean error 2, less half the mean difference of the one pair.

    >>> crps(DataArray([0.0, 2.0], dims="draw"), 3.0, sample_dims=["draw"]).item()
    1.0
    """
    x, y, template = _split(draws, observed, sample_dims)
    n = x.shape[-1]
    if n < 2:
        raise DataError("the CRPS needs two draws or more; for a point take the absolute error")
    error = np.sort(x - y, axis=-1)
    pairs = error @ (2.0 * np.arange(n) + 1 - n)  # sum of |x_i - x_j| over i < j
    score = np.abs(error).mean(-1) - pairs / (n * (n - 1))
    return _result(template, score, "crps", draws.attrs.get("units"))


def _bounds(x: np.ndarray, mass: float) -> np.ndarray:
    if not 0 < mass < 1:
        raise DataError(f"mass of the interval is {mass}; give a number between 0 and 1")
    return np.quantile(x, [(1 - mass) / 2, (1 + mass) / 2], axis=-1)


def interval_score(
    draws: DataArray,
    observed: DataArray | float,
    mass: float = 0.9,
    *,
    sample_dims: Sequence[Hashable] = _SAMPLE,
) -> DataArray:
    r"""Width of the equal-tailed interval, and a fine for each observation outside it.

    :math:`(u-l) + \frac2\alpha(l-y)_+ + \frac2\alpha(y-u)_+`, :math:`\alpha` = 1 - mass [1]_
    (eq. 43).

    Parameters
    ----------
    draws, observed : DataArray, dims (*sample_dims, ...) and (...) [any unit]
    mass : float in (0, 1)
        Probability [1] of the interval.
    sample_dims : sequence of str

    Returns
    -------
    DataArray, dims (...) [unit of the draws]

    Raises
    ------
    DataError
        Mass out of range; see also the module.

    References
    ----------
    .. [1] Gneiting, Raftery (2007). https://doi.org/10.1198/016214506000001437

    Examples
    --------
    The middle half of 0 to 4 is 1 to 3; 4 lies 1 outside, which costs 2 / 0.5.

    >>> draws = DataArray([0.0, 1.0, 2.0, 3.0, 4.0], dims="draw")
    >>> interval_score(draws, 4.0, 0.5, sample_dims=["draw"]).item()
    6.0
    """
    x, y, template = _split(draws, observed, sample_dims)
    low, high = _bounds(x, mass)
    outside = np.maximum(low - y[..., 0], 0) + np.maximum(y[..., 0] - high, 0)
    score = high - low + 2 / (1 - mass) * outside
    return _result(template, score, "interval_score", draws.attrs.get("units"))


def coverage(
    draws: DataArray,
    observed: DataArray | float,
    mass: float = 0.9,
    *,
    sample_dims: Sequence[Hashable] = _SAMPLE,
) -> DataArray:
    """Whether each equal-tailed interval holds its observation, as 1 or 0; the mean should be mass.

    Parameters
    ----------
    draws, observed : DataArray, dims (*sample_dims, ...) and (...) [any unit]
    mass : float in (0, 1)
        Probability [1] of the interval, whose ends belong to it.
    sample_dims : sequence of str

    Returns
    -------
    DataArray, dims (...) [1]

    Raises
    ------
    DataError
        Mass out of range; see also the module.

    Examples
    --------
    >>> draws = DataArray([0.0, 1.0, 2.0, 3.0, 4.0], dims="draw")
    >>> coverage(draws, 3.0, 0.5, sample_dims=["draw"]).item()
    1.0
    """
    x, y, template = _split(draws, observed, sample_dims)
    low, high = _bounds(x, mass)
    inside = (low <= y[..., 0]) & (y[..., 0] <= high)
    return _result(template, inside.astype(float), "coverage", "1")


def pit(
    draws: DataArray, observed: DataArray | float, *, sample_dims: Sequence[Hashable] = _SAMPLE
) -> DataArray:
    r"""Probability integral transform, the share of draws below the observation.

    :math:`P(X < y) + P(X = y)/2`; uniform over cases if the forecasts are calibrated [1]_.

    Parameters
    ----------
    draws, observed : DataArray, dims (*sample_dims, ...) and (...) [any unit]
    sample_dims : sequence of str

    Returns
    -------
    DataArray, dims (...) [1]

    References
    ----------
    .. [1] Gneiting, Balabdaoui, Raftery (2007). https://doi.org/10.1111/j.1467-9868.2007.00587.x

    Examples
    --------
    >>> pit(DataArray([1.0, 2.0, 3.0, 4.0], dims="draw"), 2.0, sample_dims=["draw"]).item()
    0.375
    """
    x, y, template = _split(draws, observed, sample_dims)
    return _result(template, (x < y).mean(-1) + (x == y).mean(-1) / 2, "pit", "1")


def _points(first: DataArray, second: DataArray | float, what: str) -> tuple[DataArray, DataArray]:
    if isinstance(second, DataArray) and set(first.dims) != set(second.dims):
        raise DataError(f"{what} have dims {first.dims} and {second.dims}; give both the same")
    return _aligned(first, second, what)


def _along(array: DataArray, dim: str | Sequence[str] | None) -> DataArray:
    names = [dim] if isinstance(dim, str) else dim or []
    if missing := [d for d in names if d not in array.dims]:
        raise DataError(f"no dim {missing} among {array.dims}")
    return array


def absolute_percentage_error(predicted: DataArray, observed: DataArray | float) -> DataArray:
    r"""Relative error :math:`|p - o| / |o|`, as a share: 0.05 is 5 %.

    Parameters
    ----------
    predicted, observed : DataArray, dims (...) [any unit]

    Returns
    -------
    DataArray, dims (...) [1]

    Raises
    ------
    DataError
        An observation of 0; see also the module.

    Examples
    --------
    >>> absolute_percentage_error(DataArray([5.0], dims="obs"), DataArray([4.0], dims="obs")).item()
    0.25
    """
    predicted, observed = _points(predicted, observed, "predicted observed")
    if zeros := int((observed == 0).sum()):
        raise DataError(f"{zeros} of {observed.size} observations are 0: no relative error")
    error = abs(predicted - observed) / abs(observed)
    return error.rename("absolute_percentage_error").assign_attrs(units="1")


def mape(
    predicted: DataArray, observed: DataArray | float, dim: str | Sequence[str] | None = None
) -> DataArray:
    r"""Mean of :math:`|p - o| / |o|` over `dim` (all by default), as a share: 0.05 is 5 %.

    Parameters
    ----------
    predicted, observed : DataArray, dims (dim, ...) [any unit]
    dim : str or sequence of str, optional

    Returns
    -------
    DataArray, dims (...) [1]

    Raises
    ------
    DataError
        An observation of 0; see also the module.

    Examples
    --------
    >>> o = DataArray([4.0, 10.0], dims="obs")
    >>> mape(DataArray([5.0, 10.0], dims="obs"), o).item()
    0.125
    """
    error = absolute_percentage_error(predicted, observed)
    return _along(error, dim).mean(dim, keep_attrs=True).rename("mape")


def _mean_ranks(x: np.ndarray) -> np.ndarray:
    ordered = np.sort(x)
    return (np.searchsorted(ordered, x) + np.searchsorted(ordered, x, "right") + 1) / 2


def rank_correlation(predicted: DataArray, observed: DataArray, dim: str = "sku") -> DataArray:
    """Spearman's correlation of two rankings along `dim`; ties get the mean rank. Not a loss.

    Pearson's correlation of the ranks [1]_. NaN if all values along `dim` are equal.

    Parameters
    ----------
    predicted, observed : DataArray, dims (dim, ...) [any unit]
    dim : str

    Returns
    -------
    DataArray, dims (...) [1]; 1 for the same order, -1 for the opposite

    Raises
    ------
    DataError
        Fewer than two values along `dim`; see also the module.

    References
    ----------
    .. [1] Spearman (1904). https://doi.org/10.2307/1412159

    Examples
    --------
    One swap of neighbours among three: 1 - 6 * (1 + 1) / (3 * 8).

    >>> a = DataArray([1.0, 2.0, 3.0], dims="sku")
    >>> rank_correlation(a, DataArray([1.0, 9.0, 5.0], dims="sku")).item()
    0.5
    """
    predicted, observed = _points(_along(predicted, dim), observed, "predicted observed")
    if predicted.sizes[dim] < 2:
        raise DataError(f"a ranking needs two values or more along {dim!r}")
    template = predicted.isel({dim: 0}, drop=True)
    ranks = [
        np.apply_along_axis(_mean_ranks, -1, a.transpose(*template.dims, dim).values)
        for a in (predicted, observed)
    ]
    a, b = (r - r.mean(-1, keepdims=True) for r in ranks)
    scale = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    value = np.where(scale > 0, (a * b).sum(-1) / np.where(scale > 0, scale, 1), np.nan)
    return _result(template, value, "rank_correlation", "1")


def _events(probability: DataArray, event: DataArray) -> tuple[DataArray, DataArray]:
    probability, event = _points(probability, event, "probability event")
    if bad := int(((probability < 0) | (probability > 1)).sum()):
        raise DataError(f"{bad} probabilities lie outside [0, 1]")
    if bad := int((~event.isin([0, 1])).sum()):
        raise DataError(f"{bad} events are neither 0 nor 1: say whether each happened")
    return probability, event


def brier(probability: DataArray, event: DataArray) -> DataArray:
    """Squared error of a probability, ``(p - e)**2`` for the event e = 0 or 1 [1]_.

    Parameters
    ----------
    probability, event : DataArray, dims (...) [1]

    Returns
    -------
    DataArray, dims (...) [1]; 0.25 for always saying one half

    Raises
    ------
    DataError
        Probabilities outside [0, 1], events other than 0 and 1; see also the module.

    References
    ----------
    .. [1] Brier (1950). https://doi.org/10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2

    Examples
    --------
    >>> brier(DataArray([0.5], dims="pair"), DataArray([True], dims="pair")).item()
    0.25
    """
    probability, event = _events(probability, event)
    return ((probability - event) ** 2).rename("brier").assign_attrs(units="1")


def reliability(
    probability: DataArray, event: DataArray, bins: int | Sequence[float] = 10
) -> Dataset:
    """Compare what was said with what happened, in bins of probability [1]_.

    Parameters
    ----------
    probability, event : DataArray, dims (...) [1]
    bins : int or ascending sequence from 0 to 1
        Equal bins, or their edges [1]; a bin holds its lower edge, the last one both.

    Returns
    -------
    Dataset, dims (bin,) [1]
        `cases`, `mean_probability` and `frequency` of the event (NaN in an empty bin); coordinates
        `lower` and `upper`.

    Raises
    ------
    DataError
        Edges that do not ascend from 0 to 1; what `brier` raises.

    References
    ----------
    .. [1] Murphy, Winkler (1977). https://doi.org/10.2307/2346866

    Examples
    --------
    >>> p = DataArray([0.1, 0.2, 0.9], dims="pair")
    >>> reliability(p, DataArray([0, 1, 1], dims="pair"), bins=2)["frequency"].values
    array([0.5, 1. ])
    """
    probability, event = _events(probability, event)
    edges = np.arange(bins + 1) / max(bins, 1) if isinstance(bins, int) else np.array(bins, float)
    if len(edges) < 2 or edges[0] != 0 or edges[-1] != 1 or (np.diff(edges) <= 0).any():
        raise DataError(f"bins {bins} do not ascend from 0 to 1; give a number of bins or edges")
    p, e = (a.transpose(*probability.dims).values.ravel() for a in (probability, event))
    place = np.minimum(np.searchsorted(edges, p, "right"), len(edges) - 1) - 1
    cases = np.bincount(place, minlength=len(edges) - 1)
    share = np.where(cases > 0, 1 / np.maximum(cases, 1), np.nan)
    result = Dataset(coords={"lower": ("bin", edges[:-1]), "upper": ("bin", edges[1:])})
    result["cases"] = ("bin", cases)
    for name, weight in (("mean_probability", p), ("frequency", e)):
        result[name] = ("bin", np.bincount(place, weight, len(edges) - 1) * share)
    for variable in result.variables.values():
        variable.attrs["units"] = "1"
    return result
