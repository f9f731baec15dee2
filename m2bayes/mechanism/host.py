"""What the host adds to a step: kernel launches, work for each sequence, sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xarray as xr

from m2bayes._math import maximum

KERNELS_PER_LAYER = 10  # 4 GEMMs, attention, 2 norms, RoPE, KV write, activation
KERNELS_OUTSIDE = 6  # embedding, last norm, LM head, logits, sampling, copy to the host
KERNELS_TO_SHARE = 2  # all-reduces of a layer whose GPUs share it
GRAPH_TOKENS = 512  # new tokens up to which engines replay a captured graph
EAGER, REPLAYED = 1, 2  # modes of a step: kernel by kernel, or as a captured CUDA graph


def kernel_count(layers: Any, *, shared: bool) -> Any:
    """Kernels of one step of a fused engine [1], from the layers of the LLM, elementwise.

    An engine that fuses less launches some more. There is one definition all the same, for all
    engines: ``eager_launch`` of an engine takes up the difference.

    >>> kernel_count(32, shared=False)
    326
    """
    return layers * (KERNELS_PER_LAYER + KERNELS_TO_SHARE * shared) + KERNELS_OUTSIDE


def host_terms(
    cells: Mapping[Any, Any], sheets: Mapping[Any, Any], *, regime: str, backend: Any = "any"
) -> xr.Dataset:
    """Everything in the host's law that has no parameter in it.

    Parameters
    ----------
    cells : Dataset
        ``kernels`` that the step launches, ``sequences`` that it samples for, ``mode``, `EAGER`
        or `REPLAYED` where it replays a captured CUDA graph [1], any dims.
    sheets : Dataset, dims (sku,)
        For the labels only: no datasheet number tells how fast a host is.
    regime, backend : str
        Without effect.

    Returns
    -------
    Dataset, dims broadcast from `cells` and `sheets`
        ``kernels``, ``sequences``; ``graph``, the share of the kernels in a captured graph [1].
    """
    like = xr.ones_like(sheets["boost_clock"])
    graph = (cells["mode"].astype(float) - EAGER) / (REPLAYED - EAGER)
    return xr.Dataset(
        {
            "kernels": cells["kernels"].astype(float) * like,
            "sequences": cells["sequences"].astype(float) * like,
            "graph": graph * like,
        }
    ).drop_vars("dtype", errors="ignore")


def launch_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Time [s] in which the host launches all kernels of a step, dims broadcast.

    Parameters
    ----------
    terms : mapping
        From `host_terms`.
    factors : mapping
        ``eager_launch`` of a kernel with the Python around it, ``graph_launch`` of a kernel of a
        captured graph [s].
    """
    each = (1 - terms["graph"]) * factors["eager_launch"] + terms["graph"] * factors["graph_launch"]
    return terms["kernels"] * each


def tail_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Time [s] of the host that no kernel hides: each sequence's, and sampling, dims broadcast.

    Parameters
    ----------
    terms : mapping
        From `host_terms`.
    factors : mapping
        ``sequence_time``, the source's alpha, and ``sampling_time`` [s].
    """
    return factors["sequence_time"] * terms["sequences"] + factors["sampling_time"]


def host_time(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Time [s] of a step whose kernels are faster than their launches, dims broadcast."""
    return launch_time(terms, factors) + tail_time(terms, factors)


def step_time(blocks: Any, launches: Any, tail: Any, *, overlap: bool = False) -> Any:
    r"""Time [s] of one engine step, dims broadcast.

    .. math:: T = \max(T_{blocks},\, N_{kern} T_{launch}) + \alpha(N, T_{new}) S_n + T_{samp}

    With `overlap` the host prepares the next step while the GPU works, as TensorRT-LLM [1]_, SGLang
    and vLLM with asynchronous scheduling do: the tail adds to the launches, not to the step.

    Parameters
    ----------
    blocks : array_like
        All kernels of the step [s].
    launches : array_like
        Their launches by the host, which run ahead of the GPU [s], see `launch_time`.
    tail : array_like
        What the host does between two steps [s], see `tail_time`.
    overlap : bool
        Whether the host works one step ahead.

    References
    ----------
    .. [1] https://nvidia.github.io/TensorRT-LLM/features/overlap-scheduler.html

    Examples
    --------
    >>> float(step_time(5.0, 3.0, 1.0)), float(step_time(2.0, 3.0, 1.0))
    (6.0, 4.0)
    >>> float(step_time(5.0, 3.0, 1.0, overlap=True))
    5.0
    """
    if overlap:
        return maximum(blocks, launches + tail)
    return maximum(blocks, launches) + tail
