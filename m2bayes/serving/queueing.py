"""Queues in steady state: how many are in service, who waits, and how long. Elementwise on draws.

All functions take NumPy arrays whose leading dims are anything (usually draw) and broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

TINY = 1e-300
LONG = 1e100  # [s] stands for an endless wait
FIRST = 1e3  # [s] from which bisection still finds microseconds
ENDLESS = 1e7  # [s] beyond which a quantile of waits is endless: four months


def in_system(arrivals: Any, completions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Stationary distribution of a birth-death queue whose rate of service depends on its length.

    .. math:: \pi_n \propto \prod_{k=1}^{n} \frac{\lambda}{\mu_k}

    the M/M(n)/1 queue. With exponential demands it is exact; shared equally among those in service
    (processor sharing, as a batch that decodes) it holds for any distribution of demands with the
    same mean (Cohen 1979). Beyond the N rates given the queue goes on at the last, so its tail is
    geometric.

    Parameters
    ----------
    arrivals : array_like, dims (…)
        Rate of arrival :math:`\lambda` [1/s].
    completions : ndarray, dims (…, n)
        Rate of service :math:`\mu_n` with n = 1 … N in the system [1/s], above 0.

    Returns
    -------
    tuple of ndarray, dims (…, n) and (…)
        Probability of 0 … N − 1 in the system, and of N or more [1]. Where the queue is unstable,
        :math:`\lambda \ge \mu_N`, all mass is in the last.

    References
    ----------
    .. [1] Cohen (1979). The multiple phase service network with generalized processor sharing.
       Acta Informatica 12. https://doi.org/10.1007/BF00264581
    .. [2] Gross, Harris (1998). Fundamentals of queueing theory, section 2.9.

    Examples
    --------
    M/M/1 at half load: half of the time empty, and two or more a quarter of it.

    >>> below, full = in_system(1.0, np.array([2.0, 2.0]))
    >>> below, full
    (array([0.5 , 0.25]), array(0.25))
    """
    rate = np.asarray(arrivals, float)[..., None]
    ratio = np.log(np.maximum(rate, TINY)) - np.log(np.maximum(completions, TINY))
    logs = np.concatenate([np.zeros((*ratio.shape[:-1], 1)), np.cumsum(ratio, axis=-1)], axis=-1)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    last = np.asarray(rate[..., 0] / np.maximum(completions[..., -1], TINY))
    stable = last < 1
    tail = weights[..., -1] / np.where(stable, 1 - last, 1)
    total = weights[..., :-1].sum(-1) + tail
    below = np.where(stable[..., None], weights[..., :-1] / total[..., None], 0.0)
    return below, np.where(stable, tail / total, 1.0)


def kingman_factor(arrival_scv: Any, service_scv: Any) -> np.ndarray:
    r"""Factor :math:`(c_a^2 + c_s^2)/2` by which a general queue waits longer than a Markov one.

    Exact for M/G/1 (Pollaczek and Khinchine); for several servers the approximation of Allen and
    Cunneen.

    Parameters
    ----------
    arrival_scv, service_scv : array_like, elementwise
        Squared coefficients of variation of gaps and of demands [1].

    References
    ----------
    .. [1] Allen (1990). Probability, statistics and queueing theory, section 5.6.

    Examples
    --------
    Equal demands halve the wait of random arrivals:

    >>> float(kingman_factor(1, 0))
    0.5
    """
    return (np.asarray(arrival_scv, float) + np.asarray(service_scv, float)) / 2


def wait_tail(time: Any, p: Any, mean: Any) -> np.ndarray:
    r"""Probability to wait longer than a time: :math:`P(W > t) = p\,e^{-t/m}`.

    Exact for M/M/c. For M/G/1 it has the right atom at 0 and the right mean; its quantiles are
    within 10 % of the exact M/D/1 ones.

    Parameters
    ----------
    time, p, mean : array_like, elementwise
        Time t [s], probability to wait at all [1], mean wait of those who do [s].

    Examples
    --------
    >>> float(wait_tail(0.0, 0.8, 2.0)), float(wait_tail(-1.0, 0.8, 2.0))
    (0.8, 1.0)
    """
    time, mean = np.asarray(time, float), np.maximum(np.asarray(mean, float), TINY)
    return np.where(time < 0, 1.0, p * np.exp(-np.maximum(time, 0) / mean))


def waits_tail(time: Any, p: tuple[Any, Any], mean: tuple[Any, Any]) -> np.ndarray:
    """Probability that two independent waits in a row take longer than a time.

    Parameters
    ----------
    time : array_like, elementwise
        Time t [s].
    p, mean : tuple of two array_like, elementwise
        Of each wait, as in `wait_tail`: probability [1] and mean of those who wait [s].

    Returns
    -------
    ndarray
        Probability [1], dims broadcast from the arguments.

    Examples
    --------
    Without the second it is the first; two that surely take 1 s on average are a gamma variable:

    >>> float(waits_tail(0.0, (0.8, 0.0), (2.0, 1.0)))
    0.8
    >>> round(float(waits_tail(1.0, (1.0, 1.0), (1.0, 1.0))), 6) == round(2 / np.e, 6)
    True
    """
    time = np.asarray(time, float)
    t = np.maximum(time, 0.0)
    a, b = (np.clip(np.asarray(m, float), TINY, LONG) for m in mean)
    b = np.where(np.abs(a - b) < 1e-9 * a, b * (1 - 1e-6), b)  # the closed form divides by a - b
    first, second = np.exp(-t / a), np.exp(-t / b)
    both = (a * first - b * second) / (a - b)
    tail = p[0] * (1 - p[1]) * first + (1 - p[0]) * p[1] * second + p[0] * p[1] * both
    return np.where(time < 0, 1.0, tail)


def quantile(
    tail: Callable[[np.ndarray], np.ndarray], level: float, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Smallest time that at least a share of the requests keep to, by bisection.

    Parameters
    ----------
    tail : callable
        P(T > t) [1] for t [s], elementwise, falling.
    level : float
        Share of the requests [1].
    low, high : ndarray, elementwise
        Where to begin [s]; `high`, `FIRST` at most, is doubled until it is high enough,
        up to `ENDLESS`.

    Returns
    -------
    ndarray
        Time [s], dims of `low`; infinite where no time is enough, or one beyond `ENDLESS`.

    Examples
    --------
    >>> zero = np.zeros(1)
    >>> found = quantile(lambda t: wait_tail(t, 0.5, 1.0), 0.75, zero, zero + 1.0)
    >>> found.round(6) == np.log(2.0).round(6)
    array([ True])
    """
    low, high = np.array(low, float), np.minimum(high, FIRST)
    never = tail(np.full_like(high, ENDLESS)) > 1 - level
    for _ in range(80):
        short = (tail(high) > 1 - level) & ~never
        if not short.any():
            break
        high = np.where(short, np.minimum(2 * high, ENDLESS), high)
    for _ in range(40):
        middle = (low + high) / 2
        above = tail(middle) > 1 - level
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(never, np.inf, high)


def lifetime_share(length: Any) -> np.ndarray:
    r"""Share of the variance of the number in service that an average over a stay keeps.

    For stays of equal length L the number at two moments s apart has the correlation
    :math:`1 - s/L`; its average over a window of u L has the variance share
    :math:`1 - u/3` for u ≤ 1 and :math:`1/u - 1/(3u^2)` beyond: 2/3 over one's own stay.

    Parameters
    ----------
    length : array_like, elementwise
        Window over the mean stay, u [1].

    Examples
    --------
    >>> float(lifetime_share(0)), float(lifetime_share(1) * 3) == 2
    (1.0, True)
    """
    u = np.asarray(length, float)
    long = np.maximum(u, 1.0)
    return np.where(u <= 1, 1 - u / 3, 1 / long - 1 / (3 * long**2))
