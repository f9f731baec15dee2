"""The clock under a power limit: the source's measurements, limits and monotone curves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m2bayes.mechanism.clock import clock_ratio, power_load, power_roof, sustained_clock

EXACT = {"rtol": 1e-12, "atol": 0}
quick = settings(deadline=None, max_examples=100)
power = st.floats(10.0, 5000.0)
ROOF = {
    "clock_burst": 0.9,
    "droop": 0.3,
    "load": 0.5,
    "power_slope": 0.6,
    "width_slope": 0.1,
    "power_per_rate": 0.7e-12,
    "tensor_width": 4096.0,
}


@pytest.mark.parametrize(
    ("sku", "droop"), [("A100", 0.202), ("H200", 0.265), ("H100", 0.303), ("L40S", 0.435)]
)
def test_clock_ratio_gives_the_droop_of_the_source(database, sku, droop):
    """Section 3's table prints droop to 0.1 %: half of the last digit."""
    table = database.table("clock_sustained")
    row = table[table["sku"].str.startswith(f"{sku}-")].iloc[0]
    ratio = clock_ratio(float(row["sustained_clock"]), float(row["boost_clock"]))
    assert abs((1 - ratio) - droop) <= 0.5e-3 + 1e-12


def test_clock_below_the_limit_is_the_boost_clock():
    assert sustained_clock(2e9, 300.0, 300.0) == 2e9
    assert sustained_clock(2e9, 299.0, 300.0) == 2e9


def test_clock_above_the_limit_by_hand():
    """Eight times the power at exponent 3: half the clock; sixteen times at 4 likewise."""
    np.testing.assert_allclose(sustained_clock(2e9, 800.0, 100.0), 1e9, **EXACT)
    np.testing.assert_allclose(sustained_clock(2e9, 1600.0, 100.0, 4.0), 1e9, **EXACT)


def test_cap_sweep_of_the_source_lies_at_exponent_three_point_four(database):
    """RTX 5090, 575 to 400 W: 2730 to 2452 MHz (section 3).

    Two points fix one exponent if the upper one is taken as power-bound, so that the demand at
    2730 MHz is its 575 W: ln(575/400) / ln(2730/2452) = 3.38. The docstring prints 3.4, so the
    clock at 400 W must lie between those that 3.35 and 3.45 give.
    """
    table = database.table("clock_sustained")
    high, low = table[table["sku"].str.startswith("RTX-5090")][
        ["power_limit", "sustained_clock"]
    ].to_numpy(dtype=float)
    assert (*high, *low) == (575.0, 2730e6, 400.0, 2452e6)
    slow, fast = (sustained_clock(high[1], high[0], low[0], n) for n in (3.35, 3.45))
    assert slow < low[1] < fast
    cubic = sustained_clock(high[1], high[0], low[0])
    assert cubic < slow  # the default exponent of 3 would give a clock 34 MHz too low


@given(power, power, st.floats(1.0, 5.0), st.floats(1.0, 10.0))
@quick
def test_clock_never_rises_with_demand_nor_falls_with_the_limit(demand, limit, exponent, more):
    clock = sustained_clock(2e9, demand, limit, exponent)
    assert 0 < clock <= 2e9
    assert sustained_clock(2e9, demand * more, limit, exponent) <= clock
    assert sustained_clock(2e9, demand, limit * more, exponent) >= clock
    held = sustained_clock(2e9, demand * more, limit * more, exponent)
    np.testing.assert_allclose(held, clock, **EXACT)


def test_an_exponent_used_as_a_factor_is_found_out():
    """(1/8)**3 in place of (1/8)**(1/3): a card that would all but stop."""
    assert 2e9 * (100 / 800) ** 3.0 < 4e6
    assert sustained_clock(2e9, 800.0, 100.0) > 0.99e9


def test_load_is_half_at_the_settling_time_and_saturates():
    np.testing.assert_allclose(power_load(30e-3), 0.5, **EXACT)
    np.testing.assert_allclose(power_load(30e-3 * np.exp(0.7)), 1 / (1 + np.exp(-1.0)), **EXACT)
    assert power_load(1e9) == pytest.approx(1.0, abs=1e-12)
    assert power_load(0.0) < 1e-10  # a kernel that takes no time heats nothing


@given(st.floats(1e-9, 1e3), st.floats(1.0, 100.0))
@quick
def test_load_rises_with_busy_time(busy, more):
    assert 0 < power_load(busy) <= power_load(busy * more) <= 1


def test_roof_at_its_reference_is_the_burst_clock_less_droop():
    np.testing.assert_allclose(power_roof(**ROOF | {"load": 0.0}), 0.9, **EXACT)
    np.testing.assert_allclose(power_roof(**ROOF | {"load": 1.0}), 0.9 * np.exp(-0.3), **EXACT)


def test_roof_by_hand_away_from_its_reference():
    """Twice the power per rate gives 2^0.6; twice the width exp(0.1)."""
    still = ROOF | {"load": 0.0}
    roof = power_roof(**still | {"power_per_rate": 1.4e-12})
    np.testing.assert_allclose(roof, 0.9 * 2**0.6, **EXACT)
    roof = power_roof(**still | {"tensor_width": 8192.0})
    np.testing.assert_allclose(roof, 0.9 * np.exp(0.1), **EXACT)


def test_a_width_slope_per_e_fold_is_found_out():
    """The slope is per doubling; without the division by ln 2 it would be 0.7 of it."""
    wide = power_roof(**ROOF | {"load": 0.0, "tensor_width": 8192.0})
    assert abs(wide / 0.9 - 2**0.1) > 0.02


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 2.0))
@quick
def test_roof_never_rises_with_load_or_droop(load, more, droop):
    def roof(load, droop):
        return power_roof(**ROOF | {"load": load, "droop": droop})

    assert roof(load + more, droop) <= roof(load, droop)
    assert roof(load, droop + more) <= roof(load, droop)


def test_roof_broadcasts_skus_against_loads():
    roof = power_roof(**ROOF | {"load": np.array([0.0, 0.5, 1.0]), "droop": np.full((2, 1), 0.3)})
    assert roof.shape == (2, 3)
    np.testing.assert_allclose(roof[0], [power_roof(**ROOF | {"load": x}) for x in (0, 0.5, 1)])
