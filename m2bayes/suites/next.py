"""Choosing what to measure: cells that settle a choice, against random and spread-out ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes._random import labelled_rng
from m2bayes.evaluate import median_of_builds
from m2bayes.information.voi import assimilated, sequence
from m2bayes.suites import _grid

if TYPE_CHECKING:
    from m2bayes.suites import Setting

DATA = (_grid.DATA,)
JUDGED = ("posterior",)  # fields of the setting
DRAWS = 800  # of each decision's ensemble, half of them judging the other half's regression
MOST, ENOUGH = 48, 0.01  # cells measured at most; relative regret at which a choice is settled
SETS = {"nearest": 3, "random": 2}  # kinds of sets of rivals, and how many rivals
REPEATS = 2  # of the policies that draw at random


@dataclass(frozen=True)
class Decision:
    """A choice among SKUs of which one was never measured, and what measuring can tell.

    Parameters
    ----------
    held_out : str
        The SKU that no data of the posterior is of.
    values : ndarray, dims (draw, sku + cell)
        Log of the metric of each SKU, then of what each cell would read [1].
    truth : ndarray, dims (sku,)
        Measured metric [s].
    observed : ndarray, dims (cell,)
        Log of what each cell did read [1].
    where : ndarray, dims (cell, coordinate)
        SKU, log2 tokens and log2 of the widths of each cell [1].
    label : str
        Of its random numbers.
    """

    held_out: str
    values: np.ndarray
    truth: np.ndarray
    observed: np.ndarray
    where: np.ndarray
    label: str

    @property
    def regret(self) -> float:
        """Relative loss of the choice as it stands [1]."""
        skus = len(self.truth)
        choice = np.exp(self.values[:, :skus]).mean(axis=0).argmin()
        return float(self.truth[choice] / self.truth.min() - 1)

    def measured(self, cell: int) -> Decision:
        """The decision after a cell was read."""
        reading = self.values[:, len(self.truth) + cell]
        return replace(self, values=assimilated(self.values, reading, self.observed[cell]))


Policy = Callable[[Decision, list[int], np.random.Generator], int]


def run(setting: Setting) -> dict[str, Any]:
    """Settle decisions one cell at a time, by each policy.

    Returns
    -------
    dict
        ``decisions``, ``open`` (those not settled at the start); by policy the mean number of
        cells to a lasting regret of at most 1 %, over all decisions and over the open ones, with
        a 90 % interval blocked by the SKU held out, the share settled, and the ratio to ``next``;
        ``regret``: mean after 0, 1, 2, 4, … cells [1].
    """
    found = {name: list[list[float]]() for name in POLICIES}
    blocks = list[str]()
    for decision in decisions(setting):
        blocks.append(decision.held_out)
        for name, policy in POLICIES.items():
            repeats = 1 if name == "next" else REPEATS
            paths = [path(decision, policy, str(i)) for i in range(repeats)]
            found[name].append(list(np.mean(paths, axis=0)))
    return summary({k: np.array(v) for k, v in found.items()}, np.array(blocks), seed=setting.seed)


def decisions(setting: Setting) -> Iterator[Decision]:
    """Decisions with each SKU held out in turn, at every token count, beside sets of rivals."""
    left = setting.left_out(setting.posterior)
    skus, sheets = left.inputs.skus, left.inputs.datasheets
    times = _grid.measured(setting, skus)
    truth = median_of_builds(times)
    left.ahead([[sku] for sku in setting.few(skus)])
    for sku in setting.few(skus):
        draws = left.fit([sku])
        some = max(1, draws.sizes["chain"] * draws.sizes["draw"] // DRAWS)
        draws = draws.isel(draw=slice(None, None, some)).assign_attrs(draws.attrs)
        setting.tell(f"deciding without data of {sku}")
        both = {
            name: _grid.noisy(draws, sheets, times, noise=n, seed=setting.seed)
            for name, n in (("free", 0), ("read", 1))
        }
        for tokens in times["tokens"].values[:: 6 if setting.quick else 1]:
            step = truth.sel(tokens=tokens).sum("op", skipna=False)
            for kind, count in SETS.items():
                rivals = _rivals(step, sku, kind, count, f"{sku} {tokens}")
                chosen = [sku, *rivals]
                if not np.isfinite(step.sel(sku=chosen)).all():
                    continue
                yield _decision(both, truth, chosen, tokens=int(tokens), kind=kind)


def _rivals(step: xr.DataArray, sku: str, kind: str, count: int, label: str) -> list[str]:
    """Other SKUs: those whose measured metric is nearest, or any."""
    others = step.sel(sku=[s for s in step["sku"].values if s != sku])
    if kind == "random":
        rng = labelled_rng(0, "rivals", label)
        return [str(s) for s in rng.permutation(others["sku"].values)[:count]]
    gap = np.abs(np.log(others.values / float(step.sel(sku=sku))))
    return [str(s) for s in others["sku"].values[np.argsort(gap)][:count]]


def _decision(
    draws: dict[str, xr.DataArray], truth: xr.DataArray, skus: list[str], *, tokens: int, kind: str
) -> Decision:
    """Draws, truth and cells of one choice; every cell of its SKUs can be measured."""
    metric = draws["free"].sel(sku=skus, tokens=tokens).sum("op")
    cells = draws["read"].sel(sku=skus).stack(cell=("sku", "tokens", "op"))
    seen = truth.sel(sku=skus).stack(cell=("sku", "tokens", "op"))
    able = np.isfinite(seen.values)
    flat = [
        np.log(held.values).reshape(-1, held.shape[-1])
        for held in (
            metric.transpose("chain", "draw", "sku"),
            cells.transpose("chain", "draw", "cell"),
        )
    ]
    widths = [[float(v) for v in str(op).split("x")] for op in seen["op"].values]
    where = np.column_stack(
        [
            [skus.index(str(s)) for s in seen["sku"].values],
            np.log2(seen["tokens"].values.astype(float)),
            np.log2(np.array(widths)),
        ]
    )
    return Decision(
        held_out=skus[0],
        values=np.concatenate([flat[0], flat[1][:, able]], axis=1),
        truth=truth.sel(sku=skus, tokens=tokens).sum("op").values,
        observed=np.log(seen.values[able]),
        where=where[able],
        label=f"{skus[0]} {tokens} {kind}",
    )


# --- policies --------------------------------------------------------------------------------


def by_value(decision: Decision, taken: list[int], rng: np.random.Generator) -> int:
    """The cell that is worth most, and where none is, the one that resolves most of the contest."""
    skus = len(decision.truth)
    rest = [c for c in range(len(decision.observed)) if c not in taken]
    metric = np.exp(decision.values[:, :skus])
    loss = xr.DataArray(
        metric[None] / metric.mean(axis=0).min(),
        dims=("chain", "draw", "sku"),
        coords={"sku": np.arange(skus)},
    )
    readings = xr.DataArray(
        decision.values[None, :, skus + np.array(rest)],
        dims=("chain", "draw", "candidate"),
        coords={"candidate": rest},
    )
    chosen = sequence(loss, readings, 1)["candidate"].values
    return int(chosen[0]) if len(chosen) else int(rng.choice(rest))


def at_random(decision: Decision, taken: list[int], rng: np.random.Generator) -> int:
    """Any cell of any SKU."""
    return int(rng.choice([c for c in range(len(decision.observed)) if c not in taken]))


def spread_out(decision: Decision, taken: list[int], rng: np.random.Generator) -> int:
    """The cell farthest from those taken, of the SKU with fewest: a space-filling design."""
    rest = np.array([c for c in range(len(decision.observed)) if c not in taken])
    sku = decision.where[:, 0].astype(int)
    counts = np.bincount(sku[taken], minlength=len(decision.truth)) if taken else None
    if counts is not None:
        least = [c for c in rest if counts[sku[c]] == counts[sku[rest]].min()]
        rest = np.array(least)
    own = [c for c in taken if sku[c] in set(sku[rest])]
    if not own:
        return int(rng.choice(rest))
    gaps = np.abs(decision.where[rest][:, None, 1:] - decision.where[own][None, :, 1:]).sum(axis=2)
    return int(rest[gaps.min(axis=1).argmax()])


POLICIES: dict[str, Policy] = {"next": by_value, "random": at_random, "space-filling": spread_out}


def path(decision: Decision, policy: Policy, repeat: str) -> list[float]:
    """Regret after 0, 1, 2, … cells [1]."""
    rng = labelled_rng(0, "policy", decision.label, repeat)
    taken, regrets = list[int](), [decision.regret]
    for _ in range(min(MOST, len(decision.observed))):
        cell = policy(decision, taken, rng)
        taken.append(cell)
        decision = decision.measured(cell)
        regrets.append(decision.regret)
    return regrets + [regrets[-1]] * (MOST + 1 - len(regrets))


# --- summary ---------------------------------------------------------------------------------


def needed(regrets: np.ndarray) -> np.ndarray:
    """Cells until the regret stays within bounds, dims (decision,) [1]; one more than all if never.

    >>> needed(np.array([[0.2, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.2, 0.2]]))
    array([1, 0, 3])
    """
    over = regrets > ENOUGH
    return np.where(over.any(axis=1), over.shape[1] - over[:, ::-1].argmax(axis=1), 0)


def summary(paths: dict[str, np.ndarray], blocks: np.ndarray, *, seed: int = 0) -> dict[str, Any]:
    """Cells needed by each policy, with intervals from resampling the SKUs held out [1].

    Parameters
    ----------
    paths : dict of ndarray, dims (decision, cell)
        Regret of each policy after each cell [1].
    blocks : ndarray, dims (decision,)
        SKU held out.
    seed : int
        Of the resampling.
    """
    cells = {name: needed(held) for name, held in paths.items()}
    unsettled = np.any([held[:, 0] > ENOUGH for held in paths.values()], axis=0)
    names, rng = np.unique(blocks), labelled_rng(seed, "next intervals")
    picks = [
        np.concatenate([np.flatnonzero(blocks == n) for n in rng.choice(names, len(names))])
        for _ in range(1000)
    ]
    out: dict[str, Any] = {
        "decisions": len(blocks),
        "open": int(unsettled.sum()),
        "policies": {},
    }
    for name, held in cells.items():
        ratio = [_ratio(held[p], cells["next"][p]) for p in picks]
        among = [held[p][unsettled[p]].mean() for p in picks if unsettled[p].any()]
        out["policies"][name] = {
            "cells": float(held.mean()),
            "cells_open": float(held[unsettled].mean()) if unsettled.any() else 0.0,
            "cells_open_interval": _interval(among),
            "ratio": _ratio(held, cells["next"]),
            "ratio_interval": _interval(ratio),
            "settled": float((held < paths[name].shape[1]).mean()),
            "regret": {
                str(n): float(paths[name][:, n].mean()) for n in (0, 1, 2, 4, 8, 16, 32, MOST)
            },
        }
    return out


def _ratio(held: np.ndarray, best: np.ndarray) -> float:
    return float(held.mean() / best.mean()) if best.mean() else 1.0


def _interval(values: list[float]) -> list[float]:
    return [float(v) for v in np.quantile(values, [0.05, 0.95])] if values else [0.0, 0.0]
