"""The few elementwise functions that the laws need, for NumPy, xarray and PyTensor alike.

A law written with these is evaluated on floats, on arrays of posterior draws and inside a PyMC
model by the same lines of code. PyTensor is only imported when a PyTensor variable comes in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np


def _symbolic(*args: Any) -> Any | None:
    """Return ``pytensor.tensor`` if any argument is a PyTensor variable, else None."""
    basic = sys.modules.get("pytensor.graph.basic")  # no variable can exist before this import
    if basic is not None and any(isinstance(a, basic.Variable) for a in args):
        import pytensor.tensor as pt

        return pt
    return None


def _dispatch(name: str) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        return getattr(_symbolic(*args) or np, name)(*args)

    function.__name__ = name
    function.__doc__ = (
        f"Elementwise ``{name}`` of floats, arrays or PyTensor variables; dims broadcast [1]."
    )
    return function


exp = _dispatch("exp")
log = _dispatch("log")
log1p = _dispatch("log1p")
maximum = _dispatch("maximum")
minimum = _dispatch("minimum")
ceil = _dispatch("ceil")


def sigmoid(x: Any) -> Any:
    """Logistic function ``1 / (1 + exp(-x))`` [1], dims of `x`.

    >>> float(sigmoid(0.0))
    0.5
    """
    return 1.0 / (1.0 + exp(-x))


def smooth_maximum(a: Any, b: Any, sharpness: Any) -> Any:
    r"""Soft maximum :math:`(a^p + b^p)^{1/p}` of two positive quantities, dims broadcast.

    Never below ``max(a, b)`` and at most :math:`2^{1/p}` above it; `sharpness` :math:`p \to \infty`
    gives the hard maximum. Evaluated around the larger one, so no power overflows.

    >>> float(smooth_maximum(3.0, 4.0, 2.0))
    5.0
    """
    larger = maximum(a, b)
    ratio = minimum(a, b) / larger
    return larger * exp(log1p(exp(sharpness * log(ratio))) / sharpness)
