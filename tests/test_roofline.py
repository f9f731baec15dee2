"""The roofline and its counts: by hand, in the limits, and by properties."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes.mechanism.roofline import (
    activation_traffic,
    arithmetic_intensity,
    gemm_flops,
    ridge_point,
    roofline_time,
    weight_traffic,
)

EXACT = {"rtol": 1e-12, "atol": 0}
quick = settings(deadline=None, max_examples=50)
size = st.integers(1, 10**6)
work, rate = st.floats(1.0, 1e15), st.floats(1e9, 1e16)
share = st.floats(0.05, 1.0)
peaks = {"peak_flop_rate": rate, "peak_bandwidth": rate, "eta_compute": share, "eta_memory": share}


def test_counts_of_a_gemm_by_hand():
    """Llama-3.1-8B's qkv at 64 tokens: 2·64·6144·4096 FLOP; 48 MiB of weight, 1.25 MiB beside."""
    assert gemm_flops(64, 6144, 4096) == 3221225472
    assert weight_traffic(6144, 4096) == 48 * 2**20
    assert activation_traffic(64, 6144, 4096) == 1.25 * 2**20


def test_a_forgotten_factor_of_two_is_found_out():
    """A multiply-add is two operations: MNK alone would halve every compute time."""
    assert gemm_flops(1, 1, 1) == 2
    assert weight_traffic(1, 1) == 2
    assert weight_traffic(1, 1, item=1.0) == 1


@given(size, size, size)
@quick
def test_flops_do_not_care_which_side_is_which(M, N, K):
    assert gemm_flops(M, N, K) == gemm_flops(K, N, M) == gemm_flops(N, M, K)


def test_intensity_of_a_large_square_gemm_is_a_third_of_its_width():
    """Flops 2n³ over traffic 2·3n²."""
    n = 6000
    traffic = weight_traffic(n, n) + activation_traffic(n, n, n)
    np.testing.assert_allclose(arithmetic_intensity(gemm_flops(n, n, n), traffic), n / 3, **EXACT)


def test_roofline_by_hand_on_both_sides_of_the_ridge():
    peaks = {"peak_flop_rate": 100.0, "peak_bandwidth": 4.0}
    assert ridge_point(**peaks) == 25.0
    assert roofline_time(1000.0, 10.0, **peaks) == 10.0  # intensity 100: compute-bound
    assert roofline_time(100.0, 10.0, **peaks) == 2.5  # intensity 10: memory-bound
    slow = roofline_time(100.0, 10.0, **peaks, eta_compute=0.5, eta_memory=0.5)
    assert slow == 5.0


def test_ridge_point_separates_the_branches(rng):
    rate, bandwidth, traffic = rng.uniform(1, 10, (3, 100))
    ridge = ridge_point(rate, bandwidth)
    for side, branch in ((0.5, traffic / bandwidth), (2.0, 2.0 * ridge * traffic / rate)):
        time = roofline_time(
            side * ridge * traffic, traffic, peak_flop_rate=rate, peak_bandwidth=bandwidth
        )
        np.testing.assert_allclose(time, branch, **EXACT)


def test_an_infinite_peak_leaves_the_other_branch():
    free = {"peak_flop_rate": 10.0, "peak_bandwidth": np.inf}
    assert roofline_time(30.0, 1e9, **free) == 3.0
    assert roofline_time(1e9, 30.0, peak_flop_rate=np.inf, peak_bandwidth=10.0) == 3.0


@given(work, work, st.fixed_dictionaries(peaks), st.floats(1.0, 10.0))
@quick
def test_time_never_rises_with_a_peak_or_its_share(flops, traffic, peaks, more):
    now = roofline_time(flops, traffic, **peaks)
    for name, peak in peaks.items():
        assert roofline_time(flops, traffic, **peaks | {name: peak * more}) <= now
    both = {n: p * more if n.startswith("peak") else p for n, p in peaks.items()}
    np.testing.assert_allclose(roofline_time(flops, traffic, **both), now / more, **EXACT)


@given(work, work, rate, rate, st.floats(1e-9, 1e9))
@quick
def test_doubling_all_work_doubles_time_and_units_cancel(flops, traffic, compute, bandwidth, unit):
    peaks = {"peak_flop_rate": compute, "peak_bandwidth": bandwidth}
    now = roofline_time(flops, traffic, **peaks)
    assert roofline_time(2 * flops, 2 * traffic, **peaks) == 2 * now
    peaks = {name: peak * unit for name, peak in peaks.items()}
    np.testing.assert_allclose(roofline_time(flops * unit, traffic * unit, **peaks), now, **EXACT)


def test_a_sum_of_branches_is_found_out():
    """Compute and traffic overlap; adding them would give 4 at the ridge."""
    assert roofline_time(300.0, 2.0, peak_flop_rate=150.0, peak_bandwidth=1.0) == 2.0


@pytest.mark.parametrize("order", [("sku", "op"), ("op", "sku")])
def test_the_order_of_dims_is_free(order, rng):
    flops = xr.DataArray(rng.uniform(1, 9, 4), dims="op")
    rate = xr.DataArray(rng.uniform(1, 9, 3), dims="sku")
    time = roofline_time(flops, 2 * flops, peak_flop_rate=rate, peak_bandwidth=rate)
    wide = roofline_time(
        (flops + 0 * rate).transpose(*order), 2 * flops, peak_flop_rate=rate, peak_bandwidth=rate
    )
    xr.testing.assert_equal(wide.transpose(*time.dims), time)
