"""What small versions run on: a database of few draws, and stand-ins for fits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from m2bayes.database import Database
from m2bayes.kernels import card_of
from m2bayes.leaveout import LeftOut
from m2bayes.step import spaced

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 50  # of each chain


class Few(Database):
    """A database whose posteriors have few draws, evenly spaced in each chain."""

    def draws(self, name: str) -> xr.Dataset:
        """As of `m2bayes.database.Database.draws`, fewer of dim ``draw``."""
        return _few(self.root, name, self.posterior(name).draws["sha256"])


@cache
def _few(root: Path, name: str, digest: str) -> xr.Dataset:
    """Draws of one file, read once, dims (chain, draw, …)."""
    del digest  # another file is another posterior
    return spaced(Database(root).draws(name), DRAWS)


class Forgotten(LeftOut):
    """Stored posteriors that forget some SKUs, where a fit without them would take minutes."""

    def fit(
        self,
        skus: Sequence[str],
        *,
        telemetry_only: bool = False,
        kept: pd.DataFrame | None = None,
    ) -> xr.Dataset:
        """Stored draws without the factors and discrepancies of `skus`, dims kept.

        What the levels above learnt of them stays: no figure of it is a held-out one.
        """
        draws = self.database.draws(self.record.name)
        if telemetry_only or kept is not None:
            return draws
        others = [str(s) for s in draws["sku"].values if card_of(str(s)) not in skus]
        families = self.inputs.datasheets["architecture"].sel(sku=others).values.astype(str)
        found = draws.sel(sku=others, architecture=sorted(set(families)))
        if "residual_sku" in found:
            known = [card_of(str(s)) not in skus for s in found["residual_sku"].values]
            found = found.isel(cell=np.flatnonzero(known))
        return found.assign_attrs(draws.attrs)
