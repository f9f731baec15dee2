"""How fast the GEMM law is on draws, beside a kernel written by hand; and what memory it takes.

Run from the repository root::

    python benchmarks/predict.py [--out data/benchmarks/predict.json]

Each way runs in a process of its own on one thread and is compared with the others in this run:
seconds of CPU, the best of some, and the most memory beyond what the process held before, the
result among it.

- ``numba``: the law written by hand as one loop, the power roof of a draw taken out of it
- ``library``: `m2bayes.blocks.law_times`, which the library predicts with
- ``one pass``: the same law on whole arrays
- ``predict``: `m2bayes.predict`: the law, the discrepancy of every shape, build effects
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import xarray as xr

from m2bayes.blocks import law_times
from m2bayes.database import Database
from m2bayes.factors import with_skus
from m2bayes.mechanism.gemm import gemm_terms, gemm_time
from m2bayes.predictive import predict

POSTERIOR, SKU = "gemm_bf16-hier_gemm", "h100"
SIZES = {"M": (1, 32768), "N": (128, 65536), "K": (128, 65536)}
TERMS = [
    "ideal_compute",
    "grid_cost",
    "tile_cost",
    "passes",
    "cold_traffic",
    "warm_traffic",
    "peak_bandwidth",
    "cache_port",
    "chain",
    "power_load",
    "blank_weights",
    "power_per_rate",
    "tensor_width",
    "peak_over_boost",
]
FACTORS = [
    "eta_issue",
    "clock_burst",
    "droop",
    "power_slope",
    "width_slope",
    "blank_gain",
    "eta_memory",
    "eta_cache",
    "knee",
    "prologue",
    "memory_latency",
    "launch_time",
]
DRAWS, ROWS = 4000, 10_000  # of the comparison
# draws of the growth, and rows of each way
GROWTH = (400, {"library": (10**3, 10**4, 10**5), "predict": (10**3, 10**4)})
REPEATS = {DRAWS: 2, GROWTH[0]: 5}  # by draws: what is short is noisy


@cache
def kernel():
    """The law of `m2bayes.mechanism.gemm.gemm_time`, served, as a compiled loop."""
    import numba as nb

    @nb.njit
    def smooth(a, b, sharpness):
        larger = max(a, b)
        ratio = min(a, b) / larger
        return larger * np.exp(np.log1p(np.exp(sharpness * np.log(ratio))) / sharpness)

    @nb.njit(fastmath=True)
    def law(terms, factors, out):
        """Terms[row, term], factors[factor, draw], out[draw, row]: times [s]."""
        rows, draws = terms.shape[0], factors.shape[1]
        _, _, _, _, _, _, bandwidth, port, _, load, blank, power, width, clock = terms[0]
        for s in range(draws):
            f = factors[:, s]
            issue_rate, burst, droop, by_power, by_width, gain = f[:6]
            covariates = by_power * np.log(power / 0.7e-12)
            covariates += by_width * (np.log(width / 4096.0) / 0.6931471805599453)
            roof = burst * np.exp(covariates - droop * load) * np.exp(gain * blank)
            hbm, cache, knee = bandwidth * f[6], port * f[7], 1.0 + f[8]
            for i in range(rows):
                t = terms[i]
                issue = t[0] * t[1] * t[2] * (1.0 + f[9] * t[3]) * clock / issue_rate
                compute = smooth(issue, t[0] / roof, 1.9)
                memory = t[4] / hbm + t[5] / (hbm + cache) + f[10] * t[8]
                out[s, i] = f[11] + smooth(compute, memory, knee)

    return law


def question(draws, rows):
    """Posterior of that many draws, shapes drawn evenly over the logs of their sizes, datasheet."""
    database = Database()
    posterior, sheets = database.draws(POSTERIOR), database.datasheets([SKU])
    chains, held = posterior.sizes["chain"], posterior.sizes["draw"]
    each = draws // chains
    thinned = posterior.isel(draw=np.arange(each) * held // each)
    rng = np.random.default_rng(1)
    cells = {k: np.floor(np.exp(rng.uniform(*np.log(ends), rows))) for k, ends in SIZES.items()}
    return thinned, xr.Dataset({k: ("shape", v) for k, v in cells.items()}), sheets


def ways(draws, rows):
    """What each way computes, ready to be called."""
    posterior, cells, sheets = question(draws, rows)
    terms = gemm_terms(cells, sheets, regime="served").isel(sku=0)
    one = {str(k): np.atleast_2d(v.values) for k, v in terms.data_vars.items()}
    factors = with_skus(posterior, sheets, seed=0).isel(sku=0)
    columns = {str(k): v.values.reshape(-1, 1) for k, v in factors.data_vars.items()}

    def by_hand():
        table = np.stack([np.broadcast_to(one[k][0], rows) for k in TERMS], axis=1)
        out = np.empty((draws, rows))
        compiled(np.ascontiguousarray(table), np.stack([columns[k][:, 0] for k in FACTORS]), out)
        return out

    compiled = kernel()
    return {
        "numba": by_hand,
        "library": lambda: law_times(gemm_time, one, columns),
        "one pass": lambda: gemm_time(one, columns),
        "predict": lambda: predict(posterior, cells, sheets).values,
    }


def held():
    """Most memory that this process held so far [byte]."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured(way, draws, rows):
    """CPU seconds, peak memory [byte] and mean log time of one way, in this process."""
    ways(draws, 16)[way]()  # compiled, imported, and what is kept from call to call
    work, before = ways(draws, rows)[way], held()
    seconds, mean = [], 0.0
    for _ in range(REPEATS[draws]):
        start = time.process_time()
        out = work()
        seconds.append(time.process_time() - start)
        mean = float(np.log(out[:1]).mean())
        del out
    return {"seconds": min(seconds), "memory": held() - before, "mean_log_time": mean}


def in_a_process(way, draws, rows):
    """What `measured` says in a process of its own."""
    command = [sys.executable, __file__, "--one", way, str(draws), str(rows)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    print(f"{way}, {draws} draws x {rows} rows: {found['seconds']:.2f} s, "
          f"{found['memory'] / 1e9:.2f} GB", file=sys.stderr)  # fmt: skip
    return found


def wide_vectors():
    """Whether NumPy has AVX-512, for which it has vector code of exp and log."""
    return "AVX512F" in np.show_config(mode="dicts")["SIMD Extensions"]["found"]


def main():
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    if args.one:
        way, draws, rows = args.one
        print(json.dumps(measured(way, int(draws), int(rows))))
        return
    compared = {
        way: in_a_process(way, DRAWS, ROWS) for way in ("numba", "library", "one pass", "predict")
    }
    draws, by_way = GROWTH
    growth = {
        way: {str(rows): in_a_process(way, draws, rows) for rows in counts}
        for way, counts in by_way.items()
    }
    found = {
        "what": __doc__.splitlines()[0],
        "command": "python benchmarks/predict.py --out data/benchmarks/predict.json",
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "avx512": wide_vectors(),
            "versions": {name: version(name) for name in ("numpy", "numba", "xarray")},
        },
        "results": {
            "draws": DRAWS, "rows": ROWS, "ways": compared,
            "growth": {"draws": draws, "ways": growth},
        },
    }  # fmt: skip
    text = json.dumps(found, indent=2) + "\n"
    if args.out:
        args.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
