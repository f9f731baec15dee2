"""Every kind of kernel that is modelled: its sizes, its law, what its discrepancy depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from m2bayes.mechanism import attention, collective, decode_attention, gemm, host, light, quantise


def no_gain(terms: Mapping[Any, Any], factors: Mapping[Any, Any]) -> Any:
    """Return 0 for every kernel: the law knows no cache, dims of the first term [1]."""
    return 0.0 * next(iter(terms.values()))


def not_steady(terms: Mapping[Any, Any]) -> None:
    """No part of a kernel's time [s] is steadier than the rest, dims as of `terms`."""


@dataclass(frozen=True)
class Law:
    """One kind of kernel.

    Parameters
    ----------
    time : callable
        ``(terms, factors) -> s``, elementwise.
    terms : callable
        ``(cells, sheets, *, regime, backend) -> Dataset`` of all that has no parameter in it;
        Datasets, or their variables alone: without labels to compare they take a fifth of the time.
    sizes : tuple of str
        Columns of whole numbers that make a shape.
    lengths : tuple of float
        Correlation length of the discrepancy in octaves of each size, and in log gain from L2.
    gain : callable
        ``(terms, factors) ->`` log factor by which L2 shortens the kernel [1].
    steady : callable
        ``(terms) ->`` time [s] that a datasheet's number alone decides, whatever the build, of
        which a kernel is off by less than of the rest, see `m2bayes.discrepancy.cell_scale`; None
        for none.
    largest : int
        No size is larger [1].
    smallest : mapping of int
        Sizes that must be more than 1, and the least of each [1].
    labels : tuple of str
        Columns of text that tell kernels apart, besides the backend.
    given : mapping
        Sizes that no table holds, and their value in all of them.
    variant : callable, optional
        ``(cells, backend) ->`` name of the kernel of each cell: where the factors belong to a
        kernel on a card. None where they belong to the card.
    by_backend : bool
        Whether that name begins with the backend.
    clocked : str
        The factor that falls with the SM clock under a lowered power limit, if any.
    bounds : callable, optional
        ``(terms, factors) ->`` time [s] that each resource asks of the kernel, by its name.
    family : callable
        ``(datasheets) ->`` what cards have in common that run the same kernel, dims (sku,).
    spread : callable
        ``(datasheets) ->`` how much more than usual the cards of a family differ [1], dims (sku,).
    """

    time: Callable[..., Any]
    terms: Callable[..., xr.Dataset]
    sizes: tuple[str, ...]
    lengths: tuple[float, ...]
    gain: Callable[..., Any] = no_gain
    steady: Callable[..., Any] = not_steady
    largest: int = 10**7
    smallest: Mapping[str, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    given: Mapping[str, float] = field(default_factory=dict)
    variant: Callable[[Mapping[Any, Any], Any], np.ndarray] | None = None
    by_backend: bool = True
    clocked: str = ""
    bounds: Callable[..., dict[str, Any]] | None = None
    family: Callable[[xr.Dataset], list[str]] = lambda sheets: [""] * sheets.sizes["sku"]
    spread: Callable[[xr.Dataset], np.ndarray] = lambda sheets: np.ones(sheets.sizes["sku"])

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a table of measurements."""
        return ("sku", "backend", "version", *self.labels, *self.sizes, "op_time")


def _backend(size: str) -> Callable[[Mapping[Any, Any], Any], np.ndarray]:
    """Variant of a law whose factors belong to a backend; `size` is one of its sizes."""

    def variant(cells: Mapping[Any, Any], backend: Any) -> np.ndarray:
        like = np.asarray(cells[size], dtype=float)
        return np.broadcast_to(np.asarray(backend, dtype=str), like.shape)

    return variant


def _light_kernel(cells: Mapping[Any, Any], backend: Any) -> np.ndarray:
    """A light kernel is much the same whatever engine it belongs to."""
    return np.asarray(cells["kernel"], dtype=str)


def _decode_kernel(cells: Mapping[Any, Any], backend: Any) -> np.ndarray:
    """Multi-head and grouped-query decode are different kernels of one backend."""
    alone = np.asarray(cells["heads"]) == np.asarray(cells["kv_heads"])
    return np.char.add(_backend("length")(cells, backend), np.where(alone, "/mha", "/gqa"))


def tensor_generation(sheets: xr.Dataset) -> list[str]:
    """Name of the tensor core's instruction, which decides a library's kernel, dims (sku,).

    By FLOP/clock/SM of bf16 [1]: below 4096 ``mma`` (Ampere, Ada, GeForce Blackwell), 4096
    ``wgmma`` (Hopper), from 8192 ``tcgen05`` (data-centre Blackwell).
    """
    width = sheets["tensor_flop_per_clock"].values
    return [str(w) for w in np.select([width < 4096, width < 8192], ["mma", "wgmma"], "tcgen05")]


def _mma_spread(sheets: xr.Dataset) -> np.ndarray:
    """Kernels for mma are tuned for each chip, so cards differ four times as much as elsewhere."""
    return np.where([g == "mma" for g in tensor_generation(sheets)], 4.0, 1.0)


_GEMM: dict[str, Any] = {
    "sizes": ("M", "N", "K"),
    "lengths": (2.0, 0.7, 1.2, 0.5),
    "gain": gemm.cache_gain,
}
_ATTENTION: dict[str, Any] = {
    "sizes": ("batch", "length", "heads", "kv_heads"),
    "lengths": (2.0, 1.5, 2.0, 2.0, 0.5),
    "family": tensor_generation,
    "spread": _mma_spread,
}
LAWS = {
    "gemm_time": Law(
        gemm.gemm_time, gemm.gemm_terms, clocked="clock_burst", bounds=gemm.gemm_bounds, **_GEMM
    ),
    "ceiling_time": Law(gemm.ceiling_time, gemm.gemm_terms, clocked="ceiling", **_GEMM),
    "fp8_gemm_time": Law(
        quantise.fp8_gemm_time,
        quantise.fp8_gemm_terms,
        variant=_backend("M"),
        clocked="clock_burst",
        bounds=quantise.fp8_gemm_bounds,
        family=lambda sheets: [str(a) for a in sheets["architecture"].values],
        **_GEMM,
    ),
    "prefill_time": Law(
        attention.prefill_time,
        attention.prefill_terms,
        given={"context": 0, "head_dim": 128},
        variant=_backend("length"),
        clocked="eta_tensor",
        bounds=attention.prefill_bounds,
        **_ATTENTION,
    ),
    "decode_time": Law(
        decode_attention.decode_time,
        decode_attention.decode_terms,
        gain=decode_attention.decode_gain,
        steady=decode_attention.decode_steady,
        given={"head_dim": 128, "kv_element": 2},
        variant=_decode_kernel,
        bounds=decode_attention.decode_bounds,
        **_ATTENTION,
    ),
    "kv_time": Law(
        quantise.kv_time,
        quantise.kv_terms,
        sizes=("batch", "length", "heads", "kv_heads", "wide_time"),
        lengths=(2.0, 1.5, 2.0, 2.0, 4.0, 0.5),
        largest=10**10,
        variant=_decode_kernel,
        family=tensor_generation,
        spread=_mma_spread,
    ),
    "light_time": Law(
        light.light_time,
        light.light_terms,
        sizes=("tokens", "width"),
        lengths=(2.0, 2.0, 0.5),
        labels=("kernel",),
        variant=_light_kernel,
        by_backend=False,
        bounds=light.light_bounds,
    ),
    "allreduce_time": Law(
        collective.allreduce_time,
        collective.allreduce_terms,
        sizes=("gpus", "bytes"),
        lengths=(1.0, 3.0, 0.5),
        largest=10**11,
        smallest={"gpus": 2},
        variant=_backend("bytes"),
        family=collective.link,
        bounds=collective.allreduce_bounds,
    ),
    "host_time": Law(
        host.host_time,
        host.host_terms,
        sizes=("kernels", "sequences", "mode"),
        lengths=(4.0, 4.0, 1.0, 0.5),
        variant=_backend("kernels"),
    ),
}
