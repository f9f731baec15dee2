"""How fast the gradient of the log density is, beside one written by hand.

Run from the repository root::

    python benchmarks/gradient.py [--out data/benchmarks/gradient.json]

The density of `models/hier_gemm.py` on the data of the stored posterior, at points about the
centre of the prior. Values are compared first; then both are timed in turns on one thread: seconds
of CPU, the median of rounds.

- ``library``: what NUTS calls, compiled by nutpie of the model as it is written
- ``by hand``: reverse mode as loops, in `density.py`
"""

import argparse
import ctypes
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from density import density, tables

from m2bayes.database import Database
from m2bayes.inputs import Inputs
from m2bayes.posterior import compiled_model

POSTERIOR = "gemm_bf16-hier_gemm"
POINTS, JITTER = 5, 0.1  # compared, and their standard deviation about the prior's centre [1]
AGREE = 1e-8  # relative difference of any value [1]
CALLS, ROUNDS = 300, 15
POINTER = ctypes.POINTER(ctypes.c_double)


def by_library(compiled):
    """Function of a point that gives log density and gradient, as NUTS calls it."""
    function = compiled.compiled_logp_func.ctypes
    value, gradient = np.empty(1), np.empty(compiled.n_dim)
    out = gradient.ctypes.data_as(POINTER), value.ctypes.data_as(POINTER)

    def call(x):
        if function(len(x), x.ctypes.data_as(POINTER), *out, compiled.user_data.ctypes.data):
            sys.exit("the log density or its gradient is not finite at a point")
        return value[0], gradient

    return call


def ways():
    """Both functions of a point, points to compare them at, and the rows of the data."""
    database = Database()
    record = database.posterior(POSTERIOR)
    inputs = Inputs.recorded(database, record)
    model = inputs.build(database.builder(record.model))
    compiled = compiled_model(model, jitter=True)
    held = tables(inputs, dict(zip(*compiled.shape_info[:2], strict=True)))
    start, rng = model.initial_point(), np.random.default_rng(1)
    centre = np.concatenate([np.ravel(start[str(v.name)]) for v in model.value_vars])
    points = centre + JITTER * rng.standard_normal((POINTS, len(centre)))
    both = {"library": by_library(compiled), "by hand": lambda x: density(x, *held)}
    return both, points, len(inputs.times)


def differences(both, points):
    """Largest relative difference of the log density, and of its gradient's norm [1]."""
    found = []
    for x in points:
        one, other = ((value, gradient.copy()) for value, gradient in (f(x) for f in both.values()))
        norm = np.linalg.norm(one[1] - other[1]) / np.linalg.norm(one[1])
        found.append([abs(other[0] / one[0] - 1), norm])
    return [float(largest) for largest in np.max(found, axis=0)]


def timed(both, points):
    """CPU seconds of one call each, the median of rounds taken in turns, and their ratio's."""
    seconds = {name: [] for name in both}
    for _ in range(ROUNDS):
        for name, function in both.items():
            start = time.process_time()
            for i in range(CALLS):
                function(points[i % len(points)])
            seconds[name].append((time.process_time() - start) / CALLS)
    ratio = np.median(np.divide(seconds["library"], seconds["by hand"]))
    return {name: float(np.median(held)) for name, held in seconds.items()}, float(ratio)


def main():
    """Compare, measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    both, points, rows = ways()
    value, gradient = differences(both, points)
    if max(value, gradient) > AGREE:
        sys.exit(f"the two differ by {value:.1e} in value and {gradient:.1e} in gradient")
    seconds, ratio = timed(both, points)
    content = {
        "what": __doc__.splitlines()[0],
        "command": "python benchmarks/gradient.py --out data/benchmarks/gradient.json",
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "versions": {name: version(name) for name in ("numpy", "numba", "pytensor", "nutpie")},
        },
        "results": {
            "posterior": POSTERIOR,
            "parameters": points.shape[1],
            "rows": rows,
            "points": POINTS,
            "value_differs": value,
            "gradient_differs": gradient,
            "seconds": seconds,
            "ratio": ratio,
        },
    }
    text = json.dumps(content, indent=2) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
