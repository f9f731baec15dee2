"""Queues: closed forms of M/M/1, M/M/c, M/D/1 and bulk service; limits and properties."""

from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2bayes.serving.bulk import STATES, bulk_queue
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


# --- service in bulk -------------------------------------------------------------------------

DECODE, PROMPT = 0.02, 0.03
WAITING = np.arange(STATES)


def bulk(rate, room, prompt=PROMPT, decode=DECODE):
    step = decode + prompt * np.minimum(WAITING, room)
    return bulk_queue(np.array([rate]), np.array([float(room)]), step[None])


def test_a_step_with_room_for_all_takes_decoding_over_what_prompts_leave():
    """A step is D + P·(arrivals in the step before): its mean solves s = D + λ P s."""
    for rate in (1.0, 10.0, 25.0):
        assert bulk(rate, 16).step[0] == pytest.approx(DECODE / (1 - rate * PROMPT), rel=2e-3)


def test_what_arrives_is_read():
    """Mean prompts a step, from its length, are arrivals in it, whatever the room."""
    for room in (1, 2.5, 4):
        rate = 0.7 * room / (DECODE + PROMPT * room)
        read = (bulk(rate, room).step[0] - DECODE) / PROMPT
        assert read == pytest.approx(rate * bulk(rate, room).step[0], rel=5e-3)


def test_more_arrivals_wait_longer():
    waits = [bulk(rate, 2) for rate in (5.0, 10.0, 15.0, 20.0)]
    means = [b.p[0] * b.wait[0] for b in waits]
    assert means == sorted(means)


def test_more_than_a_full_step_reads_never_ends():
    room = 2
    full = room / (DECODE + PROMPT * room)
    assert np.isfinite(bulk(0.95 * full, room).wait[0])
    assert np.isinf(bulk(1.05 * full, room).wait[0])


def test_few_arrivals_find_a_step_that_only_decodes():
    rare = bulk(1e-6, 4)
    assert rare.step[0] == pytest.approx(DECODE, rel=1e-5)
    assert rare.reading[0] < 1e-5
    assert rare.p[0] < 1e-5
