"""How fast the stored model is sampled: its parametrisation against a plain non-centred one.

The density is the same; only the coordinates differ. Run from the repository root::

    python benchmarks/fit.py [--draws 1000] [--tune 1000] [--chains 4]

Prints compile time, sampling time, leapfrog steps a draw, smallest bulk ESS over every variable,
and ESS a second, of both in one run.
"""

import argparse
import time

import arviz_stats as az
import numpy as np

from m2bayes.database import Database
from m2bayes.hierarchy import Frame
from m2bayes.inputs import Inputs
from m2bayes.posterior import chains_of, compiled_model

POSTERIOR = "gemm_bf16-hier_gemm"


def built(database, *, plain):
    """The stored model, or the same with every level as a standardised offset."""
    inputs = Inputs.recorded(database, database.posterior(POSTERIOR))
    pooled = Frame.pooled
    if plain:
        Frame.pooled = lambda self, *args, **kw: pooled(self, *args, **kw | {"centred": ()})
    try:
        return inputs.build(database.builder(database.posterior(POSTERIOR).model))
    finally:
        Frame.pooled = pooled


def sampled(database, *, plain, draws, tune, chains):
    """One row of the table."""
    model = built(database, plain=plain)
    start = time.perf_counter()
    compiled = compiled_model(model, jitter=True)
    compile_time = time.perf_counter() - start
    start = time.perf_counter()
    settings = {"draws": draws, "tune": tune, "chains": chains, "seed": 1, "target_accept": 0.9}
    tree = chains_of(compiled, **settings)
    wall = time.perf_counter() - start
    ess = az.ess(tree["posterior"].to_dataset(), method="bulk")
    smallest = min(float(np.nanmin(v.values)) for v in ess.data_vars.values())
    stats = tree["sample_stats"].to_dataset()
    return {
        "parametrisation": "plain non-centred" if plain else "as stored",
        "compile, s": f"{compile_time:.0f}",
        "sample, s": f"{wall:.0f}",
        "steps a draw": f"{float(stats['n_steps'].mean()):.0f}",
        "divergences": int(stats["diverging"].sum()),
        "smallest ESS": f"{smallest:.0f}",
        "ESS/s": f"{smallest / wall:.2f}",
    }


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("draws", 1000), ("tune", 1000), ("chains", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    settings = vars(parser.parse_args())
    database = Database()
    for plain in (False, True):
        row = sampled(database, plain=plain, **settings)
        print(", ".join(f"{k} {v}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
