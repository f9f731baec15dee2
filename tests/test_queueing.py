"""Queues: closed forms of M/M/1, M/M/c and M/D/1; limits and properties."""

from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2bayes.serving.queueing import (
    in_system,
    kingman_factor,
    lifetime_share,
    quantile,
    wait_tail,
    waits_tail,
)


def erlang_c(load, servers):
    """Probability to wait in M/M/c."""
    last = load**servers / factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize(("load", "servers"), [(0.5, 1), (3.0, 4), (18.0, 20)])
def test_equal_servers_give_erlangs_formula(load, servers):
    below, full = in_system(load, np.arange(1.0, servers + 1))
    assert full == pytest.approx(erlang_c(load, servers), rel=1e-12)
    assert below.sum() + full == pytest.approx(1, rel=1e-12)


def test_unlimited_servers_give_a_poisson_number():
    below, full = in_system(5.0, np.arange(1.0, 61))
    number = np.arange(20)
    poisson = np.exp(-5.0) * 5.0**number / np.array([factorial(n) for n in number])
    np.testing.assert_allclose(below[:20], poisson, rtol=1e-9)
    assert full < 1e-20


def test_a_queue_that_is_too_slow_is_always_full():
    below, full = in_system(np.array([1.0, 3.0]), np.array([[2.0, 2.0], [2.0, 2.0]]))
    assert full.tolist() == [0.25, 1.0]
    assert (below[1] == 0).all()


@given(st.floats(0.01, 0.98), st.floats(1.01, 1.5), st.integers(1, 30))
def test_more_arrivals_find_more_in_the_system(load, more, servers):
    rates = np.minimum(np.arange(1.0, servers + 1), servers**0.8)
    slow = in_system(load * rates[-1], rates)
    fast = in_system(min(load * more, 0.999) * rates[-1], rates)
    assert (np.cumsum(fast[0]) <= np.cumsum(slow[0]) + 1e-12).all()


def test_equal_demands_wait_half_as_long():
    """Pollaczek and Khinchine: M/D/1 at 0.8 waits 0.8 / (2 · 0.2) = 2 services."""
    assert kingman_factor(1, 0) * 0.8 / (1 - 0.8) == pytest.approx(2.0, rel=1e-12)


def test_quantiles_of_one_wait_are_near_the_exact_ones_of_equal_demands():
    """Crommelin's series at load 0.8: half wait up to 1.28 services, nine in ten up to 4.80."""
    mean = kingman_factor(1, 0) / (1 - 0.8)
    zero = np.zeros(1)
    for level, exact in ((0.5, 1.28), (0.9, 4.80)):
        found = quantile(lambda t: wait_tail(t, 0.8, mean), level, zero, zero + 1)
        assert found[0] == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("means", [(1.0, 3.0), (2.0, 2.0), (5.0, 0.01)])
@pytest.mark.parametrize("p", [(0.3, 0.6), (1.0, 1.0), (0.0, 0.5)])
def test_two_waits_in_a_row_have_the_sum_of_the_means(p, means):
    time = np.linspace(0, 60 * max(means), 400_001)
    tail = waits_tail(time, p, means)
    assert np.trapezoid(tail, time) == pytest.approx(p[0] * means[0] + p[1] * means[1], rel=1e-3)
    assert (np.diff(tail) <= 1e-12).all()
    assert tail[0] == pytest.approx(1 - (1 - p[0]) * (1 - p[1]), rel=1e-5)


def test_adding_the_tails_of_two_waits_is_a_mistake():
    right = waits_tail(2.0, (0.9, 0.9), (1.0, 1.0))
    wrong = wait_tail(2.0, 0.9, 1.0) + wait_tail(2.0, 0.9, 1.0)
    assert abs(wrong - right) > 0.05


def test_no_wait_at_all_is_over_at_once():
    assert waits_tail(0.0, (0.0, 0.0), (1.0, 1.0)) == 0
    assert waits_tail(-1e-9, (0.0, 0.0), (1.0, 1.0)) == 1


def test_a_quantile_of_months_is_endless():
    zero = np.zeros(2)
    means = np.array([1.0, 1e8])
    found = quantile(lambda t: np.exp(-t / means), 0.9, zero, zero + 1e100)
    assert np.isinf(found).tolist() == [False, True]


def test_a_share_that_no_time_keeps_has_an_infinite_quantile():
    zero = np.zeros(2)
    found = quantile(lambda t: np.array([1.0, 0.0]) + 0 * t, 0.9, zero, zero + 1)
    assert np.isinf(found[0])
    assert found[1] == pytest.approx(0, abs=1e-12)


def test_the_share_of_variance_falls_from_one_without_a_step():
    share = lifetime_share(np.linspace(0, 5, 5001))
    assert share[0] == 1
    assert (np.diff(share) < 0).all()
    assert np.abs(np.diff(share)).max() < 1e-3
