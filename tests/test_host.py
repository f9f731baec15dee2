"""The host's law and the equation of a step: closed forms, limits, and two libraries at once."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes.mechanism.host import (
    EAGER,
    REPLAYED,
    host_terms,
    host_time,
    kernel_count,
    launch_time,
    step_time,
    tail_time,
)

EXACT = {"rtol": 1e-12, "atol": 0}
quick = settings(deadline=None, max_examples=40)
FACTORS = {
    "eager_launch": 40e-6,
    "graph_launch": 0.8e-6,
    "sequence_time": 20e-6,
    "sampling_time": 400e-6,
}
seconds = st.floats(1e-9, 1e3)


@pytest.fixture(scope="module")
def sheets(database):
    return database.datasheets(["a100", "h100"])


def cells(kernels, sequences, mode):
    given = {"kernels": kernels, "sequences": sequences, "mode": mode}
    columns = np.broadcast_arrays(*np.atleast_1d(*given.values()))
    return xr.Dataset(dict(zip(given, (("workload", c) for c in columns), strict=True)))


def test_kernels_of_a_step_by_hand():
    """Ten a layer and six besides; a layer that GPUs share has two all-reduces more."""
    assert kernel_count(32, shared=False) == 32 * 10 + 6
    assert kernel_count(32, shared=True) == 32 * 12 + 6
    assert kernel_count(0, shared=True) == 6


def test_host_time_by_hand(sheets):
    """326 kernels one by one and as a graph; 65 sequences; the same on every card."""
    terms = host_terms(cells(326, 65, [EAGER, REPLAYED]), sheets, regime="served")
    assert terms["graph"].isel(sku=0).values.tolist() == [0, 1]
    launches, tail = launch_time(terms, FACTORS), tail_time(terms, FACTORS)
    expected = np.array([326 * 40e-6, 326 * 0.8e-6])
    for i in range(2):
        np.testing.assert_allclose(launches.isel(sku=i), expected, **EXACT)
        np.testing.assert_allclose(tail.isel(sku=i), 65 * 20e-6 + 400e-6, **EXACT)
    np.testing.assert_allclose(host_time(terms, FACTORS), launches + tail, **EXACT)
    # a mistake that this finds out: modes taken the wrong way round
    assert launches.isel(workload=0).min() > 40 * launches.isel(workload=1).max()


def test_regime_and_backend_are_without_effect(sheets):
    some = cells(326, 65, EAGER)
    xr.testing.assert_identical(
        host_terms(some, sheets, regime="served"),
        host_terms(some, sheets, regime="benchmark", backend="vllm"),
    )


# --- the equation of a step ------------------------------------------------------------------


def test_a_step_without_work_is_bound_by_its_host():
    for blocks in (0.0, 1e-12, 2.999):
        assert step_time(blocks, 3.0, 1.0) == 4.0


def test_a_step_whose_launches_are_free_takes_its_kernels_and_the_tail():
    for launches in (0.0, 1e-12, 4.999):
        assert step_time(5.0, launches, 1.0) == 6.0


@given(seconds, seconds, seconds, st.floats(1e-9, 1e3))
@quick
def test_a_step_is_the_longer_of_two_and_what_nobody_hides(blocks, launches, tail, more):
    time = step_time(blocks, launches, tail)
    assert time >= max(blocks, launches) + tail - 1e-12 * time
    assert time <= blocks + launches + tail
    for asked in ((blocks + more, launches, tail), (blocks, launches + more, tail)):
        assert step_time(*asked) >= time
    assert step_time(blocks, launches, tail + more) > time * (1 - 1e-15)


def test_a_host_that_waits_for_the_gpu_is_found_out():
    """Negative control: launches that run after the kernels would add up to 9."""
    assert step_time(5.0, 3.0, 1.0) == 6.0 != 5.0 + 3.0 + 1.0


@given(st.integers(1, 128), st.integers(1, 256), st.sampled_from([EAGER, REPLAYED]))
@quick
def test_more_layers_and_sequences_take_the_host_longer(sheets, layers, sequences, mode):
    kernels = [kernel_count(layers, shared=False), kernel_count(layers + 1, shared=False)]
    terms = host_terms(cells(kernels, [sequences, sequences + 1], mode), sheets, regime="served")
    launches, tail = launch_time(terms, FACTORS), tail_time(terms, FACTORS)
    assert (launches.isel(workload=1) > launches.isel(workload=0)).all()
    np.testing.assert_allclose(tail.diff("workload"), 20e-6, rtol=1e-9)


def test_numpy_and_pytensor_agree(sheets):
    terms = host_terms(cells([6, 326, 966], [1, 64, 256], [1, 2, 1]), sheets, regime="served")
    held = {k: v.values for k, v in terms.data_vars.items()}
    variables = {k: pt.dscalar(k) for k in FACTORS}
    symbolic = {k: pt.as_tensor_variable(v) for k, v in held.items()}
    blocks = np.full(held["kernels"].shape, 5e-3)

    def whole(terms, factors):
        return step_time(blocks, launch_time(terms, factors), tail_time(terms, factors))

    for law in (host_time, whole):
        compiled = pytensor.function(
            list(variables.values()), law(symbolic, variables), mode="FAST_COMPILE"
        )
        np.testing.assert_allclose(compiled(*FACTORS.values()), law(held, FACTORS), **EXACT)
