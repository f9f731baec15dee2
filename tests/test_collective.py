"""The all-reduce law: start-up and transfer by hand, how time may move, and two libraries."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from helpers import plain
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes.mechanism.collective import allreduce_terms, allreduce_time, link

EXACT = {"rtol": 1e-12, "atol": 0}
quick = settings(deadline=None, max_examples=40)
FACTORS = {"start_time": 6e-6, "eta_link": 0.6, "start_growth": 0.4, "contention": 0.3}
SKUS = ("a100", "h100", "l40s", "b200", "l4", "rtx-pro-6000")
gpus, sizes = st.integers(2, 8), st.integers(1, 2**30)


def cells(gpus, size):
    gpus, size = np.broadcast_arrays(*np.atleast_1d(gpus, size))
    columns = {"gpus": gpus.astype(float), "bytes": size.astype(float)}
    return xr.Dataset({name: ("shape", column) for name, column in columns.items()})


def arrays(cells, sheets, regime="served"):
    """Terms as plain arrays, dims (shape, sku)."""
    return plain(allreduce_terms(cells, sheets, regime=regime))


def time_of(gpus, size, sheets, **changes):
    return allreduce_time(arrays(cells(gpus, size), sheets), FACTORS | changes)


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(SKUS)


def test_terms_by_hand(sheets):
    """Of 8 GPUs each sends and receives 7/8 of the bytes twice; 8 is two doublings of 2."""
    terms = arrays(cells([2, 4, 8], 1e6), sheets)
    np.testing.assert_allclose(terms["doublings"][:, 0], [0, 1, 2], **EXACT)
    moved = np.array([1.0, 1.5, 1.75])[:, None] * 1e6
    rate = sheets["interconnect_bandwidth"].values
    np.testing.assert_allclose(terms["transfer"], moved / rate, **EXACT)


def test_allreduce_time_by_hand():
    """Start 3 s and transfer 4 s meet at 5 s."""
    terms = {"doublings": 1.0, "transfer": 1.0}
    factors = {
        "start_time": 1.5,
        "start_growth": np.log(2.0),
        "eta_link": 0.5,
        "contention": np.log(2.0),
    }
    np.testing.assert_allclose(allreduce_time(terms, factors), 5.0, **EXACT)
    # mistakes that this value finds out: a sum, growth by the GPUs instead of their doublings
    assert abs((3 + 4) - 5.0) > 1
    assert abs(allreduce_time(terms | {"doublings": 4.0}, factors) - 5.0) > 1


def test_a_short_message_takes_the_start_up(sheets):
    """Whatever the link; its growth is that of the doublings."""
    time = time_of([2, 4, 8], 1, sheets)
    expected = 6e-6 * np.exp(0.4 * np.arange(3))[:, None]
    np.testing.assert_allclose(time, np.broadcast_to(expected, time.shape), rtol=1e-6)


def test_a_long_message_takes_the_transfer(sheets):
    """Bytes over the share of the datasheet's one-way link, slowed by contention."""
    time = time_of([2, 8], 2**36, sheets)
    moved = np.array([1.0, 1.75])[:, None] * 2**36
    ideal = moved / sheets["interconnect_bandwidth"].values / 0.6
    np.testing.assert_allclose(time, ideal * np.exp(0.3 * np.array([[0], [2]])), rtol=1e-6)
    without = time_of([2, 8], 2**36, sheets, contention=0.0)
    np.testing.assert_allclose(without, ideal, rtol=1e-6)
    assert (np.abs(time[1] / ideal[1] - 1) > 0.5).all()  # a law without contention is found out


@given(gpus, sizes, sizes)
@quick
def test_more_bytes_never_take_less_time(sheets, gpus, size, more):
    asked = time_of(gpus, [size, size + more], sheets)
    assert (asked[1] >= asked[0]).all()


@given(gpus, sizes)
@quick
def test_more_gpus_take_longer_where_growth_is_positive(sheets, gpus, size):
    asked = time_of([gpus, gpus + 1], size, sheets)
    assert (asked[1] > asked[0]).all()
    # negative control: a switch that reduces may make more GPUs faster
    steep = time_of([gpus, gpus + 1], size, sheets, start_growth=-2.0, contention=-2.0)
    assert not (steep[1] > steep[0]).any()


@given(gpus, sizes)
@quick
def test_time_lies_between_the_larger_part_and_its_root_two(sheets, gpus, size):
    terms = arrays(cells(gpus, size), sheets)
    start = 6e-6 * np.exp(0.4 * terms["doublings"])
    transfer = terms["transfer"] / 0.6 * np.exp(0.3 * terms["doublings"])
    time, larger = allreduce_time(terms, FACTORS), np.maximum(start, transfer)
    assert (time >= larger * (1 - 1e-12)).all()
    assert (time <= larger * np.sqrt(2) * (1 + 1e-12)).all()


def test_regime_and_backend_are_without_effect(sheets):
    some = cells([2, 8], 1e6)
    xr.testing.assert_identical(
        allreduce_terms(some, sheets, regime="served"),
        allreduce_terms(some, sheets, regime="benchmark", backend="nccl"),
    )


def test_link_of_a_card(sheets):
    kinds = dict(zip(sheets["sku"].values, link(sheets), strict=True))
    assert kinds["H100-80GB-SXM"] == kinds["A100-80GB-SXM"] == "nvlink"
    assert kinds["L40S-48GB-PCIe"] == kinds["L4-24GB-PCIe"] == "pcie"


def test_numpy_and_pytensor_agree(sheets):
    terms = arrays(cells([2, 4, 8, 3], [1024, 2**20, 2**29, 1]), sheets)
    by_numpy = allreduce_time(terms, FACTORS)
    variables = {k: pt.dscalar(k) for k in FACTORS}
    symbolic = allreduce_time({k: pt.as_tensor_variable(v) for k, v in terms.items()}, variables)
    compiled = pytensor.function(list(variables.values()), symbolic, mode="FAST_COMPILE")
    np.testing.assert_allclose(compiled(*FACTORS.values()), by_numpy, **EXACT)
