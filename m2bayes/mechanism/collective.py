"""Time of an all-reduce between the GPUs of one server that share an LLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from m2bayes._math import exp, smooth_maximum

FAST_LINK = 2e11  # [byte/s] one way: NVLink is above it, PCIe below
SHARPNESS = 2.0  # with which start and transfer meet


def allreduce_terms(
    cells: Mapping[Any, Any], sheets: Mapping[Any, Any], *, regime: str, backend: Any = "any"
) -> xr.Dataset:
    """Everything in the all-reduce law that has no parameter in it.

    Parameters
    ----------
    cells : Dataset
        ``gpus`` that take part [1], at least 2, and ``bytes`` that each holds [byte], any dims.
    sheets : Dataset
        Datasheet numbers, dims (sku,) or gathered to the dims of `cells`.
    regime, backend : str
        Without effect: the library is in the factors, and a step's all-reduce is as a benchmark's.

    Returns
    -------
    Dataset, dims broadcast from `cells` and `sheets`
        ``doublings``, log2 of the GPUs over two [1]; ``transfer``, 2 (n - 1) / n bytes over the
        one-way bandwidth of the datasheet [s].
    """
    gpus, size = cells["gpus"].astype(float), cells["bytes"].astype(float)
    moved = 2 * (gpus - 1) / gpus * size
    return xr.Dataset(
        {
            "doublings": np.log2(gpus / 2),
            "transfer": moved / sheets["interconnect_bandwidth"],
        }
    ).drop_vars("dtype", errors="ignore")


def allreduce_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    r"""Time [s] of one all-reduce, dims broadcast.

    .. math::
        t = \left[(t_0 e^{g d})^2 + \left(\frac{2(n-1)}{n}\frac{B}{W \eta} e^{c d}\right)^2
        \right]^{1/2}, \quad d = \log_2 (n / 2)

    Start-up that grows with the number of GPUs, and the ring's transfer: PCIe cards share the
    host's links, so theirs slows down with the number of GPUs (``contention``); NVLink's does not,
    and may speed up where the switch reduces.

    Parameters
    ----------
    terms : mapping
        From `allreduce_terms`.
    factors : mapping
        ``start_time`` [s], ``eta_link`` [1], both positive; ``start_growth`` and ``contention``
        per doubling of the GPUs [1], of either sign.

    Notes
    -----
    Fitted for 2 to 8 GPUs of one server and 1 KiB to 512 MiB.
    """
    bounds = allreduce_bounds(terms, factors)
    return smooth_maximum(bounds["launch"], bounds["link"], SHARPNESS)


def allreduce_bounds(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> dict[str, Any]:
    """Time [s] that start-up and link ask of an all-reduce, dims broadcast."""
    start = factors["start_time"] * exp(factors["start_growth"] * terms["doublings"])
    transfer = terms["transfer"] / factors["eta_link"]
    transfer = transfer * exp(factors["contention"] * terms["doublings"])
    return {"launch": start, "link": transfer}


def link(sheets: xr.Dataset) -> list[str]:
    """Kind of link between the GPUs of a server: ``nvlink`` or ``pcie``, dims (sku,)."""
    fast = sheets["interconnect_bandwidth"].values >= FAST_LINK
    return [str(kind) for kind in np.where(fast, "nvlink", "pcie")]
