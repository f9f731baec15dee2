"""The roofline: work and traffic of an operator, and the time that two peaks allow it."""

from __future__ import annotations

from typing import Any

from m2bayes._math import maximum


def gemm_flops(M: Any, N: Any, K: Any) -> Any:
    """Floating-point operations [FLOP] of an ``M × N × K`` matrix product, dims broadcast.

    Parameters
    ----------
    M, N, K : array_like, any dims
        Tokens, output width and contraction length [1].

    Examples
    --------
    >>> gemm_flops(2, 3, 5)
    60
    """
    return 2 * M * N * K


def weight_traffic(N: Any, K: Any, item: float = 2.0) -> Any:
    """Bytes [byte] of one ``N × K`` weight with `item` bytes an element, dims broadcast.

    >>> weight_traffic(3, 5)
    30.0
    """
    return item * N * K


def activation_traffic(M: Any, N: Any, K: Any, item: float = 2.0, output: float = 2.0) -> Any:
    """Bytes [byte] of the input ``M × K`` and output ``M × N`` of a GEMM, dims broadcast.

    `item` and `output` are the bytes of one number of each.

    >>> activation_traffic(2, 3, 5)
    32.0
    """
    return output * M * N + item * M * K


def arithmetic_intensity(flops: Any, traffic: Any) -> Any:
    """Operations per byte moved [FLOP/byte], dims broadcast.

    >>> arithmetic_intensity(60.0, 30.0)
    2.0
    """
    return flops / traffic


def ridge_point(peak_flop_rate: Any, peak_bandwidth: Any) -> Any:
    """Arithmetic intensity [FLOP/byte] at which compute and memory take the same time, dims (sku,).

    >>> ridge_point(150.0, 1.0)
    150.0
    """
    return peak_flop_rate / peak_bandwidth


def roofline_time(
    flops: Any,
    traffic: Any,
    *,
    peak_flop_rate: Any,
    peak_bandwidth: Any,
    eta_compute: Any = 1.0,
    eta_memory: Any = 1.0,
) -> Any:
    r"""Time [s] of one operator under the roofline, dims broadcast from the inputs.

    .. math:: t = \max\left(\frac{F}{\eta_c P},\; \frac{B}{\eta_m W}\right)

    Parameters
    ----------
    flops, traffic : array_like, dims (..., op)
        Work :math:`F` [FLOP] and traffic :math:`B` [byte] of the operator.
    peak_flop_rate, peak_bandwidth : array_like, dims (sku,)
        Datasheet rate :math:`P` [FLOP/s] and memory bandwidth :math:`W` [byte/s].
    eta_compute, eta_memory : array_like, in (0, 1]
        Achieved share of each peak [1]; 1 gives the datasheet roofline.

    References
    ----------
    .. [1] Williams, Waterman, Patterson (2009). *Roofline*. https://doi.org/10.1145/1498765.1498785

    Examples
    --------
    At the ridge point both branches take the same time.

    >>> float(roofline_time(300.0, 2.0, peak_flop_rate=150.0, peak_bandwidth=1.0))
    2.0
    """
    return maximum(flops / (peak_flop_rate * eta_compute), traffic / (peak_bandwidth * eta_memory))
