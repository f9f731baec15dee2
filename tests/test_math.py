"""One set of elementwise functions gives the same numbers for NumPy, xarray and PyTensor."""

import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes import _math
from m2bayes._math import sigmoid, smooth_maximum
from m2bayes._random import labelled_rng

EXACT = {"rtol": 1e-12, "atol": 0}
ONE = {"exp": np.exp, "log": np.log, "log1p": np.log1p, "ceil": np.ceil}
TWO = {"maximum": np.maximum, "minimum": np.minimum}
OWN = {"sigmoid": sigmoid, "smooth_maximum": lambda x: smooth_maximum(x, 1.7, 2.6)}

positive = st.floats(1e-30, 1e30)
sharpness = st.floats(1.0, 100.0)
no_deadline = settings(deadline=None, max_examples=100)


@pytest.fixture
def numbers(rng):
    return rng.uniform(0.1, 5.0, size=(3, 4))


def by_pytensor(function, *arrays):
    inputs = [pt.dmatrix() for _ in arrays]
    return pytensor.function(inputs, function(*inputs), mode="FAST_COMPILE")(*arrays)


@pytest.mark.parametrize("name", [*ONE, *OWN])
def test_numpy_xarray_and_pytensor_agree(name, numbers):
    function = OWN.get(name) or getattr(_math, name)
    reference = ONE[name](numbers) if name in ONE else function(numbers)
    labelled = function(xr.DataArray(numbers, dims=("sku", "op")))
    assert labelled.dims == ("sku", "op")
    np.testing.assert_allclose(function(numbers), reference, **EXACT)
    np.testing.assert_allclose(labelled, reference, **EXACT)
    np.testing.assert_allclose(by_pytensor(function, numbers), reference, **EXACT)


@pytest.mark.parametrize("name", TWO)
def test_extremes_of_two_agree_and_broadcast_by_dims(name, numbers):
    function = getattr(_math, name)
    a, b = numbers, numbers[::-1].copy()
    np.testing.assert_array_equal(function(a, b), TWO[name](a, b))
    np.testing.assert_array_equal(by_pytensor(function, a, b), TWO[name](a, b))
    rows, columns = xr.DataArray(a[:, 0], dims="sku"), xr.DataArray(b[0], dims="op")
    crossed = function(rows, columns)
    assert crossed.dims == ("sku", "op")
    np.testing.assert_array_equal(crossed, TWO[name](a[:, :1], b[:1]))


def test_a_symbol_among_arrays_makes_the_result_symbolic(numbers):
    x = pt.dmatrix()
    assert isinstance(_math.maximum(numbers, x), pytensor.graph.basic.Variable)
    assert isinstance(_math.maximum(numbers, 1.0), np.ndarray)


def test_smooth_maximum_of_equal_quantities_is_its_upper_bound():
    for p in (1.0, 2.0, 1.9, 37.0):
        np.testing.assert_allclose(smooth_maximum(3.0, 3.0, p), 3 * 2 ** (1 / p), **EXACT)


def test_smooth_maximum_by_hand():
    np.testing.assert_allclose(smooth_maximum(2.0, 5.0, 1.0), 7.0, **EXACT)
    np.testing.assert_allclose(smooth_maximum(3.0, 4.0, 2.0), 5.0, **EXACT)
    np.testing.assert_allclose(smooth_maximum(1.0, 2.0, 3.0), 9 ** (1 / 3), **EXACT)


@given(positive, positive, sharpness)
@no_deadline
def test_smooth_maximum_stays_between_its_bounds(a, b, p):
    if min(a, b) / max(a, b) == 0:
        return  # below the smallest ratio of two floats
    soft, hard = smooth_maximum(a, b, p), max(a, b)
    assert hard <= soft * (1 + 1e-15)
    assert soft <= hard * 2 ** (1 / p) * (1 + 1e-14)


@given(positive, positive, sharpness)
@no_deadline
def test_smooth_maximum_does_not_know_left_from_right(a, b, p):
    assert smooth_maximum(a, b, p) == smooth_maximum(b, a, p)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), sharpness, st.floats(1e-9, 1e9))
@no_deadline
def test_smooth_maximum_scales_with_its_unit(a, b, p, unit):
    whole = smooth_maximum(a * unit, b * unit, p)
    np.testing.assert_allclose(whole, unit * smooth_maximum(a, b, p), rtol=1e-11)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1.0, 50.0), st.floats(1.0, 3.0))
@no_deadline
def test_a_sharper_knee_is_never_slower(a, b, p, factor):
    assert smooth_maximum(a, b, p * factor) <= smooth_maximum(a, b, p) * (1 + 1e-14)


def test_smooth_maximum_becomes_the_hard_one():
    np.testing.assert_allclose(smooth_maximum(3.0, 4.0, 1e4), 4.0, **EXACT)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_smooth_maximum_does_not_overflow(scale):
    """The plain formula does: (4e300)² is infinite. Warnings are errors here."""
    np.testing.assert_allclose(smooth_maximum(3 * scale, 4 * scale, 2.0), 5 * scale, **EXACT)
    np.testing.assert_allclose(smooth_maximum(1e-9, 1e9, 1e6), 1e9, **EXACT)
    with pytest.raises(OverflowError):
        (4e300**2.0 + 3e300**2.0) ** 0.5


def test_the_soft_minimum_is_found_out():
    """A sign lost in the sharpness turns the knee round; the bounds would not hold."""
    assert smooth_maximum(3.0, 4.0, -2.0) < 3.0


def test_sigmoid_is_symmetric_and_saturates():
    x = np.linspace(-30, 30, 61)
    np.testing.assert_allclose(sigmoid(x) + sigmoid(-x), 1.0, **EXACT)
    np.testing.assert_allclose(sigmoid(np.log(3.0)), 0.75, **EXACT)
    assert sigmoid(700.0) == 1.0
    assert 0 < sigmoid(-700.0) < 1e-300


def test_plain_arrays_never_import_pytensor():
    code = (
        "import sys, numpy as np, xarray as xr\n"
        "from m2bayes import _math\n"
        "from m2bayes.mechanism import clock, gemm, memory, roofline, wave\n"
        "import m2bayes.predictive, m2bayes.discrepancy\n"
        "_math.maximum(np.ones(3), 2.0); _math.smooth_maximum(xr.DataArray([1.0]), 2.0, 3.0)\n"
        "sys.exit(int(any(m.split('.')[0] in ('pytensor', 'pymc') for m in sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


# --- seeded numbers --------------------------------------------------------------------------


def test_labels_and_seed_fix_the_numbers():
    assert labelled_rng(3, "a", "b").random() == labelled_rng(3, "a", "b").random()


def test_other_labels_or_seeds_give_other_numbers():
    pairs = [(0, "a", "b"), (1, "a", "b"), (0, "b", "a"), (0, "ab"), (0, "a"), (0, "a", "b", "")]
    firsts = [labelled_rng(*pair).random() for pair in pairs]
    assert len(set(firsts)) == len(firsts)
