"""Number formats of an engine: what a matrix product moves, and the rate that it computes at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xarray as xr

from m2bayes.errors import UnknownNameError


@dataclass(frozen=True)
class Format:
    """Number format of weights and activations.

    Parameters
    ----------
    weight, activation, output : float
        Size of one number of weight, input and output [byte].
    rate : str
        Dtype in which the tensor cores compute, a dtype of datasheets.
    cost : tuple of float
        Median of the factor by which a kernel is slower than the law of `rate` at this traffic,
        and its log-normal spread [1]; spread 0 where kernels of this format were measured.
    """

    weight: float
    activation: float
    rate: str
    output: float = 2.0
    cost: tuple[float, float] = (1.0, 0.0)


# Four-bit weights in groups of 128 with a 16-bit scale each, unpacked in the kernel. No posterior
# knows such a kernel. In aiconfigurator-core 0.12.0 one engine's on one card (trtllm 1.0.0, A100,
# int4_wo, N and K from 1024) take 1.3 times what the 16-bit law says of this traffic, with a spread
# of 0.3: 1.6 times up to 64 tokens, 1.0 from 1024. Marlin's reach 1.05 at small batch (Frantar et
# al. 2024, https://arxiv.org/abs/2408.11743).
FORMATS = {
    "bf16": Format(2.0, 2.0, "bf16"),
    "fp8": Format(1.0, 1.0, "fp8"),
    "w4a16": Format(0.5 + 2 / 128, 2.0, "bf16", cost=(1.3, 0.3)),
}
KV_BYTES = {"bf16": 2.0, "fp8": 1.0}
"""Size of one number of the KV cache [byte], by its dtype."""


def format_of(sheets: Mapping[Any, Any]) -> Format:
    """Format [byte] that datasheets, dims (sku,), are for; 16 bit if they do not say."""
    return named(str(sheets["dtype"].item()) if "dtype" in sheets else "bf16")


def computes_in(name: str) -> str:
    """Dtype of datasheets in which a format computes; a name that is none is its own.

    >>> computes_in("w4a16"), computes_in("fp8")
    ('bf16', 'fp8')
    """
    return FORMATS[name].rate if name in FORMATS else name


def named(name: str) -> Format:
    """Format by name.

    Raises
    ------
    UnknownNameError
        If there is none.
    """
    if name not in FORMATS:
        raise UnknownNameError("dtype", name, FORMATS)
    return FORMATS[name]


def of_dtype(sheets: xr.Dataset, dtype: str) -> xr.Dataset:
    """Datasheets for one dtype, dims (sku,); those that are for one already stay as they are.

    >>> of_dtype(xr.Dataset(coords={"dtype": ["bf16", "fp8"]}), "fp8").dtype.item()
    'fp8'
    """
    return sheets.sel(dtype=dtype) if "dtype" in sheets.dims else sheets


def sheets_of(datasheets: xr.Dataset, form: str) -> xr.Dataset:
    """Datasheets, dims (sku,) [SI], for one format: the rate it computes at, its own traffic."""
    return of_dtype(datasheets, computes_in(form)).assign_coords(dtype=form)
