"""Gradient of the log density: the one by hand is of the same density, and not much is wasted."""

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import OPT_FAST_RUN, Mode
from pytensor.tensor.elemwise import Elemwise

from m2bayes._random import labelled_rng
from m2bayes.inputs import Inputs

ROOT = Path(__file__).parents[1]
POSTERIOR = "gemm_bf16-hier_gemm"
COST = {  # exponentials and logarithms in one
    **dict.fromkeys(("Exp", "Log", "Exp2", "Expm1", "Log1p", "Log2", "Log10", "Sigmoid"), 1),
    **dict.fromkeys(("Softplus", "Pow", "GammaLn", "Tanh", "Log1mexp"), 2),
}
VALUE, GRADIENT = 1.5, 2.0  # exponentials and logarithms at most, over those by hand


@pytest.fixture(scope="module")
def inputs(database):
    return Inputs.recorded(database, database.posterior(POSTERIOR))


@pytest.fixture(scope="module")
def model(database, inputs):
    return inputs.build(database.builder("hier_gemm"))


class Counted:
    """The functions of `math` that `density.py` calls; counts exponentials and logarithms."""

    def __init__(self):
        self.calls = 0
        self.sqrt, self.pi, self.lgamma = math.sqrt, math.pi, math.lgamma

    def _count(self, function, x):
        self.calls += 1
        return function(x)

    def __getattr__(self, name):
        return lambda x: self._count(getattr(math, name), x)


def benchmark(name):
    """Module of a benchmark."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def by_hand(model, inputs):
    """Density and gradient by hand, not compiled; what counts its calls; places of parameters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba, "njit", lambda *a, **_: a[0] if a else lambda f: f)
        module = benchmark("density")
    module.math = counted = Counted()
    places, start = {}, 0
    for name, value in model.initial_point().items():
        places[name] = slice(start, start + np.size(value))
        start = places[name].stop
    held = module.tables(inputs, places)
    return SimpleNamespace(of=lambda x: module.density(x, *held), counted=counted, places=places)


def at(model, i, step=0.1):
    """Point of a record's fingerprint, in one line."""
    return np.concatenate(
        [
            np.ravel(v) + step * (i > 0) * np.ravel(labelled_rng(i, k).standard_normal(np.shape(v)))
            for k, v in model.initial_point().items()
        ]
    )


def test_the_density_by_hand_is_that_of_the_record(database, model, by_hand):
    """Or the benchmark would compare two things."""
    recorded = database.posterior(POSTERIOR).fingerprint
    found = [by_hand.of(at(model, i))[0] for i in range(len(recorded))]
    np.testing.assert_allclose(found, recorded, rtol=1e-8)


def test_the_gradient_by_hand_is_the_slope_of_the_density_by_hand(model, by_hand):
    point, rng = at(model, 2), np.random.default_rng(3)
    _, gradient = by_hand.of(point)
    for _ in range(3):
        way = rng.standard_normal(len(point))
        step = 1e-5 * way / np.linalg.norm(way)
        ahead, behind = by_hand.of(point + step)[0], by_hand.of(point - step)[0]
        # the error of a central difference: its third derivative, and rounding of the values
        np.testing.assert_allclose((ahead - behind) / 2, gradient @ step, rtol=1e-5, atol=1e-9)


def cost(op):
    """Exponentials and logarithms in one element of an operation, with all that it is made of."""
    inner = getattr(op, "fgraph", None)
    if inner is None:
        return COST.get(type(op).__name__, 0)
    return sum(cost(node.op) for node in inner.toposort())


def counts(outputs, model, cells, runs):
    """Exponentials and logarithms that evaluating `outputs` takes, in arrays of runs."""
    mode = Mode(linker="py", optimizer=OPT_FAST_RUN).excluding("fusion", "inplace")
    compiled = pytensor.function(model.value_vars, outputs, mode=mode, on_unused_input="ignore")
    total = 0
    for node in compiled.maker.fgraph.toposort():
        if not isinstance(node.op, Elemwise) or node.outputs[0].type.ndim < 2:
            continue  # of SKUs, or once a cell
        free = sum(length is None for length in node.outputs[0].type.shape)
        total += (0, cells, cells * runs)[free] * cost(node.op.scalar_op)
    return total


@pytest.fixture(scope="module")
def sizes(inputs):
    return inputs.cells().sizes["cell"], inputs.cells().sizes["run"]


@pytest.fixture(scope="module")
def hand_count(model, by_hand):
    by_hand.counted.calls = 0
    by_hand.of(at(model, 1))
    return by_hand.counted.calls


def test_the_gradient_takes_few_more_exponentials_than_by_hand(model, sizes, hand_count):
    entries = sizes[0] * sizes[1]
    assert hand_count > 7 * entries  # it went over every run of every cell
    value = counts([model.logp()], model, *sizes)
    both = counts([model.logp(), model.dlogp()], model, *sizes)
    assert 7 * entries < value < VALUE * hand_count
    assert value < both < GRADIENT * hand_count


def test_a_law_that_wastes_exponentials_is_seen(database, inputs, sizes, hand_count, monkeypatch):
    """Deliberate mistake: powers in place of one exponential around the larger time."""
    monkeypatch.setattr(
        "m2bayes.mechanism.gemm.smooth_maximum", lambda a, b, p: (a**p + b**p) ** (1 / p)
    )
    wasteful = inputs.build(database.builder("hier_gemm"))
    assert counts([wasteful.logp()], wasteful, *sizes) > VALUE * hand_count


def test_the_plain_parametrisation_has_every_level_as_an_offset(database, model):
    """What `benchmarks/fit.py` compares with: as many numbers, none of them a level itself."""
    plain = benchmark("fit").built(database, plain=True)
    names, offsets = ({v.name for v in m.free_RVs} for m in (model, plain))
    levels = names - offsets
    assert levels  # the stored one samples some levels
    assert {v.name for v in plain.deterministics} >= levels
    assert len(names) == len(offsets)
    sizes = [sum(v.size for v in m.initial_point().values()) for m in (model, plain)]
    assert sizes[0] == sizes[1]
