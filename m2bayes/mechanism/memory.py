"""Achieved bandwidth: the source's ramp with the weight size, and what the L2 cache holds."""

from __future__ import annotations

from typing import Any

from m2bayes._math import ceil, log, maximum, minimum, sigmoid

CACHE_EDGE = 40.0  # sharpness of the fall out of L2, in log footprint
CACHE_MARGIN = 0.05  # a footprint 5 % over the L2 is still half resident
CACHE_PORT = 64.0  # bytes an SM can take from L2 each clock [byte/clock]


def bandwidth_ramp(weight: Any) -> Any:
    r"""Achieved share of peak bandwidth [1] by weight size [byte], dims of `weight`.

    .. math:: \eta_{mem}(W) = 0.891 - 1.171 / \sqrt{W_{MB}}

    The m2 source document's law (section 6), held-out error 2.9 % for M ≤ 16. Valid for weights
    of some 10 to 500 MB; it turns negative below 1.73 MB.

    >>> round(float(bandwidth_ramp(100e6)), 4)
    0.7739
    """
    return 0.891 - 1.171 / (weight / 1e6) ** 0.5


def warm_share(footprint: Any, l2: Any) -> Any:
    """Share of the traffic that L2 serves [1] when a buffer of `footprint` is read again.

    Parameters
    ----------
    footprint : array_like
        All that is touched between two uses of the same bytes [byte].
    l2 : array_like, dims (sku,)
        Capacity of the level-2 cache [byte].

    Returns
    -------
    array_like, dims broadcast
        Near 1 when the footprint fits, near 0 when it does not.

    Examples
    --------
    >>> round(float(warm_share(25e6, 50e6)), 3), round(float(warm_share(100e6, 50e6)), 3)
    (1.0, 0.0)
    """
    # The argument is capped where the logistic function is 0 to the last digit anyway.
    return sigmoid(maximum(CACHE_EDGE * (log(l2 / footprint) + CACHE_MARGIN), -700.0))


def replay_copies(weight: Any, l2: Any, *, fixed: bool) -> Any:
    """Copies of the weight [1] that the kernel benchmark cycles through, dims broadcast.

    The AIConfigurator collector makes 6 copies for sglang and vllm (`fixed`) and
    ``min(5, ceil(l2 / weight))``, at least 1, for trtllm, then replays them in one CUDA graph.

    >>> float(replay_copies(30.0, 100.0, fixed=False))
    4.0
    """
    if fixed:
        return 6.0 + 0.0 * weight
    return minimum(maximum(ceil(l2 / weight), 1.0), 5.0)


def memory_time(cold_traffic: Any, warm_traffic: Any, *, hbm_rate: Any, cache_rate: Any) -> Any:
    """Time [s] to move cold bytes from HBM and warm bytes from L2, dims broadcast.

    The L2 delivers `cache_rate` on top of `hbm_rate` [byte/s], so it is never slower than HBM.

    >>> memory_time(8.0, 6.0, hbm_rate=2.0, cache_rate=1.0)
    6.0
    """
    return cold_traffic / hbm_rate + warm_traffic / (hbm_rate + cache_rate)
