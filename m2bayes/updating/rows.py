"""New measurements of one SKU or unit beside what a posterior knows of their cells already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from m2bayes.discrepancy import NEAREST, OUTLIER, SHARED, Residuals, cell_scale, correlation
from m2bayes.mechanism.laws import Law
from m2bayes.random_fields import TAIL, located
from m2bayes.updating.likelihood import Runs, misfit

CLOSE = 16  # measured cells of the SKU itself that a new cell is told by
NOBODY = "any"  # backend of a cell whose build effect is taken off already


def runs(law: Law, table: pd.DataFrame, sheet: xr.Dataset, backends: Sequence[str]) -> Runs:
    """Make the runs of one unit ready for its law, nothing known of their discrepancies.

    Parameters
    ----------
    law : Law
        Of the kernels.
    table : DataFrame
        Rows of one SKU or unit [s], from `m2bayes.measurements.checked`.
    sheet : Dataset, dims (sku,)
        Its datasheet alone, from `m2bayes.kernels.unit_sheets`.
    backends : sequence of str
        Builds that have an effect; none for a law without.

    Returns
    -------
    Runs, dims (run, cell)
        Sorted by cell.
    """
    keys, table = [*law.labels, *law.sizes], ordered(law, table)
    cells = xr.Dataset(
        {v: ("run", table[v].to_numpy(dtype=float)) for v in law.sizes}
        | {v: ("run", np.full(len(table), float(x))) for v, x in law.given.items()}
        | {v: ("run", table[v].to_numpy(dtype=str)) for v in law.labels}
    )
    named = table["backend"].to_numpy(dtype=str)
    terms = law.terms(
        cells,
        sheet.isel(sku=0, drop=True),
        regime="benchmark",
        backend=xr.DataArray(named, dims="run"),
    )
    cell = table.groupby(keys, sort=False).ngroup().to_numpy()
    n = cell.max() + 1
    return Runs(
        law=law,
        terms={
            str(k): np.broadcast_to(v.values, (1, len(table))).astype(float)
            for k, v in terms.data_vars.items()
        },
        log_time=np.log(table["op_time"].to_numpy(dtype=float)),
        build=(named == np.array(backends, dtype=str)[:, None]).astype(float),
        member=(cell[:, None] == np.arange(n)).astype(float),
        counted=np.ones(n),
        mean=np.zeros(n),
        sd=np.ones(n),
        carry=np.zeros((n, n)),
    )


def ordered(law: Law, table: pd.DataFrame) -> pd.DataFrame:
    """Rows [s] of one unit, dims (run,), sorted by cell and backend; their labels stay."""
    return table.sort_values([*law.labels, *law.sizes, "backend"], kind="stable")


def shapes(law: Law, table: pd.DataFrame) -> np.ndarray:
    """Sizes of the cells of one unit [1], dims (cell, size), in the order of `runs`."""
    keys = [*law.labels, *law.sizes]
    cells = table.drop_duplicates(keys).sort_values(keys)
    return np.asarray(cells[list(law.sizes)].to_numpy(dtype=float))


def context(
    law: Law,
    known: Residuals,
    sheet: xr.Dataset,
    near: np.ndarray,
    factors: Mapping[str, np.ndarray],
    *,
    labels: Mapping[str, str],
) -> tuple[Runs, np.ndarray, np.ndarray] | None:
    """Measured cells of the SKU itself near new ones, as runs that are no news.

    What they say of the discrepancy depends on the factors, as the new runs do: a stored residual
    is turned back into the time that it was measured with.

    Parameters
    ----------
    law : Law
        Of the kernels.
    known : Residuals
        Of the SKU or unit alone, dims (cell,).
    sheet : Dataset, dims (sku,)
        Its datasheet alone.
    near : array, dims (shape, size)
        Shapes of the new cells [1].
    factors : mapping
        Factors and spreads at the mean that the residuals were taken at, dims (1, 1).
    labels : mapping
        Text columns of the law, which are one for a unit.

    Returns
    -------
    tuple of Runs and arrays, dims (cell, size + 1) and (cell,), or None
        The nearest cells, their place in the field and noise [1]; None if there are none.
    """
    if not len(known.unit):
        return None
    sizes = len(law.sizes)
    at = located(near, law.lengths)
    far = -correlation(at, located(known.shapes * _no_gain(sizes), law.lengths), law.lengths)
    chosen = np.unique(np.argsort(far, axis=1, kind="stable")[:, :CLOSE])
    table = pd.DataFrame(known.shapes[chosen, :sizes], columns=list(law.sizes))
    table = ordered(law, table.assign(backend=NOBODY, op_time=1.0, chosen=chosen, **labels))
    held = runs(law, table, sheet, [])
    order = table["chosen"].to_numpy()
    time = law.time(held.terms, factors)
    steady = law.steady(held.terms)
    scale = cell_scale(factors["sigma_cell"], factors["sigma_time"], time, steady)
    log_time = (np.log(time) + known.unit[order] * scale)[0]
    silent = replace(held, log_time=log_time, counted=np.zeros(len(order)))
    return silent, known.shapes[order], known.noise[order]


def _no_gain(sizes: int) -> np.ndarray:
    """Factors that leave sizes as they are and take the gain from L2 out."""
    return np.array([1.0] * sizes + [0.0])


def together(first: Runs, second: Runs) -> Runs:
    """Runs of both, the cells of `first` before those of `second`, dims (run, cell)."""

    def block(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        out = np.zeros((a.shape[0] + b.shape[0], a.shape[1] + b.shape[1]))
        out[: a.shape[0], : a.shape[1]], out[a.shape[0] :, a.shape[1] :] = a, b
        return out

    build = np.zeros((len(second.build), len(first.log_time)))
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in ("log_time", "counted", "mean", "sd")
    }
    return replace(
        second,
        terms={k: np.concatenate([first.terms[k], v], axis=1) for k, v in second.terms.items()},
        build=np.concatenate([build, second.build], axis=1),
        member=block(first.member, second.member),
        carry=block(first.carry, second.carry),
        **joined,
    )


def places(held: Runs, sizes: np.ndarray, factors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Sizes and mean log gain from L2 of each cell [1], dims (cell, size + 1).

    `sizes` has dims (cell, size), `factors` dims (1, 1).
    """
    gain = np.broadcast_to(held.law.gain(held.terms, factors), (1, len(held.log_time)))
    return np.column_stack([sizes, (gain @ held.member / held.count)[0]])


def noise(held: Runs, factors: Mapping[str, np.ndarray], effect: Any) -> np.ndarray:
    """Run noise in each cell's mean residual, a variance in units of its scale [1], dims (cell,).

    What the runs of an outlying cell say of its neighbours counts less by as much as its Student-t
    scale is likely to be wider. Parameters as of `m2bayes.updating.likelihood.misfit`, one sample.
    """
    found = misfit(held, factors, effect)
    wider = np.maximum((TAIL + found.square[0]) / (TAIL + held.count) - 1, 0.0)
    own = factors["sigma_run"] ** 2 / held.count / found.scale**2
    return np.asarray(own[0] + wider)


def informed(
    held: Runs,
    at: np.ndarray,
    variance: np.ndarray,
    known: Residuals | None,
    *,
    alone: bool = False,
) -> Runs:
    """Runs with what earlier cells, and cells of other SKUs, say of each discrepancy.

    Parameters
    ----------
    held : Runs
        Of one SKU or unit.
    at : array, dims (cell, size + 1)
        From `places`.
    variance : array, dims (cell,)
        From `noise` [1].
    known : Residuals or None
        Of other SKUs of the architecture; its ``wider`` widens what neighbours leave unknown.
    alone : bool
        Whether new cells tell nothing of one another.
    """
    lengths, n, others = held.law.lengths, len(at), 0
    cells, unit, label = located(at, lengths), np.zeros(0), np.full(n, "", dtype=object)
    where, wider = cells, 1.0
    if known is not None and len(known.unit):
        others, wider = len(known.unit), known.wider
        cells = np.concatenate([located(known.shapes, lengths), cells])
        unit = np.clip(known.unit, -OUTLIER, OUTLIER)
        variance = np.concatenate([known.noise, variance])
        label = np.concatenate([known.sku.astype(object), label])
    mean, sd, carry = np.zeros(n), np.ones(n), np.zeros((n, n))
    for i in np.flatnonzero(held.counted):
        seen = slice(others + (int((held.counted == 0).sum()) if alone else i))
        if not seen.stop:
            continue
        chosen, gain, rest = _kriged(
            where[i], cells[seen], variance[seen], label[seen], lengths=lengths
        )
        own = chosen >= others
        mean[i] = gain[~own] @ unit[chosen[~own]]
        carry[i, chosen[own] - others] = gain[own]
        sd[i] = np.sqrt(rest) * (1 + (1 - rest) * (wider - 1))
    return replace(held, mean=mean, sd=sd, carry=carry)


def _kriged(
    at: np.ndarray,
    cells: np.ndarray,
    variance: np.ndarray,
    label: np.ndarray,
    *,
    lengths: tuple[float, ...],
) -> tuple[np.ndarray, np.ndarray, float]:
    """Positions of the nearest cells, their weights, and the variance that they leave [1]."""
    near = correlation(at[None], cells, lengths)[0] * np.where(label == "", 1.0, SHARED)
    chosen = np.argsort(-near, kind="stable")[:NEAREST]
    alike = np.where(label[chosen][:, None] == label[chosen], 1.0, SHARED)
    covariance = correlation(cells[chosen], cells[chosen], lengths) * alike
    gain = np.linalg.solve(covariance + np.diag(variance[chosen]), near[chosen])
    return chosen, gain, float(np.clip(1 - gain @ near[chosen], 1e-6, 1.0))
