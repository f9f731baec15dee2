"""Fits with some SKUs left out of everything: compiled once, cached, and resumed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from m2bayes._draws import read_draws
from m2bayes._jobs import ONE, Each, in_turn
from m2bayes.database import Database, labelled, write_draws
from m2bayes.diagnostics import diagnostics
from m2bayes.errors import DataError, RecordError
from m2bayes.inputs import Inputs
from m2bayes.kernels import card_of
from m2bayes.measurements import content_hash

if TYPE_CHECKING:
    import pandas as pd

CHAINS, TARGET = 4, 0.9
LENGTHS = {True: (200, 300), False: (500, 500)}  # draws and tuning, of kernels' laws and of cards'
RHAT = {True: 1.1, False: 1.02}  # of a fit that is scored, not stored; as above
LONGER = 4  # times as long runs a fit that has not converged, once, and every fourth draw is kept


class LeftOut:
    """Posteriors of one stored posterior's model and data without some SKUs.

    Parameters
    ----------
    database : Database
        That holds it.
    name : str
        Of the stored posterior.
    seed : int
        Of the fits.
    tell : callable
        Told what is being fitted.
    cache : path, optional
        Where fits are kept; by default ``m2bayes`` in the user's cache folder.
    each : callable
        How `ahead` runs fits, see `m2bayes.sweeping.cluster.spread`.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        *,
        seed: int = 1,
        tell: Callable[[str], None] = lambda text: None,
        cache: Path | None = None,
        each: Each = in_turn,
    ) -> None:
        self.database, self.record = database, database.posterior(name)
        self.inputs = Inputs.recorded(database, self.record)
        self.card = database.model(self.record.model)
        self.seed, self.tell, self.each = seed, tell, each
        self.length = LENGTHS[self.inputs.law.variant is not None]
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.cache = cache or Path(home) / "m2bayes" / "left-out"

    def fit(
        self,
        skus: Sequence[str],
        *,
        telemetry_only: bool = False,
        kept: pd.DataFrame | None = None,
    ) -> xr.Dataset:
        """Draws of the fit without `skus`, which prediction then treats as never measured.

        Parameters
        ----------
        skus : sequence of str
            Left out of times, telemetry and shapes.
        telemetry_only : bool
            Leave only their clock telemetry out.
        kept : DataFrame, optional
            The times of theirs that stay, some of each: then they are measured SKUs, by these.

        Returns
        -------
        Dataset, dims (chain, draw, sku, architecture, backend)
            As from `m2bayes.database.Database.draws`.
        """
        inputs = self._inputs(skus, telemetry_only, kept)
        file = self._file(skus, telemetry_only, kept)
        if not file.is_file():
            self.tell(f"fitting without {', '.join(skus)}")
            write_draws(self._sample(inputs), file)
        draws = read_draws(file)
        if not telemetry_only and kept is None:
            draws = draws.sel(sku=[s for s in inputs.skus if card_of(s) not in skus])
            rest = set(inputs.datasheets["architecture"].sel(sku=draws["sku"]).values.astype(str))
            draws = draws.sel(architecture=sorted(rest))
        draws = labelled(draws, self.card, name=self.record.name, dtype=self.record.dtype)
        if len(inputs.shapes) == 0:
            return draws
        held = inputs.datasheets.sel(sku=draws["sku"].values)
        found = replace(inputs, datasheets=held)
        return draws.merge(found.residuals(draws, self.card)).assign_attrs(draws.attrs)

    def ahead(
        self,
        groups: Sequence[Sequence[str]],
        *,
        telemetry_only: bool = False,
        kept: Sequence[pd.DataFrame] | None = None,
    ) -> None:
        """Make fits that `fit` will be asked for, if others work for this process.

        Parameters
        ----------
        groups : sequence of sequence of str
            SKUs that each fit leaves out; a fit that is found in the cache is not made again.
        telemetry_only, kept
            See `fit`; of `kept` one table of times [s] for each group, dims (row,).
        """
        if self.each is in_turn:
            return
        tables: Sequence[pd.DataFrame | None] = kept or [None] * len(groups)
        jobs = {}
        for skus, table in zip(groups, tables, strict=True):
            file = self._file(skus, telemetry_only, table)
            if not file.is_file() and file not in jobs:
                self.tell(f"fitting without {', '.join(skus)}")
                jobs[file] = (file.stem, list(skus), telemetry_only, table)
        if jobs:
            shared = (self.length, self.database.place, self.record.name, self.seed)
            for file, draws in zip(
                jobs, self.each(_sampled, shared, [*jobs.values()]), strict=True
            ):
                write_draws(draws, file)

    def _inputs(
        self, skus: Sequence[str], telemetry_only: bool, kept: pd.DataFrame | None
    ) -> Inputs:
        inputs = self.inputs.without(list(skus), telemetry_only=telemetry_only)
        return inputs if kept is None else inputs.more(kept)

    def _file(self, skus: Sequence[str], telemetry_only: bool, kept: pd.DataFrame | None) -> Path:
        """Where a fit is kept, in a folder that is there."""
        self.cache.mkdir(parents=True, exist_ok=True)
        return self.cache / f"{self._key(skus, telemetry_only, kept)}.nc"

    def _key(
        self, skus: Sequence[str], telemetry_only: bool, kept: pd.DataFrame | None = None
    ) -> str:
        what = [self.record.fingerprint, self.record.data, sorted(skus), telemetry_only]
        if kept is not None:
            what.append(content_hash(kept))
        settings = [*self.length, CHAINS, TARGET, self.seed, self.record.versions]
        return hashlib.sha256(json.dumps([what, settings]).encode()).hexdigest()[:24]

    def _sample(self, inputs: Inputs) -> xr.Dataset:
        """Swap the inputs of the compiled model and sample it."""
        from m2bayes.hierarchy import Frame
        from m2bayes.posterior import chains_of, compiled_model, kept

        if not hasattr(self, "compiled"):
            model = self.inputs.build(self.database.builder(self.record.model))
            self.compiled = compiled_model(model, jitter=self.inputs.law.variant is None)
        frame, whole = (
            Frame(i.cells(), i.datasheets, i.readings(), law=i.law) for i in (inputs, self.inputs)
        )
        for dim, labels in whole.coords.items():
            if list(labels) != list(frame.coords[dim]):
                raise RecordError(f"leaving out these SKUs leaves no {dim} that others know")
        used = {variable.name for variable in self.compiled.shared_var_keys}
        inputs_now = {k: v for k, v in frame.inputs().items() if k in used}
        compiled = self.compiled.with_data(**inputs_now)
        for times in (1, LONGER):
            tree = chains_of(
                compiled,
                draws=times * self.length[0],
                tune=times * self.length[1],
                chains=CHAINS,
                seed=self.seed,
                target_accept=TARGET,
            )
            checks = diagnostics(tree)
            if (
                checks["rhat_max"] <= RHAT[self.inputs.law.variant is not None]
                and checks["divergences"] <= times * self.length[0] * CHAINS / 100
            ):
                draws = kept(tree).isel(draw=slice(None, None, times))
                return draws.assign_coords(draw=np.arange(self.length[0]))
        raise RecordError(f"a fit with SKUs left out did not converge: {checks}")


@cache
def _held(root: str | None, name: str, seed: int) -> LeftOut:
    """What a worker keeps of one posterior: its tables, and the model once it is compiled."""
    return LeftOut(Database(root), name, seed=seed)


def _sampled(shared: tuple[Any, ...], job: tuple[str, Any, bool, Any]) -> xr.Dataset:
    """Draws of one fit on a worker, dims (chain, draw, …), see `LeftOut.ahead`."""
    (length, *whose), (key, *what) = shared, job
    with ONE:
        left = _held(*whose)
        left.length = length
        if left._key(*what) != key:
            raise DataError("a worker has another database; install the same on every machine")
        return left._sample(left._inputs(*what))


def not_measured(draws: xr.Dataset, shapes: np.ndarray) -> xr.Dataset:
    """Draws that have forgotten every measured cell of `shapes`, dims (shape, 3) [1]."""
    if "residual" not in draws:
        return draws
    known = {tuple(row) for row in np.asarray(shapes, dtype=int).tolist()}
    cells = draws["residual_shape"].values.astype(int).tolist()
    keep = np.array([tuple(row) not in known for row in cells], dtype=bool)
    return draws.isel(cell=keep).assign_attrs(draws.attrs)
