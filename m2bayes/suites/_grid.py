"""The measured projections of one layer on every SKU, and draws for the same kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from m2bayes.evaluate import median_of_builds
from m2bayes.leaveout import LeftOut
from m2bayes.measurements import checked
from m2bayes.predictive import predict

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = "gemm_bf16_ranking"


def measured(setting: Setting, skus: list[str]) -> xr.DataArray:
    """Time of each kernel and build [s], dims (build, sku, tokens, op)."""
    table = checked(setting.database.table(DATA), origin=DATA)
    op = table["N"].map("{:.0f}x".format) + table["K"].map("{:.0f}".format)
    keys = {"build": table["backend"], "tokens": table["M"].astype(int), "op": op}
    times = table.assign(**keys).set_index(["build", "sku", "tokens", "op"])["op_time"]
    return times.to_xarray().sel(sku=skus)


def cells(times: xr.DataArray) -> xr.Dataset:
    """M, N, K of the kernels [1], dims (tokens, op)."""
    widths = np.array([[float(v) for v in str(op).split("x")] for op in times["op"].values])
    grid = xr.Dataset(
        {"M": ("tokens", times["tokens"].values.astype(float))}
        | {v: ("op", widths[:, i]) for i, v in enumerate(("N", "K"))},
        coords={"tokens": times["tokens"], "op": times["op"]},
    )
    return grid.broadcast_like(grid["M"] * grid["N"])


def noisy(
    posterior: xr.Dataset, sheets: xr.Dataset, times: xr.DataArray, *, noise: int, seed: int
) -> xr.DataArray:
    """Draws of each kernel's median over builds [s], dims (chain, draw, sku, tokens, op).

    Of noise-free times with `noise` 0, else with the noise of one run of each build.
    """
    parts = [
        predict(
            posterior,
            cells(times),
            sheets,
            regime="benchmark",
            backend=str(build),
            noise=noise,
            seed=seed,
        )
        for build in times["build"].values
    ]
    return median_of_builds(xr.concat(parts, dim=times["build"], coords="minimal"))


def held_out(
    setting: Setting,
    left: LeftOut,
    times: xr.DataArray,
    *,
    noise: int,
    change: Callable[[xr.Dataset], xr.Dataset] = lambda draws: draws,
) -> xr.DataArray:
    """Draws as from `noisy`, each SKU's from the fit that left it out of everything."""
    parts = []
    left.ahead([[sku] for sku in left.inputs.skus])
    for sku in left.inputs.skus:
        sheet, draws = left.inputs.datasheets.sel(sku=[sku]), change(left.fit([sku]))
        parts.append(noisy(draws, sheet, times, noise=noise, seed=setting.seed))
    return xr.concat(parts, dim="sku", coords="minimal")


def datasheet_times(sheets: xr.Dataset, times: xr.DataArray) -> dict[str, xr.DataArray]:
    """What simple rules say of each kernel, in any unit that ranks, dims (sku, tokens, op)."""
    grid = cells(times)
    M, N, K = grid["M"], grid["N"], grid["K"]
    compute = 2 * M * N * K / sheets["peak_flop_rate"]
    memory = 2 * (M * K + K * N + M * N) / sheets["peak_bandwidth"]
    like = compute + memory
    return {
        "by bandwidth": (memory + 0 * like).transpose("sku", "tokens", "op"),
        "by FLOP/s": (compute + 0 * like).transpose("sku", "tokens", "op"),
        "datasheet roofline": xr.where(compute > memory, compute, memory).transpose(
            "sku", "tokens", "op"
        ),
    }
