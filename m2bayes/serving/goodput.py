"""What a server can promise: goodput under targets for TTFT and TPOT, draw by draw."""

from __future__ import annotations

import numpy as np

from m2bayes.serving.loops import closed_loop, open_loop
from m2bayes.serving.replica import Replica

HALVINGS = 12  # of the interval in which the goodput lies: to 1 in 4,096


def goodput(
    held: Replica,
    highest: np.ndarray,
    *,
    ttft: float,
    tpot: float,
    level: float = 0.9,
    arrival_scv: float = 1.0,
) -> np.ndarray:
    """Highest rate at which enough requests keep to both targets (DistServe's goodput).

    Parameters
    ----------
    held : Replica
        The server.
    highest : ndarray, dims (draw,)
        What `capacity` says [1/s].
    ttft, tpot : float
        Targets [s].
    level : float
        Share of the requests that must keep to each [1].
    arrival_scv : float
        See `open_loop` [1].

    Returns
    -------
    ndarray, dims (draw,)
        Requests [1/s]; 0 where the targets are missed by a request alone.

    References
    ----------
    .. [1] Zhong et al. (2024). DistServe. OSDI. https://arxiv.org/abs/2401.09670
    """
    low, high = np.zeros_like(highest), highest.copy()
    targets = np.full_like(highest, ttft), np.full_like(highest, tpot)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        state = open_loop(held, middle, highest, arrival_scv)
        kept = (state.ttft_tail(targets[0]) <= 1 - level) & (
            state.tpot_tail(targets[1]) <= 1 - level
        )
        low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    return np.where(low > 0, low, 0.0)


def users_served(
    held: Replica, highest: np.ndarray, *, ttft: float, tpot: float, level: float = 0.9
) -> np.ndarray:
    """Most requests in the system at which enough of them keep to both targets.

    Parameters
    ----------
    held, highest, ttft, tpot, level
        As of `goodput`; times [s].

    Returns
    -------
    ndarray, dims (draw,)
        Requests in the system [1]; 0 where one alone misses the targets.
    """
    low = np.zeros(len(highest), dtype=int)
    high = np.full(len(highest), 8 * len(held.batches))
    while (high - low > 1).any():
        middle = (low + high) // 2
        state = closed_loop(held, np.maximum(middle, 1), highest)
        kept = (state.ttft_tail(np.full(len(low), ttft)) <= 1 - level) & (
            state.tpot_tail(np.full(len(low), tpot)) <= 1 - level
        )
        kept &= middle > 0
        low, high = np.where(kept, middle, low), np.where(kept, high, middle)
    return low.astype(float)
