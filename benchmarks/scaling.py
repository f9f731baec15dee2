"""How the cost of a fit grows with rows and SKUs, and that of a prediction with workloads.

Run from the repository root::

    python benchmarks/scaling.py [--out data/benchmarks/scaling.json]

Fits of `models/hier_gemm.py` to rows drawn from the model itself: shapes drawn evenly over the logs
of their sizes, three runs each, SKUs of the database and beyond those made-up ones between them.
Predictions of matrix products on one SKU by `m2bayes.predict`, chunk by chunk, of which quantiles
are kept. Each in a process of its own, on one thread; times are seconds of CPU. What the file holds
already is not measured again. Chains are short: two of 200 draws after 300 of tuning.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import xarray as xr

from m2bayes.database import Database

POSTERIOR, SKU = "gemm_bf16-hier_gemm", "h100"
FITS = ((1_000, 9), (3_000, 9), (10_000, 9), (3_000, 5), (3_000, 30))  # rows, SKUs
COUNTS = (10**3, 10**4, 10**5, 10**6)  # workloads
SETTINGS = {"draws": 200, "tune": 300, "chains": 2, "seed": 1, "target_accept": 0.9}
BUILDS = ("sglang", "trtllm", "vllm")
ENDS = {"M": (1, 32768), "N": (128, 65536), "K": (128, 65536)}
DRAWS, CHUNK, LEVELS = 400, 10_000, (0.05, 0.5, 0.95)
CALLS = 300  # of the gradient that is timed


def shapes(rng, count):
    """Distinct shapes, evenly over the logs of their sizes."""
    sizes = [np.floor(np.exp(rng.uniform(*np.log(ends), 2 * count))) for ends in ENDS.values()]
    return rng.permutation(np.unique(np.stack(sizes, axis=1), axis=0))[:count]


def cards(database, rng, count):
    """Datasheets of that many SKUs: measured ones first, then others, then made-up ones."""
    own = database.datasheets(database.skus(), dtype="bf16").drop_vars("form_factor")
    measured = database.draws(POSTERIOR)["sku"].values.astype(str).tolist()
    names = [*measured, *(str(s) for s in own["sku"].values if s not in measured)]
    sheets = own.sel(sku=names[: min(count, len(names))])
    more = count - sheets.sizes["sku"]
    if more > 0:
        made = own.isel(sku=np.arange(more) % own.sizes["sku"]).copy(deep=True)
        made = made.map(lambda v: v * rng.uniform(0.8, 1.25, more), keep_attrs=True)
        for name in ("sm_count", "tensor_flop_per_clock"):  # whole numbers, and powers of two
            made[name] = own[name].isel(sku=np.arange(more) % own.sizes["sku"]).variable
        made = made.assign_coords(sku=[f"MADE-UP-{i}" for i in range(more)])
        sheets = xr.concat([sheets, made], dim="sku")
    return sheets.sortby("sku")


def inputs_of(database, rows, skus):
    """Inputs of a fit, every time of which is a stand-in."""
    import pandas as pd

    from m2bayes.inputs import Inputs

    rng = np.random.default_rng(rows + skus)
    sheets = cards(database, rng, skus)
    names = sheets["sku"].values.astype(str)
    each = -(-rows // (skus * len(BUILDS)))
    table = pd.DataFrame(
        [
            (sku, build, "synthetic", *shape, 1e-5)
            for sku in names
            for shape in shapes(rng, each)
            for build in BUILDS
        ],
        columns=["sku", "backend", "version", "M", "N", "K", "op_time"],
    )
    clock = database.table("clock_sustained")
    clock = clock[clock["sku"].isin(names)].reset_index(drop=True)
    return Inputs(table, table.iloc[:0], clock, sheets, [])


def fitted(rows, skus):
    """What a fit of that size takes, in this process."""
    import arviz_stats as az
    import nutpie
    from gradient import by_library

    from m2bayes import sbc

    database = Database()
    inputs = inputs_of(database, rows, skus)
    model = inputs.build(database.builder("hier_gemm"))
    simulated = sbc.simulate(model, 1, seed=SETTINGS["seed"])
    start = time.process_time()
    compiled = nutpie.compile_pymc_model(model)
    compile_time = time.process_time() - start
    compiled = compiled.with_data(**{name: held[0] for name, held in simulated.data.items()})
    centre = np.concatenate([np.ravel(v) for v in model.initial_point().values()])
    gradient, start = by_library(compiled), time.process_time()
    for _ in range(CALLS):
        gradient(centre)
    each = (time.process_time() - start) / CALLS
    start = time.process_time()
    tree = nutpie.sample(compiled, **SETTINGS, cores=1, save_warmup=False, progress_bar=False)
    sampling = time.process_time() - start
    ess = az.ess(tree["posterior"].to_dataset(), method="bulk")
    smallest = min(float(np.nanmin(v.values)) for v in ess.data_vars.values())
    stats = tree["sample_stats"].to_dataset()
    return {
        "rows": len(inputs.times),
        "skus": skus,
        "parameters": int(compiled.n_dim),
        "compile": compile_time,
        "gradient": each,
        "steps": float(stats["n_steps"].mean()),
        "sampling": sampling,
        "ess": smallest,
        "divergences": int(stats["diverging"].sum()),
    }


def predicted(count):
    """What that many workloads take, in this process."""
    from m2bayes.predictive import predict

    database = Database()
    posterior, sheets = database.draws(POSTERIOR), database.datasheets([SKU])
    each = DRAWS // posterior.sizes["chain"]
    held = posterior.sizes["draw"]
    posterior = posterior.isel(draw=np.arange(each) * held // each)
    asked = shapes(np.random.default_rng(1), count)
    kept = np.empty((len(LEVELS), count))

    def fill(start, stop):
        cells = {name: ("shape", asked[start:stop, i]) for i, name in enumerate(ENDS)}
        time_ = predict(posterior, xr.Dataset(cells), sheets).transpose("chain", "draw", ...)
        draws = time_.values.reshape(DRAWS, -1)
        kept[:, start:stop] = np.quantile(draws, LEVELS, axis=0)

    fill(0, 16)  # imported, and what is kept from call to call
    start = time.process_time()
    for at in range(0, count, CHUNK):
        fill(at, min(at + CHUNK, count))
    return {"workloads": count, "seconds": time.process_time() - start}


def held():
    """Most memory that this process held so far [byte]."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_a_process(kind, *sizes):
    """What `fitted` or `predicted` says in a process of its own."""
    command = [sys.executable, __file__, "--one", kind, *map(str, sizes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(found, file=sys.stderr, flush=True)
    return found


def measured(results, keep):
    """Fill `results` with what is not yet in it, and keep them after each."""
    for rows, skus in FITS:
        if f"{rows}/{skus}" not in results["fits"]:
            results["fits"][f"{rows}/{skus}"] = in_a_process("fit", rows, skus)
            keep()
    for count in COUNTS:
        if str(count) not in results["predictions"]:
            results["predictions"][str(count)] = in_a_process("predict", count)
            keep()


def main():
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    if args.one:
        kind, *sizes = args.one
        found = {"fit": fitted, "predict": predicted}[kind](*map(int, sizes))
        print(json.dumps(found | {"memory": held()}))
        return
    results = {"fits": {}, "predictions": {}, "settings": SETTINGS, "draws": DRAWS, "chunk": CHUNK}
    if args.out and args.out.is_file():
        results = json.loads(args.out.read_text())["results"]
    content = {
        "what": __doc__.splitlines()[0],
        "command": "python benchmarks/scaling.py --out data/benchmarks/scaling.json",
        "versions": {n: version(n) for n in ("numpy", "numba", "pymc", "pytensor", "nutpie")},
        "results": results,
    }

    def keep():
        if args.out:
            args.out.write_text(json.dumps(content, indent=2) + "\n")

    measured(results, keep)
    if not args.out:
        print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
