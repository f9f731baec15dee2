"""What the measured cells of stored posteriors say of the discrepancy, worked out anew.

The sampled draws stay as they are: only the residuals beside them depend on the tables for them and
on how they are conditioned on. With --check the stored residuals are compared instead.
"""

import sys

import numpy as np

from m2bayes._draws import read_draws
from m2bayes.database import FOLDERS, Database, store
from m2bayes.inputs import Inputs


def conditioned(database, name):
    """Draws of a posterior as stored, and with its residuals worked out anew."""
    record = database.posterior(name)
    held = read_draws(database.root / FOLDERS["posterior"] / record.draws["file"])
    sampled = held.drop_vars([v for v in held.data_vars if str(v).startswith("residual")])
    inputs = Inputs.recorded(database, record)
    return held, sampled.merge(inputs.residuals(sampled, database.model(record.model)))


def main():
    """Work them out, or compare."""
    database, stale = Database(), []
    for name in sys.argv[2 if "--check" in sys.argv else 1 :] or database.posteriors():
        if "residual" not in database.draws(name):
            continue
        held, found = conditioned(database, name)
        own = [v for v in found.data_vars if str(v).startswith("residual")]
        same = all(
            np.array_equal(held[v], found[v])
            if held[v].dtype.kind in "UO"
            else np.allclose(held[v], found[v], rtol=1e-4, atol=1e-5)
            for v in own
        )
        stale += [name] * (not same)
        print(f"{name}: {'as stored' if same else 'differ'}")
        if not same and "--check" not in sys.argv:
            folder = database.root / FOLDERS["posterior"]
            store(database.posterior(name), found, folder)
    return bool(stale and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
