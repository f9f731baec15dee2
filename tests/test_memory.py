"""Bandwidth ramp, L2 residency and memory time: the source's figures, limits and bounds."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes.mechanism.memory import bandwidth_ramp, memory_time, replay_copies, warm_share

EXACT = {"rtol": 1e-12, "atol": 0}
quick = settings(deadline=None, max_examples=100)
size = st.floats(1e3, 1e11)
rate = st.floats(1e9, 1e14)


@pytest.mark.parametrize(("weight", "by_hand"), [(33e6, 0.687155), (235e6, 0.814612)])
def test_ramp_at_the_two_weights_of_the_source(weight, by_hand):
    """Section 6: 0.891 − 1.171/√33 = 0.891 − 0.203845; 0.891 − 1.171/√235 = 0.891 − 0.076388.

    By hand to six digits, hence half of the last one.
    """
    assert abs(bandwidth_ramp(weight) - by_hand) < 0.5e-6


def test_ramp_is_the_stored_one(database):
    table = database.table("eta_memory")
    known = table[table["op"].isna()].set_index("quantity")["value"].astype(float)
    weights = table[table["quantity"] == "weight"]["value"].astype(float).to_numpy()
    stored = known["ramp_limit"] - known["ramp_slope"] / np.sqrt(weights / 1e6)
    np.testing.assert_allclose(bandwidth_ramp(weights), stored, **EXACT)


def test_ramp_explains_the_errors_of_a_constant_share(database):
    """Section 6: with 0.75, o comes out 10.5 % off one way and gate_up 10.3 % the other.

    The time under 0.75 relative to the measured one is the true share over 0.75. The ramp has a
    mean error of its own, 2.8 % of time: it must place both errors within that.
    """
    table = database.table("eta_memory").set_index(["quantity", "op"])["value"].astype(float)
    for op in ("o", "gate_up"):
        error = bandwidth_ramp(table["weight", op]) / 0.75 - 1
        assert abs(error - table["error_of_constant_share", op]) < 0.028
        assert np.sign(error) == np.sign(table["error_of_constant_share", op])


def test_ramp_rises_to_its_limit_and_is_negative_only_for_small_weights():
    weights = np.geomspace(2e6, 1e15, 200)
    assert (np.diff(bandwidth_ramp(weights)) > 0).all()
    assert abs(bandwidth_ramp(1e30) - 0.891) < 1e-11
    np.testing.assert_allclose(bandwidth_ramp(1e6 * (1.171 / 0.891) ** 2), 0.0, atol=1e-12)


def test_a_weight_in_mebibytes_is_found_out():
    """2^20 in place of 1e6 moves the o projection by half a percent: the hand value rejects it."""
    mebibytes = 0.891 - 1.171 / (33e6 / 2**20) ** 0.5
    assert abs(mebibytes - 0.687155) > 0.5e-6


def test_warm_share_by_hand():
    """A footprint of 1.05 L2, in logs, is half resident; the fall has sharpness 40."""
    np.testing.assert_allclose(warm_share(50e6 * np.exp(0.05), 50e6), 0.5, rtol=1e-10)
    np.testing.assert_allclose(warm_share(50e6, 50e6), 1 / (1 + np.exp(-2.0)), rtol=1e-10)


@given(size, st.floats(1e6, 4e9), st.floats(1.0, 1e4))
@quick
def test_warm_share_falls_with_the_footprint_and_rises_with_the_cache(footprint, l2, more):
    now = warm_share(footprint, l2)
    assert 0 <= now <= 1
    assert warm_share(footprint * more, l2) <= now
    assert warm_share(footprint, l2 * more) >= now


@given(size, st.floats(1e6, 4e9), st.floats(1e-6, 1e6))
@quick
def test_warm_share_knows_no_unit(footprint, l2, unit):
    np.testing.assert_allclose(
        warm_share(footprint * unit, l2 * unit), warm_share(footprint, l2), rtol=1e-9, atol=1e-300
    )


def test_warm_share_has_no_overflow_at_either_end():
    """Warnings are errors here; a footprint 1e300 times the cache is plainly cold."""
    assert warm_share(1e300, 1.0) < 1e-300
    assert warm_share(1.0, 1e300) == 1.0


def test_replay_copies_by_hand():
    """Six for sglang and vllm; for trtllm min(5, ceil(L2 / W)), at least one."""
    l2 = 100e6
    weights = np.array([1e6, 19e6, 21e6, 25e6, 49e6, 51e6, 100e6, 101e6, 1e9])
    np.testing.assert_array_equal(
        replay_copies(weights, l2, fixed=False), [5, 5, 5, 4, 3, 2, 1, 1, 1]
    )
    np.testing.assert_array_equal(replay_copies(weights, l2, fixed=True), 6.0)


@given(size, st.floats(1e6, 4e9), st.booleans())
@quick
def test_replay_copies_is_a_whole_number_from_one_to_six(weight, l2, fixed):
    copies = replay_copies(weight, l2, fixed=fixed)
    assert copies == int(copies)
    assert copies == 6 if fixed else 1 <= copies <= 5


def test_replay_copies_keep_dims():
    weight = xr.DataArray([1e6, 1e8], dims="op")
    l2 = xr.DataArray([5e7, 1e8, 2e8], dims="sku")
    assert set(replay_copies(weight, l2, fixed=False).dims) == {"op", "sku"}
    assert replay_copies(weight, l2, fixed=True).dims == ("op",)


def test_memory_time_by_hand():
    """8 bytes at 2 byte/s and 6 at 2 + 1: 4 s and 2 s."""
    assert memory_time(8.0, 6.0, hbm_rate=2.0, cache_rate=1.0) == 6.0
    assert memory_time(8.0, 0.0, hbm_rate=2.0, cache_rate=1.0) == 4.0


@given(st.floats(1, 1e12), st.floats(1, 1e12), rate, rate, st.floats(1.0, 10.0))
@quick
def test_cache_is_never_slower_than_memory(cold, warm, hbm, cache, more):
    time = memory_time(cold, warm, hbm_rate=hbm, cache_rate=cache)
    assert time <= (cold + warm) / hbm * (1 + 1e-12)
    assert memory_time(cold, warm, hbm_rate=hbm * more, cache_rate=cache) <= time
    assert memory_time(cold, warm, hbm_rate=hbm, cache_rate=cache * more) <= time
    np.testing.assert_allclose(
        memory_time(2 * cold, 2 * warm, hbm_rate=hbm, cache_rate=cache), 2 * time, **EXACT
    )


def test_memory_time_without_a_cache_is_the_memory_alone():
    assert memory_time(3.0, 5.0, hbm_rate=2.0, cache_rate=0.0) == 4.0
    assert memory_time(3.0, 5.0, hbm_rate=2.0, cache_rate=np.inf) == 1.5


def test_a_cache_alone_is_found_out():
    """With the L2 rate in place of the sum, a slow fitted L2 would make cold weights faster."""
    cold, warm, hbm, cache = 0.0, 6.0, 2.0, 1.0
    assert warm / cache > (cold + warm) / hbm
    assert memory_time(cold, warm, hbm_rate=hbm, cache_rate=cache) < (cold + warm) / hbm
